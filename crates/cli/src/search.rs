//! How texts are looked for: what `evaluate` and `transcribe` have in common.
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use decoding::ngram::{Foreign, Ngram, NgramTable, WordNgram, WordOptions};
use decoding::{
    Aggregate, Beam, BeamKind, Boost, Confidence, CtcBeam, Fusion, Greedy, Measure, PHRASE_SCORE, PerClass,
    PhraseList, Scorer, add_unmarked, read_phrases,
};
use recognizer::{LatticeSearch, Recognizer, SearchConfig};
use speech::{Tokenizer, TokenizerKind};

use crate::error::{Error, Result};
use crate::numbers;
use crate::out::{warn_each, warnln};

/// Widest beam; a mistake, beyond.
const WIDEST: usize = 10_000;
/// Most labels of a frame; a mistake, beyond.
const MOST_SYMBOLS: usize = 1000;

/// Args of a search.
#[derive(clap::Args)]
#[command(next_help_heading = "Search", group = clap::ArgGroup::new("ngrams").args(["lm", "minus_lm"]).multiple(true))]
pub struct SearchArguments {
    /// Keep so many hypotheses; 1 takes the best class at each site, which is fastest. In a recognition lattice 1 takes the best path,
    /// and more look for the labels with the largest sum over their alignments
    #[arg(
        long,
        value_name = "WIDTH",
        default_value_t = 1,
        value_parser = numbers::within("expected a number of hypotheses, from 1 to 10000", 1..=WIDEST)
    )]
    beam: usize,
    /// With --beam: modified (one label a frame, k2's), malsd (NeMo's batched one; knows durations), alsd, maes; malsd for models with
    /// durations, else modified, if none is named
    #[arg(long, value_name = "KIND")]
    beam_search: Option<BeamSearchKind>,
    /// Search by the head of the auxiliary CTC loss instead of the joint network, where the model has one
    #[arg(long, conflicts_with_all = ["beam_search", "internal_lm"])]
    ctc: bool,
    /// Most labels that one frame may emit (greedy search and malsd) [default: 8]
    #[arg(
        long,
        value_name = "N",
        value_parser = numbers::within("expected a number of labels, from 1 to 1000", 1..=MOST_SYMBOLS)
    )]
    max_symbols: Option<usize>,
    /// With --beam: taken from the score of the blank, against lost words
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = numbers::weight)]
    blank_penalty: f32,
    /// With --beam: what scores are divided by
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = numbers::temperature)]
    temperature: f32,
    /// With --beam: order what is found by its probability alone, not by its probability a label
    #[arg(long)]
    by_sum: bool,
    /// With --beam: tell so many of the best texts, at most those that the beam has kept; --format json and --hypotheses have them, and
    /// `evaluate` says what rate the best choice among them would have
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = numbers::within("expected a number of texts, at least 1", 1..=usize::MAX)
    )]
    nbest: usize,
    /// With --beam: ask the head of the auxiliary CTC loss about every label as well, with this weight; 0.3 is usual. Whole recordings
    /// only
    #[arg(long, value_name = "W", default_value_t = 0.0, value_parser = numbers::ctc_weight)]
    ctc_weight: f32,
    /// An n-gram language model in ARPA format, of words or of the model's tokens; `panda lm` makes one
    #[arg(long, value_name = "ARPA")]
    lm: Option<PathBuf>,
    /// Its weight
    #[arg(long, value_name = "W", default_value_t = 0.2, requires = "lm", value_parser = numbers::weight)]
    lm_weight: f32,
    /// Added for each word, against the words that language models cost; greedy search weighs labels by it, but not the blank
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = numbers::weight)]
    word_bonus: f32,
    /// A second n-gram that is taken away: what the model has learnt from its own training texts (density ratio, LODR)
    #[arg(long, value_name = "ARPA")]
    minus_lm: Option<PathBuf>,
    /// Its weight
    #[arg(
        long,
        value_name = "W",
        default_value_t = 0.2,
        requires = "minus_lm",
        value_parser = numbers::weight
    )]
    minus_lm_weight: f32,
    /// What n-grams are made of: auto, words, tokens
    #[arg(long, value_name = "UNITS", default_value = "auto", requires = "ngrams")]
    lm_units: Units,
    /// Added to an unknown word for each of its characters, in addition to the score of `<unk>`; not to special words
    #[arg(
        long,
        value_name = "X",
        default_value_t = -2.0,
        requires = "ngrams",
        value_parser = numbers::weight
    )]
    unknown_character: f32,
    /// Weight of the internal language model that is taken away, where the model has a factored blank
    #[arg(long, value_name = "W", default_value_t = 0.0, value_parser = numbers::weight)]
    internal_lm: f32,
    /// Favor the phrases of a list: one a line, then perhaps a tab and its score. A phrase matches whole words
    #[arg(long, value_name = "FILE")]
    phrases: Option<PathBuf>,
    /// Score of each phrase that has none, a natural logarithm: of the whole phrase, spread over its tokens
    #[arg(
        long,
        value_name = "X",
        default_value_t = PHRASE_SCORE,
        requires = "phrases",
        value_parser = numbers::phrase_score
    )]
    phrase_score: f32,
    /// Of greedy search, the measure of the confidences that are written (of others, they are posteriors): max-prob, gibbs-lin,
    /// gibbs-exp, tsallis-lin, tsallis-exp, renyi-lin, renyi-exp [default: max-prob]
    #[arg(long, value_name = "MEASURE")]
    confidence: Option<Measure>,
    /// Its exponent: below 1, unlikely labels count for more; 0.33 is usual for the measures of entropy [default: 1]
    #[arg(long, value_name = "A", value_parser = numbers::exponent)]
    confidence_exponent: Option<f64>,
    /// How the confidences of its tokens make that of a word: min, mean, max, product
    #[arg(long, value_name = "HOW", default_value = "min")]
    word_confidence: Aggregate,
}

