//! Recordings of a call, transcribed in one batch.
use std::path::PathBuf;

use dlpark::ffi::DLDataType;
use pyo3::exceptions::PyValueError;
use pyo3::{Bound, FromPyObject, PyAny, PyResult};
use recognizer::{CoverageOptions, Recognizer, Transcription, WindowConfig};
use speech::{Audio, AudioChunks};

use crate::arrays::Borrowed;
use crate::recognizer_errors::{named_error, to_python_error};

/// Size of a step of 16-bit samples: they are numbers from -1 to 1.
const INT16_STEP: f32 = 1.0 / 32768.0;
/// Samples of a long array that are processed at a time.
const SAMPLES_PER_CHUNK: usize = 1 << 16;

/// A recording as an argument: samples with their name and rate, or a file.
#[derive(FromPyObject)]
pub enum RecordingArgument<'py> {
    /// Name, array and sample rate.
    Samples(String, Bound<'py, PyAny>, u32),
    /// A file.
    #[pyo3(transparent)]
    File(PathBuf),
}

/// A recording.
pub enum Recording {
    /// Samples with their name.
    Samples {
        /// Name in errors.
        name: String,
        /// Samples and their rate.
        audio: Audio,
    },
    /// A file.
    File(PathBuf),
}

impl Recording {
    /// Reads the samples of an array.
    ///
    /// # Errors
    /// Those of [`read_samples`].
    pub fn new(argument: RecordingArgument) -> PyResult<Self> {
        Ok(match argument {
            RecordingArgument::File(path) => Recording::File(path),
            RecordingArgument::Samples(name, array, sample_rate) => {
                let samples = read_samples(&name, &array)?;
                Recording::Samples { name, audio: Audio { samples, sample_rate } }
            }
        })
    }

    /// Name in errors.
    fn name(&self) -> String {
        match self {
            Recording::Samples { name, .. } => name.clone(),
            Recording::File(path) => path.display().to_string(),
        }
    }
}

/// A recording that was read.
enum LoadedRecording {
    Short(Audio),
    /// The transcription of a recording that was processed in parts.
    Long(Box<Transcription>),
}

/// A call that transcribes recordings.
pub struct Batch<'a> {
    /// The recognizer.
    pub recognizer: &'a Recognizer,
    /// Seconds from which a recording is processed in parts.
    pub long_seconds: f64,
    /// Windows of long recordings.
    pub window: WindowConfig,
    /// Options of the coverage, if requested.
    pub coverage: Option<CoverageOptions>,
}

