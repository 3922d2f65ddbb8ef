//! `SearchSettings`: options of a search and the files that it reads.
//!
//! `panda transcribe`, `panda evaluate` and the Python package have these options;
//! [`SearchSettings::apply`] sets the search of a recognizer.
mod fusion;
mod language_lock;
mod text_source;

use std::path::PathBuf;
use std::str::FromStr;

use decoding::{
    BeamKind, BeamOptions, Confidence, ConfidenceAggregation, ConfidenceMeasure, CtcBeamOptions,
    DEFAULT_PHRASE_SCORE, Fusion, GreedyOptions,
};
use serde::Deserialize;

pub use text_source::TextSource;

use crate::recognizer::Recognizer;
use crate::search_config::{LatticeSearch, SearchConfig};
use crate::{Error, Result};

/// Default of the labels per frame of greedy search and mALSD.
const DEFAULT_MAX_SYMBOLS: usize = 8;

/// Options of a search; the default is the greedy search of a model.
///
/// An option that the selected search does not use is an error. Deserialization omits files and
/// texts: they are set later.
///
/// ```no_run
/// use recognizer::{Recognizer, SearchSettings};
///
/// let recognizer = Recognizer::load("model.safetensors".as_ref())?;
/// let lm = Some("words.arpa".into());
/// let settings = SearchSettings { beam: 4, lm, ..SearchSettings::default() };
/// let (recognizer, warnings) = settings.apply(recognizer)?;
/// # Ok::<(), recognizer::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchSettings {
    /// Number of hypotheses; 1 is greedy search, or the best path of a recognition lattice.
    pub beam: usize,
    /// Algorithm of the beam search; by default the model determines it.
    pub beam_search: Option<BeamSearchKind>,
    /// Whether only the CTC head is used; CTC models have no other search.
    pub ctc: bool,
    /// Largest number of labels per frame in greedy search and mALSD; 8 by default.
    pub max_symbols: Option<usize>,
    /// Subtracted from the log-probability of the blank in a beam search.
    pub blank_penalty: f32,
    /// Divides the scores of the joint network in a beam search.
    pub temperature: f32,
    /// Ranks hypotheses by log-probability instead of log-probability per label.
    pub by_sum: bool,
    /// Number of texts of a beam search.
    pub nbest: usize,
    /// Weight of the CTC head's prefix scores in a beam search.
    pub ctc_weight: f32,
    /// ARPA file of a language model.
    #[serde(skip)]
    pub lm: Option<PathBuf>,
    /// Weight of `lm`.
    pub lm_weight: f32,
    /// ARPA file of a language model that is subtracted (density ratio).
    #[serde(skip)]
    pub minus_lm: Option<PathBuf>,
    /// Weight of `minus_lm`.
    pub minus_lm_weight: f32,
    /// Units of the n-grams.
    pub lm_units: NgramUnits,
    /// Score per character of a word that an n-gram does not have.
    pub unknown_character: f32,
    /// Score per word.
    pub word_bonus: f32,
    /// Weight of the subtracted internal language model; needs a factored blank.
    pub internal_lm: f32,
    /// Phrases to boost, one per line.
    ///
    /// A tab and a score may follow each.
    #[serde(skip)]
    pub phrases: Option<TextSource>,
    /// Score of phrases without a score.
    pub phrase_score: f32,
    /// Unicode scripts of the allowed tokens; see [`TokenFilter`](crate::TokenFilter).
    pub allow_script: Vec<String>,
    /// Characters of the allowed tokens; white space is ignored.
    #[serde(skip)]
    pub allow_characters: Option<TextSource>,
    /// Tokens that are never emitted, one per line.
    #[serde(skip)]
    pub forbid_tokens: Option<TextSource>,
    /// Confidence measure of greedy search; the largest probability by default.
    pub confidence: Option<ConfidenceMeasure>,
    /// Exponent of the confidence measure; 1 by default.
    pub confidence_exponent: Option<f64>,
    /// Combines token confidences to that of a word.
    pub word_confidence: ConfidenceAggregation,
}

