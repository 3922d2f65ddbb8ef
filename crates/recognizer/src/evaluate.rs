//! What a model makes of a set of utterances.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use decoding::Aggregate;
use serde::{Deserialize, Serialize};
use speech::{Change, Tokenizer, word_errors};

use crate::bad_items::{BadItems, LeftOut};
use crate::examples::{self, Example};
use crate::score::{Score, Transcript};
use crate::search::{Search, Searcher};
use crate::silence::is_silence;
use crate::transcription::{Transcription, Writer};
use crate::{Error, Result};
use model::Model;

/// The outcome of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Over all utterances.
    pub overall: Score,
    /// Each subset that the manifest names.
    pub subsets: BTreeMap<String, Score>,
    /// Each speaker that the manifest names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub speakers: BTreeMap<String, Score>,
    /// Utterances whose text was discarded as silence; see [`crate::Recognizer::with_silence`].
    pub discarded: usize,
    /// Utterances that cannot be used and are in no rate, and recordings of another length than their lines.
    #[serde(flatten)]
    pub bad: BadItems,
    /// What was said and heard, in the order of the manifest.
    #[serde(skip)]
    pub transcripts: Vec<Transcript>,
    /// What was done to how many recordings so that the model can read them.
    #[serde(skip)]
    pub changes: BTreeMap<Change, usize>,
}

impl Evaluation {
    /// Error rates of some transcripts, over all and in parts.
    pub fn of(transcripts: Vec<Transcript>) -> Self {
        Evaluation {
            overall: Score::of(&transcripts),
            subsets: Score::parts(&transcripts, |one| one.subset.as_ref()),
            speakers: Score::parts(&transcripts, |one| one.speaker.as_ref()),
            discarded: transcripts.iter().filter(|one| one.discarded).count(),
            bad: BadItems::default(),
            transcripts,
            changes: BTreeMap::new(),
        }
    }

    /// The evaluation of several lists as one, in this order.
    pub fn joined(lists: impl IntoIterator<Item = Evaluation>) -> Self {
        let (mut transcripts, mut bad) = (Vec::new(), BadItems::default());
        for list in lists {
            transcripts.extend(list.transcripts);
            bad.extend(list.bad);
        }
        Evaluation { bad, ..Evaluation::of(transcripts) }
    }

    /// The error rates of whoever always chose that of the best texts which has the fewest word errors, the first of several; none
    /// unless a search was asked for several.
    pub fn oracle(&self) -> Option<Score> {
        if self.transcripts.iter().all(|one| one.heard.nbest.is_empty()) {
            return None;
        }
        let chosen = |one: &Transcript| {
            let Transcript { id, subset, speaker, reference, hypothesis, heard, .. } = one;
            let errors = |text: &&String| word_errors(reference, text).errors();
            let text = heard.nbest.iter().map(|ranked| &ranked.text).min_by_key(errors).unwrap_or(hypothesis);
            let heard = Transcription { text: text.clone(), ..Transcription::default() };
            Transcript::new(id.clone(), subset.clone(), speaker.clone(), reference.clone(), heard)
        };
        Some(Score::of(&self.transcripts.iter().map(chosen).collect::<Vec<_>>()))
    }

    /// One JSON line an utterance: id, subset, speaker, reference, hypothesis; the best texts, where a search was asked for several.
    /// Behind them, a line `{"id": ..., "left_out": REASON}` for each utterance that cannot be used.
    pub fn hypotheses(&self) -> String {
        let transcripts = self.transcripts.iter().map(line);
        let left_out = self.bad.left_out.iter();
        let left_out =
            left_out.map(|one| line(&LeftOutLine { id: one.id.clone(), left_out: one.reason.clone() }));
        transcripts.chain(left_out).collect()
    }

