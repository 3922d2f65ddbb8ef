//! Options of a recognizer, which are those of `panda transcribe`.
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use decoding::{
    BeamKind, BeamOptions, ClassScores, Confidence, ConfidenceAggregation, ConfidenceMeasure, CtcBeamOptions,
    Fusion, GreedyOptions, PhraseBooster, PhraseList, Scorer, add_unmarked_variants,
    ngram::{Ngram, NgramTable, OutOfVocabulary, WordNgram, WordNgramOptions},
    read_phrases,
};
use model::encoders::NumberFormat;
use pyo3::{PyErr, PyResult, exceptions::PyValueError};
use recognizer::{LatticeSearch, Recognizer, SearchConfig, WindowConfig, conversion_warnings};
use serde::Deserialize;
use speech::{Channel, Conversion, Tokenizer, TokenizerKind};

use crate::recognizer::to_python_error;

/// Default of the labels per frame of greedy search and mALSD.
const DEFAULT_MAX_SYMBOLS: usize = 8;
/// Largest number of skipped phrases that a warning names.
const MAX_NAMED_PHRASES: usize = 20;

/// Options of a recognizer; `panda_rnnt.Recognizer.from_checkpoint` describes and checks them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecognizerOptions {
    beam: usize,
    beam_search: Option<BeamSearchKind>,
    ctc: bool,
    max_symbols: Option<usize>,
    blank_penalty: f32,
    temperature: f32,
    by_sum: bool,
    nbest: usize,
    ctc_weight: f32,
    lm_weight: f32,
    minus_lm_weight: f32,
    lm_units: NgramUnits,
    unknown_character: f32,
    word_bonus: f32,
    internal_lm: f32,
    phrase_score: f32,
    confidence: Option<ConfidenceMeasure>,
    confidence_exponent: Option<f64>,
    word_confidence: ConfidenceAggregation,
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

/// Files and texts that a search reads.
pub struct FusionSources {
    /// ARPA file of a language model.
    pub lm: Option<PathBuf>,
    /// ARPA file of a language model that is subtracted.
    pub minus_lm: Option<PathBuf>,
    /// Lines with a phrase and an optional score after a tab.
    pub phrases: Option<Vec<u8>>,
}

/// Algorithm of a beam search.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BeamSearchKind {
    Modified,
    Malsd,
    Alsd,
    Maes,
}

/// Units of an n-gram.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NgramUnits {
    Auto,
    Words,
    Tokens,
}

/// The search that a model and its options select.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SelectedSearch {
    Greedy,
    Beam(BeamSearchKind),
    Ctc,
    Lattice,
}

impl SelectedSearch {
    fn name(self) -> &'static str {
        match self {
            SelectedSearch::Greedy => "greedy search",
            SelectedSearch::Beam(BeamSearchKind::Malsd) => "the beam search 'malsd'",
            SelectedSearch::Beam(_) => "another beam search",
            SelectedSearch::Ctc => "a search with the CTC head",
            SelectedSearch::Lattice => "a search in a recognition lattice",
        }
    }
}

impl RecognizerOptions {
    /// Reads options.
    ///
    /// # Errors
    /// `ValueError` for text of another form, and an overlap that is not less than the window.
    pub fn parse(text: &str) -> PyResult<Self> {
        let options: Self =
            serde_json::from_str(text).map_err(|error| PyValueError::new_err(format!("options: {error}")))?;
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
        let max_overlap = WindowConfig::default().overlap;
        let overlap = self.overlap.unwrap_or((self.window / 4.0).min(max_overlap));
        WindowConfig { seconds: self.window, overlap }
    }

    /// Sets the options of a recognizer; returns warnings about phrases and n-grams as well.
    ///
    /// # Errors
    /// `ValueError` for options that the model or the search does not support, and for files with
    /// other contents; `OSError` for files that cannot be read.
    pub fn apply(
        &self,
        recognizer: Recognizer,
        sources: &FusionSources,
    ) -> PyResult<(Recognizer, Vec<String>)> {
        let channel = self.channel.map_or(Channel::Mix, Channel::Number);
        let recognizer = recognizer
            .with_conversion(Conversion { channel, resample: self.resample })
            .with_special_omitted(self.omit_special)
            .with_aggregate(self.word_confidence)
            .with_silence(self.silence)
            .map_err(to_python_error)?;
        let mut warnings = Vec::new();
        let fusion = self.load_fusion(&recognizer, sources, &mut warnings)?;
        let search = self.search(&recognizer, fusion)?;
        Ok((recognizer.with_search(search).map_err(to_python_error)?, warnings))
    }