impl Default for SearchSettings {
    fn default() -> Self {
        SearchSettings {
            beam: 1,
            beam_search: None,
            ctc: false,
            max_symbols: None,
            blank_penalty: 0.0,
            temperature: 1.0,
            by_sum: false,
            nbest: 1,
            ctc_weight: 0.0,
            lm: None,
            lm_weight: 0.2,
            minus_lm: None,
            minus_lm_weight: 0.2,
            lm_units: NgramUnits::Auto,
            unknown_character: -2.0,
            word_bonus: 0.0,
            internal_lm: 0.0,
            phrases: None,
            phrase_score: DEFAULT_PHRASE_SCORE,
            allow_script: Vec::new(),
            allow_characters: None,
            forbid_tokens: None,
            confidence: None,
            confidence_exponent: None,
            word_confidence: ConfidenceAggregation::default(),
        }
    }
}

/// Algorithm of a beam search; [`BeamKind`] describes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BeamSearchKind {
    /// At most one label per frame; the default without durations.
    Modified,
    /// Step by step; the default for models with durations.
    Malsd,
    /// By the number of labels and frames.
    Alsd,
    /// With an adaptive number of expansions.
    Maes,
}

impl FromStr for BeamSearchKind {
    type Err = &'static str;

    fn from_str(name: &str) -> std::result::Result<Self, Self::Err> {
        match name {
            "modified" => Ok(BeamSearchKind::Modified),
            "malsd" => Ok(BeamSearchKind::Malsd),
            "alsd" => Ok(BeamSearchKind::Alsd),
            "maes" => Ok(BeamSearchKind::Maes),
            _ => Err("expected one of modified, malsd, alsd, maes"),
        }
    }
}

/// Units of an n-gram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NgramUnits {
    /// Tokens if all words of the n-gram are tokens, otherwise words.
    #[default]
    Auto,
    /// Words.
    Words,
    /// Tokens.
    Tokens,
}

impl FromStr for NgramUnits {
    type Err = &'static str;

    fn from_str(name: &str) -> std::result::Result<Self, Self::Err> {
        match name {
            "auto" => Ok(NgramUnits::Auto),
            "words" => Ok(NgramUnits::Words),
            "tokens" => Ok(NgramUnits::Tokens),
            _ => Err("expected one of auto, words, tokens"),
        }
    }
}

/// The search that a model and its settings select.
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
            SelectedSearch::Beam(BeamSearchKind::Malsd) => "the beam search malsd",
            SelectedSearch::Beam(_) => "another beam search",
            SelectedSearch::Ctc => "a search with the CTC head",
            SelectedSearch::Lattice => "a search in a recognition lattice",
        }
    }
}

impl SearchSettings {
    /// Sets the search and the allowed tokens of a recognizer.
    ///
    /// Returns warnings about language models and phrases as well.
    ///
    /// # Errors
    /// [`Error::UnsupportedOption`] for an option that the search does not use;
    /// [`Error::TokenOptions`] for a language lock that the tokens do not match; [`Error::Ngram`],
    /// [`Error::Phrases`] and [`model::Error::Io`] for files; those of
    /// [`Recognizer::with_search`].
    pub fn apply(&self, recognizer: Recognizer) -> Result<(Recognizer, Vec<String>)> {
        let recognizer = self.restrict_tokens(recognizer)?;
        let mut warnings = Vec::new();
        let fusion = self.load_fusion(&recognizer, &mut warnings)?;
        let search = self.search_config(&recognizer, fusion)?;
        Ok((recognizer.with_search(search)?.with_aggregate(self.word_confidence), warnings))
    }