    /// The evaluation of lines as [`Self::hypotheses`] writes them; blank lines are passed over.
    ///
    /// # Errors
    /// The parser's, with the number of the line, from 1.
    pub fn read(text: &str) -> std::result::Result<Self, (usize, serde_json::Error)> {
        let (mut transcripts, mut left_out) = (Vec::new(), Vec::new());
        let filled = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        for (number, line) in filled {
            match serde_json::from_str::<LeftOutLine>(line) {
                Ok(LeftOutLine { id, left_out: reason }) => {
                    left_out.push(LeftOut { id, reason, other_rate: false });
                }
                Err(_) => transcripts.push(serde_json::from_str(line).map_err(|error| (number, error))?),
            }
        }
        let bad = BadItems { left_out, other_length: Vec::new() };
        Ok(Evaluation { bad, ..Evaluation::of(transcripts) })
    }
}

/// A line of [`Evaluation::hypotheses`] about an utterance that is in no rate.
#[derive(Serialize, Deserialize)]
struct LeftOutLine {
    #[serde(deserialize_with = "speech::names::required_id")]
    id: String,
    left_out: String,
}

fn line(of: &impl Serialize) -> String {
    serde_json::to_string(of).expect("numbers and texts have a place in JSON") + "\n"
}

/// Recognizes examples, and scores them; its buffers stay from batch to batch.
pub struct Evaluator<'a> {
    model: &'a Model,
    tokenizer: &'a Tokenizer,
    searcher: Searcher,
    writer: Writer,
    ignores_special: bool,
    silence: f64,
}

impl<'a> Evaluator<'a> {
    /// An evaluation of a model; `silence` is the least posterior of [`crate::Recognizer::with_silence`], 0 keeps every text.
    ///
    /// # Errors
    /// Those of the search.
    pub fn new(
        (model, search, aggregate): (&'a Model, &Search, Aggregate),
        (tokenizer, ignores_special): (&'a Tokenizer, bool),
        silence: f64,
    ) -> Result<Self> {
        let writer =
            Writer::new(!model.durations().is_empty(), model.config().frame_ms() / 1000.0, aggregate)
                .with_special_omitted(ignores_special);
        let searcher = Searcher::new(model, search, silence > 0.0)?;
        Ok(Evaluator { model, tokenizer, searcher, writer, ignores_special, silence })
    }

    /// The texts of some batches of examples, by the numbers of the examples.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the flag becomes true; errors of the model or the search.
    pub fn recognize(
        &mut self,
        examples: &[Example],
        batches: impl IntoIterator<Item = Vec<usize>>,
        stop: &AtomicBool,
    ) -> Result<Vec<(usize, Transcription)>> {
        let mut texts = Vec::new();
        for batch in batches {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let features: Vec<_> = batch.iter().map(|&index| &examples[index].features).collect();
            let found = self.searcher.recognize(self.model, &features)?;
            for ((index, features), found) in batch.into_iter().zip(features).zip(found) {
                let text = match is_silence(features, self.tokenizer, &found, self.silence) {
                    true => Transcription { silence: true, ..Transcription::default() },
                    false => self.writer.write_found(self.tokenizer, &found)?.after(examples[index].lead),
                };
                texts.push((index, text));
            }
        }
        Ok(texts)
    }

    /// Scores the texts of examples against their references.
    pub fn score(
        &self,
        examples: &[Example],
        texts: impl IntoIterator<Item = (usize, Transcription)>,
    ) -> Evaluation {
        let mut all = vec![Transcription::default(); examples.len()];
        texts.into_iter().for_each(|(index, text)| all[index] = text);
        let transcripts: Vec<Transcript> = examples
            .iter()
            .zip(all)
            .map(|(example, heard)| {
                let Example { id, subset, speaker, text, .. } = example;
                let reference = self.tokenizer.normalize(text);
                let reference = match self.ignores_special {
                    true => self.tokenizer.without_special(&reference),
                    false => reference.into_owned(),
                };
                Transcript::new(id.clone(), subset.clone(), speaker.clone(), reference, heard)
            })
            .collect();
        let mut evaluation = Evaluation::of(transcripts);
        examples::count_changes(&mut evaluation.changes, examples);
        evaluation
    }
}
