//! Word error rates of a model on a set of utterances.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use decoding::{Greedy, greedy};
use rayon::prelude::*;
use serde::Serialize;
use speech::{Tokenizer, WordErrors, bootstrap_interval, word_errors};

use crate::data::{self, Example};
use crate::model::Model;
use crate::recipe::Recipe;
use crate::stepwise::Stepwise;
use crate::tensors::with_slice;
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
}

/// Word error rate of a set, with its counts and its 95 % bootstrap interval over utterances.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Errors per reference word.
    pub wer: f64,
    /// Lower and upper end of the interval.
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

/// Decodes all examples greedily and counts word errors, for each subset apart and overall.
///
/// # Errors
/// [`Error::Empty`] without examples; [`Error::Stopped`] if the flag becomes true; errors of the model or the search.
pub(crate) fn evaluate(
    model: &Model,
    tokenizer: &Tokenizer,
    recipe: &Recipe,
    examples: &[Example],
    stop: &AtomicBool,
) -> Result<Evaluation> {
    if examples.is_empty() {
        return Err(Error::Empty { what: "evaluation".into() });
    }
    let (stepwise, options) = (Stepwise::new(model)?, Greedy::default());
    let mut texts = vec![String::new(); examples.len()];
    for batch in data::plan(examples, recipe, None) {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let planes: Vec<_> = batch.iter().map(|&index| &examples[index].features).collect();
        let (rows, lengths) = data::collate(&planes, &recipe.encoder.rows)?;
        let (frames, lengths) = model.encode(&rows, &lengths)?;
        let (_, padded, width) = frames.dims3()?;
        let found = with_slice(&frames, |frames: &[f32]| {
            let decode = |(b, &length): (usize, &usize)| -> Result<String> {
                let frames = &frames[b * padded * width..][..length * width];
                Ok(tokenizer.decode(&greedy(&stepwise, frames, &options)?.labels)?)
            };
            Ok(lengths.par_iter().enumerate().map(|(b, length)| decode((b, length))).collect::<Vec<_>>())
        })?;
        for (index, text) in batch.into_iter().zip(found) {
            texts[index] = text?;
        }
    }
    let transcripts: Vec<Transcript> = examples
        .iter()
        .zip(texts)
        .map(|(example, hypothesis)| Transcript {
            id: example.id.clone(),
            subset: example.subset.clone(),
            errors: word_errors(&example.text, &hypothesis),
            reference: example.text.clone(),
            hypothesis,
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
    Ok(Evaluation { overall: score(&all), subsets, transcripts })
}