    /// Returns the search with its options.
    fn search_config(&self, recognizer: &Recognizer, fusion: Vec<Fusion>) -> Result<SearchConfig> {
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
    fn check_supported(&self, search: SelectedSearch, has_fusion: bool) -> Result<()> {
        let is_greedy = search == SelectedSearch::Greedy;
        let is_beam = matches!(search, SelectedSearch::Beam(_));
        let is_malsd = search == SelectedSearch::Beam(BeamSearchKind::Malsd);
        let is_ctc = search == SelectedSearch::Ctc;
        let beam = "a beam search (a beam of 2 or more)";
        let joint_beam = "a beam search with the joint network (a beam of 2 or more)";
        let joint = "a search with the joint network";
        // Names, whether one was given, whether the search uses them, and the searches that do.
        let options = [
            ("beam_search", self.beam_search.is_some(), is_beam, joint_beam),
            ("internal_lm", self.internal_lm != 0.0, is_greedy || is_beam, joint),
            ("nbest", self.nbest != 1, is_beam || is_ctc && self.beam > 1, beam),
            ("ctc_weight", self.ctc_weight != 0.0, is_beam, joint_beam),
            ("blank_penalty", self.blank_penalty != 0.0, is_beam, joint_beam),
            ("temperature", self.temperature != 1.0, is_beam, joint_beam),
            // The default of a search with the CTC head.
            ("by_sum", self.by_sum, is_beam || is_ctc, joint_beam),
            (
                "max_symbols",
                self.max_symbols.is_some(),
                is_greedy || is_malsd,
                "greedy search or the beam search malsd",
            ),
            ("confidence", self.confidence.is_some(), is_greedy, "greedy search"),
            ("confidence_exponent", self.confidence_exponent.is_some(), is_greedy, "greedy search"),
            (
                "lm, minus_lm, word_bonus, phrases",
                has_fusion,
                search != SelectedSearch::Lattice,
                "a transducer or a CTC head",
            ),
        ];
        match options.into_iter().find(|&(_, is_given, is_supported, _)| is_given && !is_supported) {
            None => Ok(()),
            Some((options, _, _, expected)) => {
                Err(Error::UnsupportedOption { options, expected, found: search.name() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_a_search_does_not_use_are_errors() {
        let default = SearchSettings::default;
        let beam = SelectedSearch::Beam(BeamSearchKind::Modified);
        let malsd = SelectedSearch::Beam(BeamSearchKind::Malsd);
        let (greedy, ctc, lattice) = (SelectedSearch::Greedy, SelectedSearch::Ctc, SelectedSearch::Lattice);
        // Settings, the searches that use them, and the option of the error.
        for (settings, searches, option) in [
            (default(), &[greedy, beam, malsd, ctc, lattice][..], ""),
            (SearchSettings { nbest: 2, ..default() }, &[beam, malsd], "nbest"),
            (SearchSettings { nbest: 2, beam: 2, ..default() }, &[beam, malsd, ctc], "nbest"),
            (SearchSettings { by_sum: true, ..default() }, &[beam, malsd, ctc], "by_sum"),
            (SearchSettings { temperature: 2.0, ..default() }, &[beam, malsd], "temperature"),
            (SearchSettings { internal_lm: 0.1, ..default() }, &[greedy, beam, malsd], "internal_lm"),
            (SearchSettings { max_symbols: Some(8), ..default() }, &[greedy, malsd], "max_symbols"),
            (
                SearchSettings { confidence_exponent: Some(1.0), ..default() },
                &[greedy],
                "confidence_exponent",
            ),
        ] {
            for search in [greedy, beam, malsd, ctc, lattice] {
                match settings.check_supported(search, false) {
                    Ok(()) => assert!(searches.contains(&search), "{settings:?} {search:?}"),
                    Err(Error::UnsupportedOption { options, found, .. }) => {
                        assert!(!searches.contains(&search), "{settings:?} {search:?}");
                        assert_eq!((options, found), (option, search.name()));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let error = default().check_supported(lattice, true).unwrap_err().to_string();
        let expected = "lm, minus_lm, word_bonus, phrases: expected a transducer or a CTC head, \
                        found a search in a recognition lattice";
        assert_eq!(error, expected);
    }
}
