//! Error rates of a set of utterances, with their intervals.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use speech::{ErrorCounts, bootstrap_interval, character_errors, sum_by_speaker, word_errors};

use crate::transcription::{RankedText, Transcription};

/// Bootstrap resamples of an interval.
const RESAMPLES: usize = 1000;

/// What the model said about one utterance.
///
/// It is read from a line of [`Evaluation::hypotheses`](crate::Evaluation::hypotheses) without the times of words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "TranscriptLine")]
pub struct Transcript {
    /// Id from the manifest.
    pub id: String,
    /// Part of the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subset: Option<String>,
    /// Who said it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speaker: Option<String>,
    /// What was said.
    pub reference: String,
    /// What the model heard.
    pub hypothesis: String,
    /// Whether the text was discarded as silence, so that the hypothesis is empty.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub discarded: bool,
    /// Word errors between them.
    #[serde(skip)]
    pub errors: ErrorCounts,
    /// Character errors between them.
    #[serde(skip)]
    pub character_errors: ErrorCounts,
    /// The hypothesis with the times of its words; of it, a line has the best texts, where there are several.
    #[serde(rename = "nbest", serialize_with = "best_texts", skip_serializing_if = "has_one")]
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
    #[serde(default)]
    discarded: bool,
    #[serde(default)]
    nbest: Vec<RankedText>,
}

fn best_texts<S: Serializer>(heard: &Transcription, to: S) -> std::result::Result<S::Ok, S::Error> {
    heard.nbest.serialize(to)
}

fn has_one(heard: &Transcription) -> bool {
    heard.nbest.is_empty()
}

impl From<TranscriptLine> for Transcript {
    fn from(line: TranscriptLine) -> Self {
        let TranscriptLine { id, subset, speaker, reference, hypothesis, discarded, nbest } = line;
        let heard = Transcription { text: hypothesis, silence: discarded, nbest, ..Transcription::default() };
        Transcript::new(id, subset, speaker, reference, heard)
    }
}

impl Transcript {
    /// Counts the errors of what was heard.
    pub fn new(
        id: String,
        subset: Option<String>,
        speaker: Option<String>,
        reference: String,
        heard: Transcription,
    ) -> Self {
        Transcript {
            id,
            subset,
            speaker,
            errors: word_errors(&reference, &heard.text),
            character_errors: character_errors(&reference, &heard.text),
            reference,
            hypothesis: heard.text.clone(),
            discarded: heard.silence,
            transcription: heard,
        }
    }
}

/// An error rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// That of words.
    #[default]
    Wer,
    /// That of characters: for scripts without spaces.
    Cer,
}

impl Metric {
    /// Whether it is that of words.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Error rates of a set with their counts and 95 % bootstrap intervals; characters are those of [`speech::characters`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Word errors per word of the reference; infinite, in JSON null, where words were heard and none was said.
    #[serde(serialize_with = "finite")]
    pub wer: f64,
    /// Lower and upper end of its interval over utterances; either may be infinite, in JSON null.
    #[serde(serialize_with = "both_finite")]
    pub interval: (f64, f64),
    /// Words that became others.
    pub substitutions: usize,
    /// Words that were lost.
    pub deletions: usize,
    /// Words out of nowhere.
    pub insertions: usize,
    /// Reference words.
    pub words: usize,
    /// Character errors per character of the reference; infinite, in JSON null, as [`Self::wer`].
    #[serde(serialize_with = "finite")]
    pub cer: f64,
    /// Its interval over utterances.
    #[serde(serialize_with = "both_finite")]
    pub cer_interval: (f64, f64),
    /// Counts of character errors.
    pub characters: ErrorCounts,
    /// Utterances.
    pub utterances: usize,
    /// Where every utterance has a speaker and there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_speakers: Option<SpeakerIntervals>,
}

/// 95 % bootstrap intervals that draw speakers with all of their utterances: what new speakers may bring.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeakerIntervals {
    /// How many there are.
    pub speakers: usize,
    /// Of the word error rate.
    #[serde(serialize_with = "both_finite")]
    pub interval: (f64, f64),
    /// Of the character error rate.
    #[serde(serialize_with = "both_finite")]
    pub cer_interval: (f64, f64),
}