/// A search, and which options it knows beside those that all do.
#[derive(Clone, Copy, Default)]
struct SearchOptions {
    search: &'static str,
    /// Those of beams by the joint network.
    beam: bool,
    by_sum: bool,
    nbest: bool,
    symbols: bool,
    confidence: bool,
}

/// A kind of beam search.
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

/// What an n-gram is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Units {
    Auto,
    Words,
    Tokens,
}

impl FromStr for Units {
    type Err = &'static str;

    fn from_str(name: &str) -> std::result::Result<Self, Self::Err> {
        match name {
            "auto" => Ok(Units::Auto),
            "words" => Ok(Units::Words),
            "tokens" => Ok(Units::Tokens),
            _ => Err("expected one of auto, words, tokens"),
        }
    }
}

impl SearchArguments {
    /// A recogniser that searches as the arguments say.
    pub fn apply(&self, recogniser: Recognizer) -> Result<Recognizer> {
        let max_symbols = self.max_symbols.unwrap_or(8);
        let fusion = self.fusion(&recogniser)?;
        let search = if recogniser.model().lattice().is_some() && !self.ctc {
            self.lattice(!fusion.is_empty())?
        } else if self.ctc {
            let nbest = self.beam > 1;
            self.check(SearchOptions {
                search: "a search by CTC",
                by_sum: true,
                nbest,
                ..SearchOptions::default()
            })?;
            let beam = (self.beam > 1 || !fusion.is_empty()).then(|| CtcBeam {
                width: self.beam,
                nbest: self.nbest,
                fusion,
                ..CtcBeam::default()
            });
            SearchConfig::Ctc(beam)
        } else if self.beam == 1 && self.beam_search.is_none() {
            let greedy = SearchOptions {
                search: "a greedy one",
                symbols: true,
                confidence: true,
                ..SearchOptions::default()
            };
            self.check(greedy)?;
            let measure = self.confidence.unwrap_or(Measure::MaxProb);
            let exponent = self.confidence_exponent.unwrap_or(1.0);
            SearchConfig::Greedy(Greedy {
                max_symbols: Some(max_symbols),
                confidence: Some(Confidence { measure, exponent }),
                fusion,
                internal_lm: self.internal_lm,
                ..Greedy::default()
            })
        } else {
            let durations = !recogniser.model().durations().is_empty();
            let kind = self.beam_search.unwrap_or(if durations {
                BeamSearchKind::Malsd
            } else {
                BeamSearchKind::Modified
            });
            let symbols = kind == BeamSearchKind::Malsd;
            let known =
                SearchOptions { beam: true, by_sum: true, nbest: true, symbols, ..SearchOptions::default() };
            self.check(SearchOptions { search: "another beam search", ..known })?;
            let beam = Beam {
                kind: match kind {
                    BeamSearchKind::Modified => BeamKind::Modified,
                    BeamSearchKind::Malsd => BeamKind::Malsd { max_symbols },
                    BeamSearchKind::Alsd => BeamKind::Alsd { max_labels: None },
                    BeamSearchKind::Maes => BeamKind::Maes { expansions: 2, beta: 2, gamma: 2.3, prefix: 1 },
                },
                width: self.beam,
                nbest: self.nbest,
                normalise: !self.by_sum,
                blank_penalty: self.blank_penalty,
                temperature: self.temperature,
                fusion,
                internal_lm: self.internal_lm,
                ..Beam::default()
            };
            match self.ctc_weight {
                0.0 => SearchConfig::Beam(beam),
                weight => SearchConfig::BeamWithCtc { beam, weight },
            }
        };
        Ok(recogniser.with_search(search)?.with_aggregate(self.word_confidence))
    }

