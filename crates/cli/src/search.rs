//! Command-line arguments of decoding: beam, language models, phrases, confidence.
//!
//! `evaluate` and `transcribe` have them; [`SearchArguments::apply`] sets a recognizer's search.
use std::path::PathBuf;

use decoding::{ConfidenceAggregation, ConfidenceMeasure, DEFAULT_PHRASE_SCORE};
use recognizer::{BeamSearchKind, NgramUnits, Recognizer, SearchSettings, TextSource};

use crate::error::{Error, Result};
use crate::numbers;
use crate::printing::warn_each;

/// Maximum of `--beam`.
const MAX_BEAM_WIDTH: usize = 10_000;
/// Maximum of `--max-symbols`.
const MAX_SYMBOLS: usize = 1000;

/// Arguments of a search.
#[derive(clap::Args)]
#[command(next_help_heading = "Search", group = clap::ArgGroup::new("ngrams").args(["lm", "minus_lm"]).multiple(true))]
pub(crate) struct SearchArguments {
    /// Set the beam width: the number of hypotheses; 1 is greedy search, the fastest. In a
    /// recognition lattice, 1 finds the best path, and more find the label sequence with the
    /// largest sum over its alignments
    #[arg(
        long,
        value_name = "WIDTH",
        default_value_t = 1,
        value_parser = numbers::within("expected a number of hypotheses, from 1 to 10000", 1..=MAX_BEAM_WIDTH)
    )]
    beam: usize,
    /// With --beam: select the algorithm: modified (k2's, one label per frame), malsd (NeMo's
    /// batched search, supports durations), alsd or maes [default: malsd for models with
    /// durations, else modified]
    #[arg(long, value_name = "KIND")]
    beam_search: Option<BeamSearchKind>,
    /// Search with the auxiliary CTC head instead of the joint network; CTC models
    /// (loss.kind = "ctc") have no other search
    #[arg(long, conflicts_with_all = ["beam_search", "internal_lm"])]
    ctc: bool,
    /// Limit the labels per frame (greedy search and malsd) [default: 8]
    #[arg(
        long,
        value_name = "N",
        value_parser = numbers::within("expected a number of labels, from 1 to 1000", 1..=MAX_SYMBOLS)
    )]
    max_symbols: Option<usize>,
    /// With --beam: subtract this penalty from the log-probability of the blank; a positive value
    /// reduces deletions
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = numbers::weight)]
    blank_penalty: f32,
    /// With --beam: divide the scores of the joint network by this temperature
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = numbers::temperature)]
    temperature: f32,
    /// With --beam: rank hypotheses by log-probability instead of log-probability per label
    #[arg(long)]
    by_sum: bool,
    /// With --beam: return the N best texts, at most the beam width. --format json and --hypotheses
    /// contain them, and `evaluate` prints the oracle error rate of the list
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = numbers::within("expected a number of texts, at least 1", 1..=usize::MAX)
    )]
    nbest: usize,
    /// With --beam: add the prefix score of the auxiliary CTC head with this weight, usually 0.3;
    /// not for streaming
    #[arg(long, value_name = "W", default_value_t = 0.0, value_parser = numbers::ctc_weight)]
    ctc_weight: f32,
    /// Fuse an n-gram language model (ARPA) of words or tokens; `panda lm` estimates one
    #[arg(long, value_name = "ARPA")]
    lm: Option<PathBuf>,
    /// Weight of the scores of --lm
    #[arg(long, value_name = "W", default_value_t = 0.2, requires = "lm", value_parser = numbers::weight)]
    lm_weight: f32,
    /// Add this score per word, against deletions caused by a language model; in greedy search it
    /// changes the choice among labels, not the choice between labels and blank
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = numbers::weight)]
    word_bonus: f32,
    /// Subtract the scores of a second n-gram (ARPA): an estimate of the language model that the
    /// network learned from its training texts (density ratio, LODR)
    #[arg(long, value_name = "ARPA")]
    minus_lm: Option<PathBuf>,
    /// Weight of the scores of --minus-lm
    #[arg(
        long,
        value_name = "W",
        default_value_t = 0.2,
        requires = "minus_lm",
        value_parser = numbers::weight
    )]
    minus_lm_weight: f32,
    /// Units of the n-grams: auto, words, tokens
    #[arg(long, value_name = "UNITS", default_value = "auto", requires = "ngrams")]
    lm_units: NgramUnits,
    /// Add this score per character of an unknown word, besides `<unk>`; special words are exempt
    #[arg(
        long,
        value_name = "X",
        default_value_t = -2.0,
        requires = "ngrams",
        value_parser = numbers::weight
    )]
    unknown_character: f32,
    /// Subtract the internal language model with this weight; needs a factored blank
    #[arg(long, value_name = "W", default_value_t = 0.0, value_parser = numbers::weight)]
    internal_lm: f32,
    /// Boost the phrases of a file: one per line, optionally followed by a tab and its score; a
    /// phrase matches whole words
    #[arg(long, value_name = "FILE")]
    phrases: Option<PathBuf>,
    /// Score of phrases without a score: a natural logarithm, spread over the tokens of the phrase
    #[arg(
        long,
        value_name = "X",
        default_value_t = DEFAULT_PHRASE_SCORE,
        requires = "phrases",
        value_parser = numbers::phrase_score
    )]
    phrase_score: f32,
    /// Emit only tokens of these Unicode scripts, such as latin,greek. Characters that all scripts
    /// share, such as digits and punctuation, are always allowed, and so are special words
    #[arg(long, value_name = "SCRIPTS", value_delimiter = ',')]
    allow_script: Vec<String>,
    /// Emit only tokens of the characters in this file. Those of --allow-script and those that all
    /// scripts share are allowed as well
    #[arg(long, value_name = "FILE")]
    allow_characters: Option<PathBuf>,
    /// Never emit the tokens in this file, one per line
    #[arg(long, value_name = "FILE")]
    forbid_tokens: Option<PathBuf>,
    /// Select the confidence measure of greedy search: max-prob, gibbs-lin, gibbs-exp,
    /// tsallis-lin, tsallis-exp, renyi-lin or renyi-exp; other searches write posteriors
    /// [default: max-prob]
    #[arg(long, value_name = "MEASURE")]
    confidence: Option<ConfidenceMeasure>,
    /// Exponent of the confidence measure; below 1, unlikely labels count more; the entropy
    /// measures usually take 0.33 [default: 1]
    #[arg(long, value_name = "A", value_parser = numbers::exponent)]
    confidence_exponent: Option<f64>,
    /// Aggregate token confidences to word confidences by min, mean, max or product
    #[arg(long, value_name = "HOW", default_value = "min")]
    word_confidence: ConfidenceAggregation,
}

