//! Options of a recognizer, which are those of `panda transcribe`.
use std::path::PathBuf;

use model::encoders::NumberFormat;
use pyo3::{FromPyObject, PyResult, exceptions::PyValueError};
use recognizer::{CoverageOptions, Recognizer, SearchSettings, TextSource, WindowConfig};
use serde::Deserialize;
use speech::{Channel, Conversion};

use crate::recognizer_errors::to_python_error;

/// Options of a recognizer; `panda_rnnt.Recognizer.from_checkpoint` describes and checks them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecognizerOptions {
    search: SearchSettings,
    /// Channel from 1; none averages all.
    channel: Option<u32>,
    resample: bool,
    /// None for that of the checkpoint.
    encoder_format: Option<String>,
    silence: f64,
    omit_special: bool,
    /// Seconds from which a recording is processed in parts.
    pub long: f64,
    window: f64,
    overlap: Option<f64>,
}

/// A text as an argument: the path of a file, or bytes.
#[derive(FromPyObject)]
pub enum TextArgument {
    /// A file.
    #[pyo3(transparent)]
    File(PathBuf),
    /// A text in UTF-8.
    #[pyo3(transparent)]
    Text(Vec<u8>),
}

impl From<TextArgument> for TextSource {
    fn from(argument: TextArgument) -> Self {
        match argument {
            TextArgument::File(path) => TextSource::File(path),
            TextArgument::Text(text) => TextSource::Text(text),
        }
    }
}

/// Files and texts that a search reads; their names are those of the options.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct SearchSources {
    lm: Option<PathBuf>,
    minus_lm: Option<PathBuf>,
    phrases: Option<TextArgument>,
    allow_characters: Option<TextArgument>,
    forbid_tokens: Option<TextArgument>,
}

/// Seconds of the options of a coverage: smallest gap that is searched again, and tolerance.
#[derive(FromPyObject)]
pub struct CoverageArgument(f64, f64);

impl From<CoverageArgument> for CoverageOptions {
    fn from(CoverageArgument(search_seconds, tolerance_seconds): CoverageArgument) -> Self {
        CoverageOptions { search_seconds, tolerance_seconds }
    }
}

impl RecognizerOptions {
    /// Reads options.
    ///
    /// # Errors
    /// `ValueError` for text of another form, and an overlap that is not less than the window.
    pub fn parse(text: &str, sources: SearchSources) -> PyResult<Self> {
        let mut options: Self =
            serde_json::from_str(text).map_err(|error| PyValueError::new_err(format!("options: {error}")))?;
        let SearchSources { lm, minus_lm, phrases, allow_characters, forbid_tokens } = sources;
        options.search = SearchSettings {
            lm,
            minus_lm,
            phrases: phrases.map(TextSource::from),
            allow_characters: allow_characters.map(TextSource::from),
            forbid_tokens: forbid_tokens.map(TextSource::from),
            ..options.search
        };
        let WindowConfig { seconds, overlap } = options.window();
        if overlap < seconds {
            return Ok(options);
        }
        Err(PyValueError::new_err(format!(
            "overlap: expected seconds from 0 to less than the window of {seconds}, found {overlap}"
        )))
    }

    /// Number format of the encoder; none for that of the checkpoint.
    ///
    /// # Errors
    /// `ValueError` for another name.
    pub fn encoder_format(&self) -> PyResult<Option<NumberFormat>> {
        let parsed = self.encoder_format.as_deref().map(str::parse).transpose();
        parsed.map_err(|error: String| PyValueError::new_err(format!("encoder_format: {error}")))
    }

    /// Windows of a long recording.
    pub fn window(&self) -> WindowConfig {
        WindowConfig::with_seconds(self.window, self.overlap)
    }

    /// Sets the options of a recognizer; returns warnings about phrases and n-grams as well.
    ///
    /// # Errors
    /// `ValueError` for options that the model or the search does not support, and for files with
    /// other contents; `OSError` for files that cannot be read.
    pub fn apply(&self, recognizer: Recognizer) -> PyResult<(Recognizer, Vec<String>)> {
        let channel = self.channel.map_or(Channel::Mix, Channel::Number);
        let recognizer = recognizer
            .with_conversion(Conversion { channel, resample: self.resample })
            .with_special_omitted(self.omit_special)
            .with_silence(self.silence)
            .map_err(to_python_error)?;
        self.search.apply(recognizer).map_err(to_python_error)
    }
}
