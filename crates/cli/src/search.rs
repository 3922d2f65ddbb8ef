//! Command-line arguments of decoding: beam, language models, phrases, confidence.
//!
//! `evaluate` and `transcribe` have them; [`SearchArguments::apply`] sets a recognizer's search.
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use decoding::ngram::{Ngram, NgramTable, OutOfVocabulary, WordNgram, WordNgramOptions};
use decoding::{
    BeamKind, BeamOptions, ClassScores, Confidence, ConfidenceAggregation, ConfidenceMeasure, CtcBeamOptions,
    DEFAULT_PHRASE_SCORE, Fusion, GreedyOptions, PhraseBooster, PhraseList, Scorer, add_unmarked_variants,
    read_phrases,
};
use recognizer::{LatticeSearch, Recognizer, SearchConfig};
use speech::{Tokenizer, TokenizerKind};

use crate::error::{Error, Result};
use crate::numbers;
use crate::printing::{warn_each, warnln};
use crate::token_arguments::TokenArguments;

/// Maximum of `--beam`.
const MAX_BEAM_WIDTH: usize = 10_000;
/// Labels per frame without `--max-symbols`.
const DEFAULT_MAX_SYMBOLS: usize = 8;
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
    #[command(flatten)]
    tokens: TokenArguments,
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

/// Options that a search supports in addition to the common ones.
#[derive(Clone, Copy, Default)]
struct SupportedOptions {
    /// Name of the search in messages.
    search: &'static str,
    /// Options of beam search with the joint network.
    beam: bool,
    by_sum: bool,
    nbest: bool,
    internal_lm: bool,
    /// `--max-symbols`
    symbols: bool,
    /// Confidence measures.
    confidence: bool,
}