    /// Returns the search with its options.
    fn search(&self, recognizer: &Recognizer, fusion: Vec<Fusion>) -> PyResult<SearchConfig> {
        let selected = self.select(recognizer);
        self.check_supported(selected, !fusion.is_empty())?;
        let max_symbols = self.max_symbols.unwrap_or(DEFAULT_MAX_SYMBOLS);
        Ok(match selected {
            SelectedSearch::Lattice => SearchConfig::Lattice(match self.beam {
                1 => LatticeSearch::BestPath,
                beam => LatticeSearch::Sum { beam },
            }),
            SelectedSearch::Ctc => {
                let needs_beam = self.beam > 1 || !fusion.is_empty();
                SearchConfig::Ctc(needs_beam.then(|| CtcBeamOptions {
                    width: self.beam,
                    nbest: self.nbest,
                    fusion,
                    ..CtcBeamOptions::default()
                }))
            }
            SelectedSearch::Greedy => SearchConfig::Greedy(GreedyOptions {
                max_symbols: Some(max_symbols),
                confidence: Some(Confidence {
                    measure: self.confidence.unwrap_or(ConfidenceMeasure::MaxProb),
                    exponent: self.confidence_exponent.unwrap_or(1.0),
                }),
                fusion,
                internal_lm: self.internal_lm,
                ..GreedyOptions::default()
            }),
            SelectedSearch::Beam(kind) => {
                let beam = BeamOptions {
                    kind: match kind {
                        BeamSearchKind::Modified => BeamKind::Modified,
                        BeamSearchKind::Malsd => BeamKind::Malsd { max_symbols },
                        BeamSearchKind::Alsd => BeamKind::Alsd { max_labels: None },
                        BeamSearchKind::Maes => {
                            BeamKind::Maes { expansions: 2, beta: 2, gamma: 2.3, prefix: 1 }
                        }
                    },
                    width: self.beam,
                    nbest: self.nbest,
                    normalize_by_length: !self.by_sum,
                    blank_penalty: self.blank_penalty,
                    temperature: self.temperature,
                    fusion,
                    internal_lm: self.internal_lm,
                    ..BeamOptions::default()
                };
                match self.ctc_weight {
                    0.0 => SearchConfig::Beam(beam),
                    weight => SearchConfig::BeamWithCtc { beam, weight },
                }
            }
        })
    }

    /// Returns the kind of search of a model.
    fn select(&self, recognizer: &Recognizer) -> SelectedSearch {
        if self.ctc || recognizer.model().is_ctc() {
            return SelectedSearch::Ctc;
        }
        if recognizer.model().lattice().is_some() {
            return SelectedSearch::Lattice;
        }
        match self.beam_search {
            Some(kind) => SelectedSearch::Beam(kind),
            None if self.beam == 1 => SelectedSearch::Greedy,
            None if recognizer.model().durations().is_empty() => {
                SelectedSearch::Beam(BeamSearchKind::Modified)
            }
            None => SelectedSearch::Beam(BeamSearchKind::Malsd),
        }
    }

    /// Fails for an option that the search does not use.
    fn check_supported(&self, search: SelectedSearch, has_fusion: bool) -> PyResult<()> {
        let is_greedy = search == SelectedSearch::Greedy;
        let is_beam = matches!(search, SelectedSearch::Beam(_));
        let is_malsd = search == SelectedSearch::Beam(BeamSearchKind::Malsd);
        let is_ctc = search == SelectedSearch::Ctc;
        let beam = "a beam search (beam of 2 or more)";
        let joint_beam = "a beam search with the joint network (beam of 2 or more)";
        let joint = "a search with the joint network";
        // Name, whether it was given, the searches that use it, whether this one does.
        let options = [
            ("nbest", self.nbest != 1, beam, is_beam || is_ctc && self.beam > 1),
            ("ctc_weight", self.ctc_weight != 0.0, joint_beam, is_beam),
            ("blank_penalty", self.blank_penalty != 0.0, joint_beam, is_beam),
            ("temperature", self.temperature != 1.0, joint_beam, is_beam),
            ("by_sum", self.by_sum, beam, is_beam || is_ctc),
            ("beam_search", self.beam_search.is_some(), joint_beam, is_beam),
            ("internal_lm", self.internal_lm != 0.0, joint, is_greedy || is_beam),
            (
                "max_symbols",
                self.max_symbols.is_some(),
                "greedy search or beam_search='malsd'",
                is_greedy || is_malsd,
            ),
            ("confidence", self.confidence.is_some(), "greedy search", is_greedy),
            ("confidence_exponent", self.confidence_exponent.is_some(), "greedy search", is_greedy),
            (
                "lm, minus_lm, word_bonus, phrases",
                has_fusion,
                "a transducer or a CTC head",
                search != SelectedSearch::Lattice,
            ),
        ];
        match options.into_iter().find(|&(_, is_given, _, is_supported)| is_given && !is_supported) {
            None => Ok(()),
            Some((option, _, expected, _)) => {
                let search = search.name();
                Err(PyValueError::new_err(format!("{option}: expected {expected}, found {search}")))
            }
        }
    }

