//! Word error rates of a model on a set of utterances.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use decoding::Aggregate;
use serde::{Serialize, Serializer};
use speech::{Change, Tokenizer, WordErrors, bootstrap_interval, word_errors};

use crate::data::{self, Example};
use crate::model::Model;
use crate::recipe::BatchConfig;
use crate::search::{Search, Searcher};
use crate::silence::is_silence;
use crate::transcription::{Transcription, Writer};
use crate::{Error, Result};

/// Bootstrap resamples of an interval.
const RESAMPLES: usize = 1000;

/// What the model said about one utterance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transcript {
    /// Id from the manifest.
    pub id: String,
    /// Part of the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subset: Option<String>,
    /// What was said.
    pub reference: String,
    /// What the model heard.
    pub hypothesis: String,
    /// Word errors between them.
    #[serde(skip)]
    pub errors: WordErrors,
    /// The hypothesis with the times of its words.
    #[serde(skip)]
    pub heard: Transcription,
}

/// Word error rate of a set, with its counts and its 95 % bootstrap interval over utterances.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Errors per reference word; infinite, in JSON null, where words were heard and none was said.
    #[serde(serialize_with = "finite")]
    pub wer: f64,
    /// Lower and upper end of the interval; either may be infinite, in JSON null.
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
    /// Utterances.
    pub utterances: usize,
}

/// JSON has no infinity.
fn finite<S: Serializer>(rate: &f64, to: S) -> std::result::Result<S::Ok, S::Error> {
    Some(rate).filter(|rate| rate.is_finite()).serialize(to)
}

fn both_finite<S: Serializer>(rates: &(f64, f64), to: S) -> std::result::Result<S::Ok, S::Error> {
    let or_none = |rate: f64| Some(rate).filter(|rate| rate.is_finite());
    (or_none(rates.0), or_none(rates.1)).serialize(to)
}

/// The outcome of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Over all utterances.
    pub overall: Score,
    /// Each subset that the manifest names.
    pub subsets: BTreeMap<String, Score>,
    /// What was said and heard, in the order of the manifest.
    #[serde(skip)]
    pub transcripts: Vec<Transcript>,
    /// What was done to how many recordings so that the model can read them.
    #[serde(skip)]
    pub changes: BTreeMap<Change, usize>,
}

impl Evaluation {
    /// One JSON line an utterance: id, subset, reference, hypothesis.
    pub fn hypotheses(&self) -> String {
        let line = |transcript| {
            serde_json::to_string(transcript).expect("numbers and texts have a place in JSON") + "\n"
        };
        self.transcripts.iter().map(line).collect()
    }
}

fn score(errors: &[WordErrors]) -> Score {
    let mut sum = WordErrors::default();
    errors.iter().for_each(|&e| sum += e);
    Score {
        wer: sum.rate(),
        interval: bootstrap_interval(errors, RESAMPLES, 0),
        substitutions: sum.substitutions,
        deletions: sum.deletions,
        insertions: sum.insertions,
        words: sum.words,
        utterances: errors.len(),
    }
}

/// Recognises all examples and counts word errors, for each subset apart and overall; what `silence` says of words that are not
/// believed is at [`crate::Recogniser::with_silence`], and 0 believes all.
///
/// # Errors
/// [`Error::Empty`] without examples; [`Error::Stopped`] if the flag becomes true; errors of the model or the search.
pub(crate) fn evaluate(
    (model, search, aggregate): (&Model, &Search, Aggregate),
    tokenizer: &Tokenizer,
    batches: &BatchConfig,
    examples: &[Example],
    silence: f64,
    stop: &AtomicBool,
) -> Result<Evaluation> {
    if examples.is_empty() {
        return Err(Error::Empty { what: "evaluation".into() });
    }
    let writer = Writer::new(!model.durations().is_empty(), model.config().frame_ms() / 1000.0, aggregate);
    let mut searcher = Searcher::new(model, search)?;
    let mut texts = vec![Transcription::default(); examples.len()];
    for batch in data::plan(examples, &model.config().input.rows, batches) {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let planes: Vec<_> = batch.iter().map(|&index| &examples[index].features).collect();
        let found = searcher.recognise(model, &planes)?;
        for ((index, plane), found) in batch.into_iter().zip(planes).zip(found) {
            if !is_silence(plane, tokenizer, &found.labels, silence) {
                texts[index] = writer.write(tokenizer, &found.labels)?.after(examples[index].lead);
            }
        }
    }
    let transcripts: Vec<Transcript> = examples
        .iter()
        .zip(texts)
        .map(|(example, heard)| Transcript {
            id: example.id.clone(),
            subset: example.subset.clone(),
            errors: word_errors(&example.text, &heard.text),
            reference: example.text.clone(),
            hypothesis: heard.text.clone(),
            heard,
        })
        .collect();
    let mut subsets: BTreeMap<String, Vec<WordErrors>> = BTreeMap::new();
    for transcript in &transcripts {
        if let Some(subset) = &transcript.subset {
            subsets.entry(subset.clone()).or_default().push(transcript.errors);
        }
    }
    let all: Vec<WordErrors> = transcripts.iter().map(|transcript| transcript.errors).collect();
    let subsets = subsets.into_iter().map(|(name, errors)| (name, score(&errors))).collect();
    let mut changes = BTreeMap::new();
    data::count_changes(&mut changes, examples);
    Ok(Evaluation { overall: score(&all), subsets, transcripts, changes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_without_a_reference_are_defined_and_json() {
        let json = |pairs: &[(&str, &str)]| {
            let errors: Vec<_> = pairs.iter().map(|(said, heard)| word_errors(said, heard)).collect();
            let text = serde_json::to_string(&score(&errors)).unwrap();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        let nothing = json(&[("", ""), ("", "")]);
        assert_eq!((&nothing["wer"], &nothing["interval"]), (&0.0.into(), &serde_json::json!([0.0, 0.0])));
        let invented = json(&[("", "a"), ("", "a b")]);
        assert_eq!((&invented["insertions"], &invented["words"]), (&3.into(), &0.into()));
        assert_eq!((&invented["wer"], &invented["interval"]), (&().into(), &serde_json::json!([null, null])));
        // Some of the resampled sets have no word.
        let both = json(&[("", "a"), ("b", "b")]);
        assert_eq!((&both["wer"], &both["interval"]), (&1.0.into(), &serde_json::json!([0.0, null])));
    }
}
