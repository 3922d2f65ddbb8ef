//! `Transcript`: reference and hypothesis of an utterance; `Score`: error rates.
//!
//! A score has the word and the character error rate of a set of transcripts, with bootstrap
//! confidence intervals.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use speech::{ErrorCounts, bootstrap_interval, character_errors, sum_by_speaker, word_errors};

use crate::transcription::{RankedText, Transcription};

/// Number of bootstrap resamples for a confidence interval.
const BOOTSTRAP_RESAMPLES: usize = 1000;
/// Seed of the resamples; a set always has the same intervals.
const BOOTSTRAP_SEED: u64 = 0;

/// Reference and hypothesis of an utterance.
///
/// Deserialized from a line of [`Evaluation::hypotheses`](crate::Evaluation::hypotheses), without
/// the times of words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "TranscriptLine")]
pub struct Transcript {
    /// Id from the manifest.
    pub id: String,
    /// Part of the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subset: Option<String>,
    /// Speaker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speaker: Option<String>,
    /// Reference text.
    pub reference: String,
    /// Hypothesis text.
    pub hypothesis: String,
    /// Whether the text was discarded as silence.
    ///
    /// The hypothesis is empty then.
    #[serde(rename = "discarded", skip_serializing_if = "std::ops::Not::not")]
    pub is_discarded: bool,
    /// Word errors.
    #[serde(skip)]
    pub errors: ErrorCounts,
    /// Character errors.
    #[serde(skip)]
    pub character_errors: ErrorCounts,
    /// The hypothesis with times; only the n-best texts are serialized.
    #[serde(rename = "nbest", serialize_with = "serialize_nbest", skip_serializing_if = "has_no_nbest")]
    pub transcription: Transcription,
}

/// A line of [`Evaluation::hypotheses`](crate::Evaluation::hypotheses).
#[derive(Deserialize)]
struct TranscriptLine {
    #[serde(deserialize_with = "speech::names::required_id")]
    id: String,
    #[serde(default, deserialize_with = "speech::names::report_name")]
    subset: Option<String>,
    #[serde(default, deserialize_with = "speech::names::report_name")]
    speaker: Option<String>,
    reference: String,
    hypothesis: String,
    #[serde(rename = "discarded", default)]
    is_discarded: bool,
    #[serde(default)]
    nbest: Vec<RankedText>,
}

/// Serializes only the n-best texts of a transcription.
fn serialize_nbest<S: Serializer>(
    transcription: &Transcription,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    transcription.nbest.serialize(serializer)
}

fn has_no_nbest(transcription: &Transcription) -> bool {
    transcription.nbest.is_empty()
}

impl From<TranscriptLine> for Transcript {
    fn from(line: TranscriptLine) -> Self {
        let TranscriptLine { id, subset, speaker, reference, hypothesis, is_discarded, nbest } = line;
        let transcription =
            Transcription { text: hypothesis, is_discarded, nbest, ..Transcription::default() };
        Transcript::new(id, subset, speaker, reference, transcription)
    }
}

impl Transcript {
    /// Counts the errors of a transcription.
    pub fn new(
        id: String,
        subset: Option<String>,
        speaker: Option<String>,
        reference: String,
        transcription: Transcription,
    ) -> Self {
        Transcript {
            id,
            subset,
            speaker,
            errors: word_errors(&reference, &transcription.text),
            character_errors: character_errors(&reference, &transcription.text),
            reference,
            hypothesis: transcription.text.clone(),
            is_discarded: transcription.is_discarded,
            transcription,
        }
    }
}

/// An error rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Word error rate.
    #[default]
    Wer,
    /// Character error rate, for scripts without spaces.
    Cer,
}

impl Metric {
    /// Returns whether this is the word error rate.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Error rates of a set with counts and 95 % bootstrap intervals.
///
/// Characters are those of [`speech::characters`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Word errors per reference word.
    ///
    /// Infinite, in JSON null, if there are insertions but no reference words.
    #[serde(serialize_with = "serialize_finite")]
    pub wer: f64,
    /// Interval of `wer` over utterances; either bound may be infinite, in JSON null.
    #[serde(rename = "interval", serialize_with = "serialize_finite_pair")]
    pub wer_interval: (f64, f64),
    /// Substituted words.
    pub substitutions: usize,
    /// Deleted words.
    pub deletions: usize,
    /// Inserted words.
    pub insertions: usize,
    /// Reference words.
    pub words: usize,
    /// Character errors per reference character; infinite, in JSON null, as [`Self::wer`].
    #[serde(serialize_with = "serialize_finite")]
    pub cer: f64,
    /// Interval of `cer` over utterances.
    #[serde(serialize_with = "serialize_finite_pair")]
    pub cer_interval: (f64, f64),
    /// Character error counts.
    pub characters: ErrorCounts,
    /// Number of utterances.
    pub utterances: usize,
    /// Intervals over speakers, if all utterances have one and several exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_speakers: Option<SpeakerIntervals>,
}

/// 95 % bootstrap intervals over speakers, which estimate results for new speakers.
///
/// Each resample draws speakers with all of their utterances.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeakerIntervals {
    /// Number of speakers.
    pub speakers: usize,
    /// Interval of the word error rate.
    #[serde(rename = "interval", serialize_with = "serialize_finite_pair")]
    pub wer_interval: (f64, f64),
    /// Interval of the character error rate.
    #[serde(serialize_with = "serialize_finite_pair")]
    pub cer_interval: (f64, f64),
}