    /// Returns the scorers of a search: language models, word bonus, phrases.
    fn load_fusion(
        &self,
        recognizer: &Recognizer,
        sources: &FusionSources,
        warnings: &mut Vec<String>,
    ) -> PyResult<Vec<Fusion>> {
        let tokenizer = recognizer.tokenizer();
        let mut fusion = Vec::new();
        for (path, weight) in [(&sources.lm, self.lm_weight), (&sources.minus_lm, -self.minus_lm_weight)] {
            if let Some(path) = path {
                fusion.push(Fusion { scorer: self.read_ngram(path, recognizer, warnings)?, weight });
            }
        }
        if self.word_bonus != 0.0 {
            let bonus = ClassScores::new(recognizer.word_starts().into_iter().map(f32::from).collect());
            let bonus = bonus.map_err(|error| to_python_error(error.into()))?;
            fusion.push(Fusion { scorer: Arc::new(bonus), weight: self.word_bonus });
        }
        if let Some(bytes) = &sources.phrases {
            warn_conversions("phrases", bytes, tokenizer, warnings);
            let encode = |text: &str| tokenizer.encode(text).map_err(|error| error.to_string());
            let to_error = |error: decoding::PhraseError| PyValueError::new_err(error.to_string());
            let list = read_phrases(bytes, self.phrase_score, encode).map_err(to_error)?;
            warnings.extend(skipped_warning(&list));
            let mut phrases = list.phrases;
            add_unmarked_variants(&mut phrases, tokenizer.tokens());
            let booster = PhraseBooster::with_boundaries(&phrases, &recognizer.word_boundaries(), 1.0);
            fusion.push(Fusion { scorer: Arc::new(booster.map_err(to_error)?), weight: 1.0 });
        }
        Ok(fusion)
    }

    /// Reads an n-gram of words or of tokens.
    fn read_ngram(
        &self,
        path: &Path,
        recognizer: &Recognizer,
        warnings: &mut Vec<String>,
    ) -> PyResult<Arc<dyn Scorer>> {
        let to_error = |error: decoding::ngram::Error| -> PyErr {
            PyValueError::new_err(format!("{}: {error}", path.display()))
        };
        let bytes = speech::files::read_input(path)
            .map_err(|error| to_python_error(model::Error::io(path, "read the file")(error).into()))?;
        let tokenizer = recognizer.tokenizer();
        // The n-gram must have the Unicode form of the model's texts.
        let normalized = std::str::from_utf8(&bytes).map(|text| tokenizer.unicode_form().apply(text));
        if normalized.as_ref().is_ok_and(|text| text.as_bytes() != bytes) {
            warn_conversions(&path.display().to_string(), &bytes, tokenizer, warnings);
        }
        let text = normalized.as_ref().map_or(&bytes[..], |text| text.as_bytes());
        let table = NgramTable::read(text).map_err(to_error)?;
        // Names of the classes; blanks have none.
        let mut names = tokenizer.tokens().to_vec();
        names.resize(recognizer.model().classes(), String::new());
        let has_only_tokens = || Ngram::new(&table, &names, OutOfVocabulary::Reject).is_ok();
        let is_of_tokens = match self.lm_units {
            NgramUnits::Tokens => true,
            _ if tokenizer.kind() == TokenizerKind::Words => true,
            NgramUnits::Words => false,
            NgramUnits::Auto => has_only_tokens(),
        };
        if is_of_tokens {
            return Ok(Arc::new(Ngram::new(&table, &names, OutOfVocabulary::Ignore).map_err(to_error)?));
        }
        let options =
            WordNgramOptions { unknown_character: self.unknown_character, ..WordNgramOptions::default() };
        let special: Vec<u32> = (0..names.len() as u32).filter(|&id| tokenizer.is_special(id)).collect();
        let words = WordNgram::with_special_words(&table, &names, &special, options);
        Ok(Arc::new(words.map_err(to_error)?))
    }
}

/// Returns a warning about phrases that the tokenizer cannot encode.
fn skipped_warning(list: &PhraseList) -> Option<String> {
    let first = list.skipped.first()?;
    let named = list.skipped.iter().take(MAX_NAMED_PHRASES);
    let lines: Vec<String> = named.map(|phrase| phrase.line.to_string()).collect();
    let (skipped, total) = (list.skipped.len(), list.skipped.len() + list.phrases.len());
    Some(format!(
        "phrases: {skipped} of {total} are skipped, as the model has no tokens for them: lines {}{}; line {}: {}",
        lines.join(", "),
        if skipped > MAX_NAMED_PHRASES { " and others" } else { "" },
        first.line,
        first.reason
    ))
}

/// Adds warnings about lines that the tokenizer converts.
fn warn_conversions(name: &str, bytes: &[u8], tokenizer: &Tokenizer, warnings: &mut Vec<String>) {
    let lines = std::str::from_utf8(bytes).unwrap_or_default().lines();
    warnings.extend(conversion_warnings(name, lines, tokenizer));
}