/// Algorithm of beam search.
#[derive(Debug, Clone, Copy, PartialEq)]
enum BeamSearchKind {
    Modified,
    Malsd,
    Alsd,
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
#[derive(Debug, Clone, Copy, PartialEq)]
enum NgramUnits {
    Auto,
    Words,
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

impl SearchArguments {
    /// Sets the search of a recognizer.
    pub(crate) fn apply(&self, recognizer: Recognizer) -> Result<Recognizer> {
        let recognizer = self.tokens.apply(recognizer)?;
        let max_symbols = self.max_symbols.unwrap_or(DEFAULT_MAX_SYMBOLS);
        let fusion = self.load_fusion(&recognizer)?;
        let search = if recognizer.model().lattice().is_some() && !self.ctc {
            self.lattice_search(!fusion.is_empty())?
        } else if self.ctc || recognizer.model().is_ctc() {
            // Greedy or beam search with the CTC head.
            let nbest = self.beam > 1;
            self.check_options(SupportedOptions {
                search: "a search with the CTC head",
                by_sum: true,
                nbest,
                ..SupportedOptions::default()
            })?;
            let beam = (self.beam > 1 || !fusion.is_empty()).then(|| CtcBeamOptions {
                width: self.beam,
                nbest: self.nbest,
                fusion,
                ..CtcBeamOptions::default()
            });
            SearchConfig::Ctc(beam)
        } else if self.beam == 1 && self.beam_search.is_none() {
            // Greedy search with the joint network.
            let greedy = SupportedOptions {
                search: "greedy search",
                internal_lm: true,
                symbols: true,
                confidence: true,
                ..SupportedOptions::default()
            };
            self.check_options(greedy)?;
            let measure = self.confidence.unwrap_or(ConfidenceMeasure::MaxProb);
            let exponent = self.confidence_exponent.unwrap_or(1.0);
            SearchConfig::Greedy(GreedyOptions {
                max_symbols: Some(max_symbols),
                confidence: Some(Confidence { measure, exponent }),
                fusion,
                internal_lm: self.internal_lm,
                ..GreedyOptions::default()
            })
        } else {
            // Beam search with the joint network, and CTC prefix scores if they have a weight.
            let has_durations = !recognizer.model().durations().is_empty();
            let kind = self.beam_search.unwrap_or(if has_durations {
                BeamSearchKind::Malsd
            } else {
                BeamSearchKind::Modified
            });
            let symbols = kind == BeamSearchKind::Malsd;
            self.check_options(SupportedOptions {
                search: "another beam search",
                beam: true,
                by_sum: true,
                nbest: true,
                internal_lm: true,
                symbols,
                ..SupportedOptions::default()
            })?;
            let beam = BeamOptions {
                kind: match kind {
                    BeamSearchKind::Modified => BeamKind::Modified,
                    BeamSearchKind::Malsd => BeamKind::Malsd { max_symbols },
                    BeamSearchKind::Alsd => BeamKind::Alsd { max_labels: None },
                    BeamSearchKind::Maes => BeamKind::Maes { expansions: 2, beta: 2, gamma: 2.3, prefix: 1 },
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
        };
        Ok(recognizer.with_search(search)?.with_aggregate(self.word_confidence))
    }

    /// Returns the files that the search reads.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.lm, &self.minus_lm, &self.phrases].into_iter().flatten().chain(self.tokens.files())
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

    /// Returns the first unsupported option and the searches that support it.
    fn first_unsupported(&self, supported: SupportedOptions) -> Option<(&'static str, &'static str)> {
        let joint = "a beam search with the joint network (--beam 2 or more)";
        let (beam, greedy) = ("a beam search (--beam 2 or more)", "greedy search");
        let options = [
            ("--beam-search", self.beam_search.is_some(), supported.beam, joint),
            (
                "--internal-lm",
                self.internal_lm != 0.0,
                supported.internal_lm,
                "a search with the joint network",
            ),
            ("--nbest", self.nbest != 1, supported.nbest, beam),
            ("--ctc-weight", self.ctc_weight != 0.0, supported.beam, joint),
            ("--blank-penalty", self.blank_penalty != 0.0, supported.beam, joint),
            ("--temperature", self.temperature != 1.0, supported.beam, joint),
            // The default of a search with the CTC head.
            ("--by-sum", self.by_sum, supported.by_sum, joint),
            (
                "--max-symbols",
                self.max_symbols.is_some(),
                supported.symbols,
                "greedy search or --beam-search malsd",
            ),
            ("--confidence", self.confidence.is_some(), supported.confidence, greedy),
            ("--confidence-exponent", self.confidence_exponent.is_some(), supported.confidence, greedy),
        ];
        let unsupported =
            options.into_iter().find(|&(_, is_given, is_supported, _)| is_given && !is_supported);
        unsupported.map(|(argument, _, _, expected)| (argument, expected))
    }

    /// Fails for options that the search does not support.
    fn check_options(&self, supported: SupportedOptions) -> Result<()> {
        match self.first_unsupported(supported) {
            None => Ok(()),
            Some((argument, expected)) => {
                Err(Error::Unsupported { argument, expected, found: supported.search })
            }
        }
    }

    /// Returns the search of a recognition lattice, which supports no fusion.
    fn lattice_search(&self, has_fusion: bool) -> Result<SearchConfig> {
        let given = [
            ("--lm, --minus-lm, --word-bonus, --phrases", has_fusion),
            ("--beam-search", self.beam_search.is_some()),
            ("--internal-lm", self.internal_lm != 0.0),
        ];
        let given = given.into_iter().find_map(|(argument, is_given)| is_given.then_some(argument));
        let unsupported = self.first_unsupported(SupportedOptions::default()).map(|(argument, _)| argument);
        if let Some(argument) = given.or(unsupported) {
            return Err(Error::LatticeSearch { argument });
        }
        Ok(SearchConfig::Lattice(match self.beam {
            1 => LatticeSearch::BestPath,
            beam => LatticeSearch::Sum { beam },
        }))
    }

    /// Returns the scorers to fuse: language models, word bonus, phrases.
    fn load_fusion(&self, recognizer: &Recognizer) -> Result<Vec<Fusion>> {
        let mut names = recognizer.tokenizer().tokens().to_vec();
        names.resize(recognizer.model().classes(), String::new());
        let mut fusion = Vec::new();
        // Language models; the second one is subtracted.
        for (path, weight) in [(&self.lm, self.lm_weight), (&self.minus_lm, -self.minus_lm_weight)] {
            if let Some(path) = path {
                let scorer = self.read_ngram(path, &names, recognizer.tokenizer())?;
                fusion.push(Fusion { scorer, weight });
            }
        }
        // Word bonus.
        if self.word_bonus != 0.0 {
            let bonus = ClassScores::new(recognizer.word_starts().into_iter().map(f32::from).collect())?;
            fusion.push(Fusion { scorer: Arc::new(bonus), weight: self.word_bonus });
        }
        // Phrases.
        if let Some(path) = &self.phrases {
            let bytes = read_file(path)?;
            warn_conversions(path, &bytes, recognizer.tokenizer());
            let encode = |text: &str| recognizer.tokenizer().encode(text).map_err(|error| error.to_string());
            let with_path = |source| Error::Phrases { path: path.clone(), source };
            let list = read_phrases(&bytes, self.phrase_score, encode).map_err(with_path)?;
            warn_skipped(path, &list);
            let mut phrases = list.phrases;
            add_unmarked_variants(&mut phrases, recognizer.tokenizer().tokens());
            let booster = PhraseBooster::with_boundaries(&phrases, &recognizer.word_boundaries(), 1.0)
                .map_err(with_path)?;
            fusion.push(Fusion { scorer: Arc::new(booster), weight: 1.0 });
        }
        Ok(fusion)
    }

    /// Reads an n-gram of words or of tokens.
    ///
    /// With `--lm-units auto` it is an n-gram of tokens if all of its words are tokens.
    fn read_ngram(&self, path: &Path, names: &[String], tokenizer: &Tokenizer) -> Result<Arc<dyn Scorer>> {
        let with_path = |source| Error::Arpa { path: path.to_owned(), source };
        let bytes = read_file(path)?;
        // The n-gram must have the Unicode form of the model's texts.
        let normalized = std::str::from_utf8(&bytes).map(|text| tokenizer.unicode_form().apply(text));
        if normalized.as_ref().is_ok_and(|text| text.as_bytes() != bytes) {
            warn_conversions(path, &bytes, tokenizer);
        }
        let text = normalized.as_ref().map_or(&bytes[..], |text| text.as_bytes());
        let table = NgramTable::read(text).map_err(with_path)?;
        // Words or tokens.
        let has_only_tokens = || Ngram::new(&table, names, OutOfVocabulary::Reject).is_ok();
        let is_of_tokens = match self.lm_units {
            NgramUnits::Tokens => true,
            _ if tokenizer.kind() == TokenizerKind::Words => true,
            NgramUnits::Words => false,
            NgramUnits::Auto => has_only_tokens(),
        };
        if is_of_tokens {
            return Ok(Arc::new(Ngram::new(&table, names, OutOfVocabulary::Ignore).map_err(with_path)?));
        }
        let options =
            WordNgramOptions { unknown_character: self.unknown_character, ..WordNgramOptions::default() };
        let special: Vec<u32> = (0..names.len() as u32).filter(|&id| tokenizer.is_special(id)).collect();
        let words = WordNgram::with_special_words(&table, names, &special, options);
        Ok(Arc::new(words.map_err(with_path)?))
    }
}

/// Reads a file of a command-line argument.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let io = |source| model::Error::Io { path: path.to_owned(), action: "read the file", source };
    Ok(speech::files::read_input(path).map_err(io)?)
}

/// Prints one warning about phrases that the tokenizer cannot encode.
fn warn_skipped(path: &Path, list: &PhraseList) {
    /// Maximum number of lines that the warning lists.
    const MAX_NAMED_LINES: usize = 20;
    let Some(first) = list.skipped.first() else { return };
    let skipped = list.skipped.len();
    let lines: Vec<String> =
        list.skipped.iter().take(MAX_NAMED_LINES).map(|phrase| phrase.line.to_string()).collect();
    let suffix = if skipped > MAX_NAMED_LINES { " and others" } else { "" };
    warnln!(
        "warning: {}: {skipped} of {} phrases are skipped, as the model has no tokens for them: line{} {}{suffix}; line {}: {}",
        path.display(),
        skipped + list.phrases.len(),
        if skipped > 1 { "s" } else { "" },
        lines.join(", "),
        first.line,
        first.reason
    );
}

/// Prints a warning about lines that the tokenizer converts.
fn warn_conversions(path: &Path, bytes: &[u8], tokenizer: &Tokenizer) {
    let lines = std::str::from_utf8(bytes).unwrap_or_default().lines();
    warn_each(recognizer::conversion_warnings(&path.display().to_string(), lines, tokenizer));
}