impl Batch<'_> {
    /// Transcribes short recordings in one batch, and long ones one by one.
    ///
    /// # Errors
    /// `ValueError`, `OSError` or `MemoryError` for the first recording that cannot be transcribed.
    pub fn transcribe(&self, recordings: Vec<Recording>) -> PyResult<Vec<Transcription>> {
        let names: Vec<String> = recordings.iter().map(Recording::name).collect();
        let (mut short_recordings, mut long_transcriptions) = (Vec::new(), Vec::new());
        for recording in recordings {
            long_transcriptions.push(match self.load(recording)? {
                LoadedRecording::Short(audio) => {
                    short_recordings.push(audio);
                    None
                }
                LoadedRecording::Long(transcription) => Some(*transcription),
            });
        }
        let short_transcriptions = self.recognizer.transcribe_all(&short_recordings);
        let mut short_transcriptions = short_recordings.iter().zip(short_transcriptions);
        let transcription = |(name, long): (String, Option<Transcription>)| match long {
            Some(transcription) => Ok(transcription),
            None => short_transcriptions
                .next()
                .map_or(Ok(Transcription::default()), |(audio, transcription)| {
                    self.cover(audio, transcription?)
                })
                .map_err(|error| named_error(&name, error)),
        };
        names.into_iter().zip(long_transcriptions).map(transcription).collect()
    }

    /// Adds the coverage to a transcription, if requested.
    fn cover(&self, audio: &Audio, transcription: Transcription) -> recognizer::Result<Transcription> {
        match &self.coverage {
            Some(options) => self.recognizer.cover(audio, transcription, options),
            None => Ok(transcription),
        }
    }

    /// Reads a recording, and transcribes it if it is long.
    fn load(&self, recording: Recording) -> PyResult<LoadedRecording> {
        let (rate, recognizer) =
            (self.recognizer.model().config().input.features.sample_rate, self.recognizer);
        let max_samples = match recognizer.supports_streams() {
            true => (self.long_seconds * f64::from(rate)) as usize,
            false => usize::MAX,
        };
        match recording {
            Recording::Samples { name, audio } => {
                let audio = self.with_model_rate(&name, audio)?;
                if audio.samples.len() <= max_samples {
                    return Ok(LoadedRecording::Short(audio));
                }
                let transcription = self.transcribe_long(&audio);
                let transcription = transcription.map_err(|error| named_error(&name, error))?;
                Ok(LoadedRecording::Long(Box::new(transcription)))
            }
            Recording::File(path) => {
                let open = || {
                    let chunks = AudioChunks::open(&path, rate, recognizer.conversion());
                    chunks.map_err(|error| to_python_error(error.into()))
                };
                let samples = open()?.read_up_to(max_samples);
                let samples = samples.map_err(|error| to_python_error(error.into()))?;
                if samples.len() <= max_samples {
                    return Ok(LoadedRecording::Short(Audio { samples, sample_rate: rate }));
                }
                // The file is read again instead of being kept in memory.
                drop(samples);
                let transcription = self.transcribe_long_file(open()?, rate);
                let transcription = transcription.map_err(|error| match error {
                    // These errors contain the path.
                    error @ recognizer::Error::Model(model::Error::Speech(_)) => to_python_error(error),
                    error => named_error(&path.display().to_string(), error),
                });
                Ok(LoadedRecording::Long(Box::new(transcription?)))
            }
        }
    }

    /// Converts samples to the model's rate.
    ///
    /// # Errors
    /// `ValueError` for another rate that is not converted.
    fn with_model_rate(&self, name: &str, audio: Audio) -> PyResult<Audio> {
        let rate = self.recognizer.model().config().input.features.sample_rate;
        if audio.sample_rate == rate {
            return Ok(audio);
        }
        expect_resampling(self.recognizer, audio.sample_rate)?;
        speech::resample(&audio, rate).map_err(|error| named_error(name, error.into()))
    }

    /// Transcribes the samples of a long recording in parts.
    fn transcribe_long(&self, audio: &Audio) -> recognizer::Result<Transcription> {
        let (recognizer, window) = (self.recognizer, self.window);
        let chunks = audio.samples.chunks(SAMPLES_PER_CHUNK).map(|chunk| Ok(chunk.to_vec()));
        self.cover(audio, recognizer.transcribe_chunks(chunks, window)?)
    }

    /// Transcribes a long file in parts; the coverage needs all of its samples in memory.
    fn transcribe_long_file(
        &self,
        mut chunks: AudioChunks,
        sample_rate: u32,
    ) -> recognizer::Result<Transcription> {
        if self.coverage.is_none() {
            return self.recognizer.transcribe_chunks(chunks, self.window);
        }
        let samples = chunks.read_up_to(usize::MAX)?;
        self.transcribe_long(&Audio { samples, sample_rate })
    }
}

/// Copies samples of float32, float64 or int16 as numbers from -1 to 1.
///
/// `name` is that of the recording in errors.
///
/// # Errors
/// `TypeError` and `ValueError` for other arrays.
pub fn read_samples(name: &str, array: &Bound<PyAny>) -> PyResult<Vec<f32>> {
    let array = Borrowed::new("samples", array, 1)?;
    let samples: Vec<f32> = match array.dtype() {
        DLDataType::F32 => array.elements::<f32>()?.to_vec(),
        DLDataType::F64 => array.elements::<f64>()?.iter().map(|&sample| sample as f32).collect(),
        DLDataType::I16 => {
            array.elements::<i16>()?.iter().map(|&sample| f32::from(sample) * INT16_STEP).collect()
        }
        _ => return Err(array.dtype_error("float32, float64 or int16")),
    };
    speech::check_samples(0, &samples).map_err(|error| named_error(name, error.into()))?;
    Ok(samples)
}

/// Fails for another sample rate unless the recognizer resamples.
///
/// # Errors
/// `ValueError` with both rates.
pub fn expect_resampling(recognizer: &Recognizer, found: u32) -> PyResult<()> {
    if recognizer.conversion().resample {
        return Ok(());
    }
    let expected = recognizer.model().config().input.features.sample_rate;
    Err(PyValueError::new_err(format!(
        "sample_rate: expected {expected}, that of the model, found {found}; resample=True converts it"
    )))
}