impl SearchArguments {
    /// Sets the search of a recognizer and prints warnings.
    pub(crate) fn apply(&self, recognizer: Recognizer) -> Result<Recognizer> {
        let (recognizer, warnings) = self.settings().apply(recognizer).map_err(name_arguments)?;
        warn_each(warnings);
        Ok(recognizer)
    }

    /// Returns the settings of the search.
    fn settings(&self) -> SearchSettings {
        let source = |path: &Option<PathBuf>| path.clone().map(TextSource::File);
        SearchSettings {
            beam: self.beam,
            beam_search: self.beam_search,
            ctc: self.ctc,
            max_symbols: self.max_symbols,
            blank_penalty: self.blank_penalty,
            temperature: self.temperature,
            by_sum: self.by_sum,
            nbest: self.nbest,
            ctc_weight: self.ctc_weight,
            lm: self.lm.clone(),
            lm_weight: self.lm_weight,
            minus_lm: self.minus_lm.clone(),
            minus_lm_weight: self.minus_lm_weight,
            lm_units: self.lm_units,
            unknown_character: self.unknown_character,
            word_bonus: self.word_bonus,
            internal_lm: self.internal_lm,
            phrases: source(&self.phrases),
            phrase_score: self.phrase_score,
            allow_script: self.allow_script.clone(),
            allow_characters: source(&self.allow_characters),
            forbid_tokens: source(&self.forbid_tokens),
            confidence: self.confidence,
            confidence_exponent: self.confidence_exponent,
            word_confidence: self.word_confidence,
        }
    }

    /// Returns the files that the search reads.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let files = [&self.lm, &self.minus_lm, &self.phrases, &self.allow_characters, &self.forbid_tokens];
        files.into_iter().flatten()
    }

    /// Fails for options that streaming does not support.
    pub(crate) fn check_streaming(&self) -> Result<()> {
        let given = [
            ("--nbest", self.nbest != 1),
            ("--ctc", self.ctc),
            ("--ctc-weight", self.ctc_weight != 0.0),
            ("--beam-search alsd", self.beam_search == Some(BeamSearchKind::Alsd)),
            ("--beam-search malsd", self.beam_search == Some(BeamSearchKind::Malsd)),
        ];
        match given.into_iter().find_map(|(argument, is_given)| is_given.then_some(argument)) {
            None => Ok(()),
            Some(argument) => Err(Error::Unsupported {
                argument,
                expected: "whole recordings",
                found: "streaming audio (--stream, or -)",
            }),
        }
    }
}

/// Replaces the names of settings in an error by those of arguments.
fn name_arguments(error: recognizer::Error) -> Error {
    use recognizer::Error::{TokenOptions, UnsupportedOption};
    let arguments = |options: &str| {
        let names: Vec<String> =
            options.split(", ").map(|option| format!("--{}", option.replace('_', "-"))).collect();
        names.join(", ")
    };
    match error {
        UnsupportedOption { options, expected, found } => {
            Error::SearchArgument { arguments: arguments(options), expected, found }
        }
        TokenOptions { options, source } => {
            Error::TokenArguments { arguments: arguments(options), source: *source }
        }
        error => error.into(),
    }
}