impl Score {
    /// Scores transcripts.
    pub fn new<'a>(transcripts: impl IntoIterator<Item = &'a Transcript>) -> Self {
        let transcripts: Vec<&Transcript> = transcripts.into_iter().collect();
        let interval =
            |counts: &[ErrorCounts]| bootstrap_interval(counts, BOOTSTRAP_RESAMPLES, BOOTSTRAP_SEED);
        // Returns the total, the interval over utterances and, if there are several speakers, their
        // number and the interval over them.
        let summarize = |counts: fn(&Transcript) -> ErrorCounts| {
            let counts_by_utterance: Vec<ErrorCounts> =
                transcripts.iter().map(|transcript| counts(transcript)).collect();
            let speakers = sum_by_speaker(
                transcripts.iter().map(|transcript| (transcript.speaker.as_deref(), counts(transcript))),
            );
            let over_speakers = speakers.map(|speakers| (speakers.len(), interval(&speakers)));
            (counts_by_utterance.iter().sum::<ErrorCounts>(), interval(&counts_by_utterance), over_speakers)
        };
        let (words, wer_interval, speakers) = summarize(|transcript| transcript.errors);
        let (characters, cer_interval, character_speakers) =
            summarize(|transcript| transcript.character_errors);
        Score {
            wer: words.rate(),
            wer_interval,
            substitutions: words.substitutions,
            deletions: words.deletions,
            insertions: words.insertions,
            words: words.total,
            cer: characters.rate(),
            cer_interval,
            characters,
            utterances: transcripts.len(),
            over_speakers: speakers.zip(character_speakers).map(
                |((speakers, wer_interval), (_, cer_interval))| SpeakerIntervals {
                    speakers,
                    wer_interval,
                    cer_interval,
                },
            ),
        }
    }

    /// Scores transcripts by a key, such as the speaker; transcripts without it are omitted.
    pub fn group_by<'a>(
        transcripts: &'a [Transcript],
        key: impl Fn(&'a Transcript) -> Option<&'a String>,
    ) -> BTreeMap<String, Score> {
        let mut parts: BTreeMap<String, Vec<&Transcript>> = BTreeMap::new();
        for transcript in transcripts {
            if let Some(part) = key(transcript) {
                parts.entry(part.clone()).or_default().push(transcript);
            }
        }
        parts.into_iter().map(|(key, transcripts)| (key, Score::new(transcripts))).collect()
    }

    /// Returns one of the rates.
    pub fn rate(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Wer => self.wer,
            Metric::Cer => self.cer,
        }
    }
}

/// Serializes infinity as null, as JSON has no infinity.
fn serialize_finite<S: Serializer>(rate: &f64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    Some(rate).filter(|rate| rate.is_finite()).serialize(serializer)
}

/// Serializes both bounds of an interval as [`serialize_finite`] does.
fn serialize_finite_pair<S: Serializer>(
    bounds: &(f64, f64),
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let finite_or_none = |rate: f64| Some(rate).filter(|rate| rate.is_finite());
    (finite_or_none(bounds.0), finite_or_none(bounds.1)).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(speaker: Option<&str>, reference: &str, transcription: &str) -> Transcript {
        let transcription = Transcription { text: transcription.to_owned(), ..Transcription::default() };
        let speaker = speaker.map(str::to_owned);
        Transcript::new(String::new(), None, speaker, reference.to_owned(), transcription)
    }

    #[test]
    fn rates_without_a_reference_serialize_to_json() {
        let score_json = |pairs: &[(&str, &str)]| {
            let transcripts: Vec<_> = pairs
                .iter()
                .map(|(reference, transcription)| transcript(None, reference, transcription))
                .collect();
            let text = serde_json::to_string(&Score::new(&transcripts)).unwrap();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        let without_words = score_json(&[("", ""), ("", "")]);
        assert_eq!(
            (&without_words["wer"], &without_words["interval"]),
            (&0.0.into(), &serde_json::json!([0.0, 0.0]))
        );
        let only_insertions = score_json(&[("", "a"), ("", "a b")]);
        assert_eq!((&only_insertions["insertions"], &only_insertions["words"]), (&3.into(), &0.into()));
        assert_eq!(
            (&only_insertions["wer"], &only_insertions["interval"]),
            (&().into(), &serde_json::json!([null, null]))
        );
        assert_eq!(
            (&only_insertions["cer"], &only_insertions["cer_interval"]),
            (&().into(), &serde_json::json!([null, null]))
        );
        // Some of the resampled sets have no word.
        let mixed = score_json(&[("", "a"), ("b", "b")]);
        assert_eq!((&mixed["wer"], &mixed["interval"]), (&1.0.into(), &serde_json::json!([0.0, null])));
    }

    #[test]
    fn words_and_characters_are_counted_separately() {
        let transcripts =
            [transcript(Some("x"), "one two", "one too"), transcript(Some("y"), "天气 很好", "天汽很好")];
        let score = Score::new(&transcripts);
        assert_eq!((score.wer, score.words, score.substitutions, score.deletions), (0.75, 4, 2, 1));
        assert_eq!((score.cer, score.characters.substitutions, score.characters.total), (0.2, 2, 10));
        assert_eq!((score.rate(Metric::Wer), score.rate(Metric::Cer)), (0.75, 0.2));
        let speakers = score.over_speakers.unwrap();
        assert_eq!(
            (speakers.speakers, speakers.wer_interval, speakers.cer_interval),
            (2, (0.5, 1.0), (1.0 / 6.0, 0.25))
        );
        let parts = Score::group_by(&transcripts, |transcript| transcript.speaker.as_ref());
        assert_eq!(parts.keys().collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!((parts["y"].wer, parts["y"].over_speakers.is_none()), (1.0, true));
    }
}
