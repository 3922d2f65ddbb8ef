//! What a model makes of a set of utterances.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use model::JointRows;
use serde::{Deserialize, Serialize};
use speech::{AudioChange, Utterance, word_errors};

use crate::bad_items::{BadItems, ExcludedUtterance};
use crate::examples::{self, Example};
use crate::recognizer::Recognizer;
use crate::score::{Score, Transcript};
use crate::transcription::Transcription;
use crate::{Error, Result};

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
    pub changes: BTreeMap<AudioChange, usize>,
}

impl Evaluation {
    /// Error rates of some transcripts, over all and in parts.
    pub fn new(transcripts: Vec<Transcript>) -> Self {
        Evaluation {
            overall: Score::new(&transcripts),
            subsets: Score::group_by(&transcripts, |one| one.subset.as_ref()),
            speakers: Score::group_by(&transcripts, |one| one.speaker.as_ref()),
            discarded: transcripts.iter().filter(|one| one.discarded).count(),
            bad: BadItems::default(),
            transcripts,
            changes: BTreeMap::new(),
        }
    }

    /// The evaluation of several lists as one, in this order.
    pub fn merge(lists: impl IntoIterator<Item = Evaluation>) -> Self {
        let (mut transcripts, mut bad) = (Vec::new(), BadItems::default());
        for list in lists {
            transcripts.extend(list.transcripts);
            bad.extend(list.bad);
        }
        Evaluation { bad, ..Evaluation::new(transcripts) }
    }

    /// The error rates of whoever always chose that of the best texts which has the fewest word errors, the first of several; none
    /// unless a search was asked for several.
    pub fn oracle(&self) -> Option<Score> {
        if self.transcripts.iter().all(|one| one.transcription.nbest.is_empty()) {
            return None;
        }
        let chosen = |one: &Transcript| {
            let Transcript { id, subset, speaker, reference, hypothesis, transcription, .. } = one;
            let errors = |text: &&String| word_errors(reference, text).errors();
            let text = transcription
                .nbest
                .iter()
                .map(|ranked| &ranked.text)
                .min_by_key(errors)
                .unwrap_or(hypothesis);
            let heard = Transcription { text: text.clone(), ..Transcription::default() };
            Transcript::new(id.clone(), subset.clone(), speaker.clone(), reference.clone(), heard)
        };
        Some(Score::new(&self.transcripts.iter().map(chosen).collect::<Vec<_>>()))
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
                    left_out.push(ExcludedUtterance { id, reason, has_other_rate: false });
                }
                Err(_) => transcripts.push(serde_json::from_str(line).map_err(|error| (number, error))?),
            }
        }
        let bad = BadItems { left_out, other_length: Vec::new() };
        Ok(Evaluation { bad, ..Evaluation::new(transcripts) })
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

impl Recognizer {
    /// Cuts examples into batches in the order of their lengths; `fits` may refuse so many utterances of so many rows.
    pub fn plan_batches(&self, examples: &[Example], fits: &dyn Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
        examples::plan_batches(examples, &self.model().config().input.rows, self.batch_size(), fits)
    }

    /// The texts of some batches of examples, by the numbers of the examples.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the flag becomes true; errors of the model or the search.
    pub fn recognize_examples(
        &self,
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
            let found = self.recognize(&features)?;
            for ((index, features), found) in batch.into_iter().zip(features).zip(found) {
                texts.push((index, self.written(features, &found)?.after(examples[index].lead)));
            }
        }
        Ok(texts)
    }

    /// What the loss of some utterances is computed from, all in one padded batch.
    ///
    /// # Errors
    /// [`Error::Empty`] for an empty list; [`Error::Speech`](model::Error::Speech) for audio or text that the model cannot read.
    pub fn joint_rows(&self, utterances: &[Utterance]) -> Result<JointRows> {
        if utterances.is_empty() {
            return Err(Error::Empty { what: "batch".into() });
        }
        let (tokenizer, stop) = (Some(self.tokenizer()), AtomicBool::new(false));
        let examples = examples::load_with(utterances, &self.front_end, tokenizer, self.conversion(), &stop)?;
        let planes: Vec<_> = examples.iter().map(|example| &example.features).collect();
        let (rows, lengths) = model::collate(&planes, &self.model().config().input.rows)?;
        let labels: Vec<Vec<u32>> = examples.iter().map(|example| example.labels.clone()).collect();
        Ok(self.model().joint_rows(&rows, &lengths, &labels)?)
    }

    /// Scores the texts of examples against their references.
    pub fn score(
        &self,
        examples: &[Example],
        texts: impl IntoIterator<Item = (usize, Transcription)>,
    ) -> Evaluation {
        let mut all = vec![Transcription::default(); examples.len()];
        texts.into_iter().for_each(|(index, text)| all[index] = text);
        let transcript = |(example, heard): (&Example, Transcription)| {
            let Example { id, subset, speaker, text, .. } = example;
            let reference = self.tokenizer().normalize(text);
            let reference = match self.omits_special() {
                true => self.tokenizer().without_special(&reference),
                false => reference.into_owned(),
            };
            Transcript::new(id.clone(), subset.clone(), speaker.clone(), reference, heard)
        };
        let mut evaluation = Evaluation::new(examples.iter().zip(all).map(transcript).collect());
        examples::count_changes(&mut evaluation.changes, examples);
        evaluation
    }
}

/// Recognizes every utterance of a list and counts errors, for each subset and each speaker apart and overall.
///
/// References are converted as training texts were ([`normalize`](speech::Tokenizer::normalize)).
///
/// # Errors
/// [`Error::Empty`] for an empty list; [`Error::TooManyBad`], before anything is recognized, if more than
/// [`Recognizer::with_max_bad`] allows cannot be used. Others are left out and listed in [`Evaluation::bad`].
pub fn evaluate(recognizer: &Recognizer, utterances: &[Utterance]) -> Result<Evaluation> {
    let (examples, bad) = recognizer.examples(utterances, None)?;
    bad.check("evaluation", utterances.len(), recognizer.max_bad())?;
    if examples.is_empty() {
        return Err(Error::Empty { what: "evaluation".into() });
    }
    let batches = recognizer.plan_batches(&examples, &|_, _| true);
    let texts = recognizer.recognize_examples(&examples, batches, &AtomicBool::new(false))?;
    Ok(Evaluation { bad, ..recognizer.score(&examples, texts) })
}