    /// What a search reads.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.lm, &self.minus_lm, &self.phrases].into_iter().flatten()
    }

    /// Fails for what sound that is still arriving cannot be asked for.
    pub fn check_live(&self) -> Result<()> {
        let asked = [
            ("--nbest", self.nbest != 1),
            ("--ctc", self.ctc),
            ("--ctc-weight", self.ctc_weight != 0.0),
            ("--beam-search alsd", self.beam_search == Some(BeamSearchKind::Alsd)),
            ("--beam-search malsd", self.beam_search == Some(BeamSearchKind::Malsd)),
        ];
        match asked.into_iter().find_map(|(argument, asked)| asked.then_some(argument)) {
            None => Ok(()),
            Some(argument) => Err(Error::Search {
                argument,
                expected: "recordings as a whole",
                search: "sound as it arrives (--stream, or -)",
            }),
        }
    }

    /// The first of the options that were asked for which a search does not know, and what knows it.
    fn unknown_to(&self, knows: SearchOptions) -> Option<(&'static str, &'static str)> {
        let joint = "a beam search by the joint network (--beam 2 or more)";
        let (any, greedy) = ("a beam search (--beam 2 or more)", "a greedy search");
        let all = [
            ("--nbest", self.nbest != 1, knows.nbest, any),
            ("--ctc-weight", self.ctc_weight != 0.0, knows.beam, joint),
            ("--blank-penalty", self.blank_penalty != 0.0, knows.beam, joint),
            ("--temperature", self.temperature != 1.0, knows.beam, joint),
            // What a search by CTC does anyhow.
            ("--by-sum", self.by_sum, knows.by_sum, joint),
            (
                "--max-symbols",
                self.max_symbols.is_some(),
                knows.symbols,
                "a greedy search or --beam-search malsd",
            ),
            ("--confidence", self.confidence.is_some(), knows.confidence, greedy),
            ("--confidence-exponent", self.confidence_exponent.is_some(), knows.confidence, greedy),
        ];
        let unknown = all.into_iter().find(|&(_, asked, known, _)| asked && !known);
        unknown.map(|(argument, _, _, expected)| (argument, expected))
    }

    fn check(&self, knows: SearchOptions) -> Result<()> {
        match self.unknown_to(knows) {
            None => Ok(()),
            Some((argument, expected)) => Err(Error::Search { argument, expected, search: knows.search }),
        }
    }

    /// In a recognition lattice, which has no part for what scores labels beside it.
    fn lattice(&self, fusion: bool) -> Result<SearchConfig> {
        let refused = [
            ("--lm, --minus-lm, --word-bonus, --phrases", fusion),
            ("--beam-search", self.beam_search.is_some()),
            ("--internal-lm", self.internal_lm != 0.0),
        ];
        let refused = refused.into_iter().find_map(|(argument, asked)| asked.then_some(argument));
        let unknown = self.unknown_to(SearchOptions::default()).map(|(argument, _)| argument);
        if let Some(argument) = refused.or(unknown) {
            return Err(Error::Lattice { argument });
        }
        Ok(SearchConfig::Lattice(match self.beam {
            1 => LatticeSearch::BestPath,
            beam => LatticeSearch::Sum { beam },
        }))
    }

    /// Language models and phrases.
    fn fusion(&self, recogniser: &Recognizer) -> Result<Vec<Fusion>> {
        let mut names = recogniser.tokenizer().tokens().to_vec();
        names.resize(recogniser.model().classes(), String::new());
        let mut fusion = Vec::new();
        for (path, weight) in [(&self.lm, self.lm_weight), (&self.minus_lm, -self.minus_lm_weight)] {
            if let Some(path) = path {
                let automaton = self.ngram(path, &names, recogniser.tokenizer())?;
                fusion.push(Fusion { automaton, weight });
            }
        }
        if self.word_bonus != 0.0 {
            let bonus = PerClass::new(recogniser.word_starts().into_iter().map(f32::from).collect())?;
            fusion.push(Fusion { automaton: Arc::new(bonus), weight: self.word_bonus });
        }
        if let Some(path) = &self.phrases {
            let bytes = read(path)?;
            warn_conversions(path, &bytes, recogniser.tokenizer());
            let encode = |text: &str| recogniser.tokenizer().encode(text).map_err(|error| error.to_string());
            let wrong = |source| Error::Phrases { path: path.clone(), source };
            let list = read_phrases(&bytes, self.phrase_score, encode).map_err(wrong)?;
            warn_skipped(path, &list);
            let mut phrases = list.phrases;
            add_unmarked(&mut phrases, recogniser.tokenizer().tokens());
            let boost =
                Boost::with_boundaries(&phrases, &recogniser.word_boundaries(), 1.0).map_err(wrong)?;
            fusion.push(Fusion { automaton: Arc::new(boost), weight: 1.0 });
        }
        Ok(fusion)
    }

    /// An n-gram of words or of tokens: of tokens if all of its words are.
    fn ngram(&self, path: &Path, names: &[String], tokenizer: &Tokenizer) -> Result<Arc<dyn Scorer>> {
        let wrong = |source| Error::Arpa { path: path.to_owned(), source };
        let bytes = read(path)?;
        // Words in another Unicode form than the model's texts would never be found.
        let normal = std::str::from_utf8(&bytes).map(|text| tokenizer.unicode_form().apply(text));
        if normal.as_ref().is_ok_and(|normal| normal.as_bytes() != bytes) {
            warn_conversions(path, &bytes, tokenizer);
        }
        let table =
            NgramTable::read(normal.as_ref().map_or(&bytes[..], |text| text.as_bytes())).map_err(wrong)?;
        let of_tokens = || Ngram::new(&table, names, Foreign::Reject).is_ok();
        let tokens = match self.lm_units {
            Units::Tokens => true,
            _ if tokenizer.kind() == TokenizerKind::Words => true,
            Units::Words => false,
            Units::Auto => of_tokens(),
        };
        if tokens {
            return Ok(Arc::new(Ngram::new(&table, names, Foreign::Ignore).map_err(wrong)?));
        }
        let options = WordOptions { unknown_character: self.unknown_character, ..WordOptions::default() };
        let special: Vec<u32> = (0..names.len() as u32).filter(|&id| tokenizer.is_special(id)).collect();
        let words = WordNgram::with_special_words(&table, names, &special, options);
        Ok(Arc::new(words.map_err(wrong)?))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let io = |source| model::Error::Io { path: path.to_owned(), action: "read it", source };
    Ok(speech::files::read_input(path).map_err(io)?)
}

/// Prints a warning about lines that the tokenizer converts.
/// Warns once of the phrases that the model has no tokens for.
fn warn_skipped(path: &Path, list: &PhraseList) {
    /// Lines that a warning names.
    const MAX_NAMED_LINES: usize = 20;
    let Some(first) = list.skipped.first() else { return };
    let skipped = list.skipped.len();
    let lines: Vec<String> =
        list.skipped.iter().take(MAX_NAMED_LINES).map(|phrase| phrase.line.to_string()).collect();
    let rest = if skipped > MAX_NAMED_LINES { " and others" } else { "" };
    warnln!(
        "warning: {}: {skipped} of {} phrases are skipped, as the model has no tokens for them: line{} {}{rest}; line {}: {}",
        path.display(),
        skipped + list.phrases.len(),
        if skipped > 1 { "s" } else { "" },
        lines.join(", "),
        first.line,
        first.reason
    );
}

fn warn_conversions(path: &Path, bytes: &[u8], tokenizer: &Tokenizer) {
    let lines = std::str::from_utf8(bytes).unwrap_or_default().lines();
    warn_each(recognizer::conversion_warnings(&path.display().to_string(), lines, tokenizer));
}