impl Score {
    /// The score of some utterances.
    pub fn new<'a>(transcripts: impl IntoIterator<Item = &'a Transcript>) -> Self {
        let transcripts: Vec<&Transcript> = transcripts.into_iter().collect();
        let interval = |counts: &[ErrorCounts]| bootstrap_interval(counts, RESAMPLES, 0);
        let of = |counts: fn(&Transcript) -> ErrorCounts| {
            let all: Vec<ErrorCounts> = transcripts.iter().map(|one| counts(one)).collect();
            let speakers =
                sum_by_speaker(transcripts.iter().map(|one| (one.speaker.as_deref(), counts(one))));
            let over_speakers = speakers.map(|speakers| (speakers.len(), interval(&speakers)));
            (all.iter().sum::<ErrorCounts>(), interval(&all), over_speakers)
        };
        let (words, interval, speakers) = of(|one| one.errors);
        let (characters, cer_interval, of_characters) = of(|one| one.character_errors);
        Score {
            wer: words.rate(),
            interval,
            substitutions: words.substitutions,
            deletions: words.deletions,
            insertions: words.insertions,
            words: words.total,
            cer: characters.rate(),
            cer_interval,
            characters,
            utterances: transcripts.len(),
            over_speakers: speakers.zip(of_characters).map(|((speakers, interval), (_, cer_interval))| {
                SpeakerIntervals { speakers, interval, cer_interval }
            }),
        }
    }

    /// The scores of the parts that a name is given to; utterances without one are in none.
    pub fn group_by<'a>(
        transcripts: &'a [Transcript],
        name: impl Fn(&'a Transcript) -> Option<&'a String>,
    ) -> BTreeMap<String, Score> {
        let mut parts: BTreeMap<String, Vec<&Transcript>> = BTreeMap::new();
        for transcript in transcripts {
            if let Some(name) = name(transcript) {
                parts.entry(name.clone()).or_default().push(transcript);
            }
        }
        parts.into_iter().map(|(name, some)| (name, Score::new(some))).collect()
    }

    /// One of the rates.
    pub fn rate(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Wer => self.wer,
            Metric::Cer => self.cer,
        }
    }
}

/// JSON has no infinity.
fn finite<S: Serializer>(rate: &f64, to: S) -> std::result::Result<S::Ok, S::Error> {
    Some(rate).filter(|rate| rate.is_finite()).serialize(to)
}

fn both_finite<S: Serializer>(rates: &(f64, f64), to: S) -> std::result::Result<S::Ok, S::Error> {
    let or_none = |rate: f64| Some(rate).filter(|rate| rate.is_finite());
    (or_none(rates.0), or_none(rates.1)).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(speaker: Option<&str>, reference: &str, heard: &str) -> Transcript {
        let heard = Transcription { text: heard.to_owned(), ..Transcription::default() };
        let speaker = speaker.map(str::to_owned);
        Transcript::new(String::new(), None, speaker, reference.to_owned(), heard)
    }

    #[test]
    fn rates_without_a_reference_are_defined_and_json() {
        let json = |pairs: &[(&str, &str)]| {
            let said: Vec<_> = pairs.iter().map(|(reference, heard)| said(None, reference, heard)).collect();
            let text = serde_json::to_string(&Score::new(&said)).unwrap();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        let nothing = json(&[("", ""), ("", "")]);
        assert_eq!((&nothing["wer"], &nothing["interval"]), (&0.0.into(), &serde_json::json!([0.0, 0.0])));
        let invented = json(&[("", "a"), ("", "a b")]);
        assert_eq!((&invented["insertions"], &invented["words"]), (&3.into(), &0.into()));
        assert_eq!((&invented["wer"], &invented["interval"]), (&().into(), &serde_json::json!([null, null])));
        assert_eq!(
            (&invented["cer"], &invented["cer_interval"]),
            (&().into(), &serde_json::json!([null, null]))
        );
        // Some of the resampled sets have no word.
        let both = json(&[("", "a"), ("b", "b")]);
        assert_eq!((&both["wer"], &both["interval"]), (&1.0.into(), &serde_json::json!([0.0, null])));
    }

    #[test]
    fn words_and_characters_are_counted_apart() {
        let said = [said(Some("x"), "one two", "one too"), said(Some("y"), "天气 很好", "天汽很好")];
        let score = Score::new(&said);
        assert_eq!((score.wer, score.words, score.substitutions, score.deletions), (0.75, 4, 2, 1));
        assert_eq!((score.cer, score.characters.substitutions, score.characters.total), (0.2, 2, 10));
        assert_eq!((score.rate(Metric::Wer), score.rate(Metric::Cer)), (0.75, 0.2));
        let over = score.over_speakers.unwrap();
        assert_eq!((over.speakers, over.interval, over.cer_interval), (2, (0.5, 1.0), (1.0 / 6.0, 0.25)));
        let parts = Score::group_by(&said, |one| one.speaker.as_ref());
        assert_eq!(parts.keys().collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!((parts["y"].wer, parts["y"].over_speakers.is_none()), (1.0, true));
    }
}
