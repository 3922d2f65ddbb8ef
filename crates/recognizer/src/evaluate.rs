//! Recognizes a set of utterances and computes word and character error rates.
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

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// The score over all utterances.
    pub overall: Score,
    /// The score of each subset in the manifest.
    pub subsets: BTreeMap<String, Score>,
    /// The score of each speaker in the manifest.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub speakers: BTreeMap<String, Score>,
    /// Utterances whose text was discarded as silence.
    ///
    /// See [`crate::Recognizer::with_silence`].
    #[serde(rename = "discarded")]
    pub num_discarded: usize,
    /// Excluded utterances, which are not scored, and recordings of another length.
    #[serde(flatten)]
    pub bad: BadItems,
    /// References and hypotheses, in the order of the manifest.
    #[serde(skip)]
    pub transcripts: Vec<Transcript>,
    /// Conversions of recordings, with the number of recordings.
    #[serde(skip)]
    pub changes: BTreeMap<AudioChange, usize>,
}

impl Evaluation {
    /// Scores transcripts, overall and in parts.
    pub fn new(transcripts: Vec<Transcript>) -> Self {
        Evaluation {
            overall: Score::new(&transcripts),
            subsets: Score::group_by(&transcripts, |transcript| transcript.subset.as_ref()),
            speakers: Score::group_by(&transcripts, |transcript| transcript.speaker.as_ref()),
            num_discarded: transcripts.iter().filter(|transcript| transcript.is_discarded).count(),
            bad: BadItems::default(),
            transcripts,
            changes: BTreeMap::new(),
        }
    }

    /// Scores the transcripts of several lists as one, in order.
    ///
    /// Conversions ([`Evaluation::changes`]) are not merged.
    pub fn merge(lists: impl IntoIterator<Item = Evaluation>) -> Self {
        let (mut transcripts, mut bad) = (Vec::new(), BadItems::default());
        for list in lists {
            transcripts.extend(list.transcripts);
            bad.extend(list.bad);
        }
        Evaluation { bad, ..Evaluation::new(transcripts) }
    }

    /// Returns the score of the best n-best text of each utterance.
    ///
    /// The best text has the fewest word errors; on ties, the first is chosen. `None` if no n-best
    /// texts were requested.
    pub fn oracle(&self) -> Option<Score> {
        if self.transcripts.iter().all(|transcript| transcript.transcription.nbest.is_empty()) {
            return None;
        }
        let with_best_text = |transcript: &Transcript| {
            let Transcript { id, subset, speaker, reference, hypothesis, transcription, .. } = transcript;
            let count_errors = |text: &&String| word_errors(reference, text).errors();
            let text = transcription
                .nbest
                .iter()
                .map(|ranked| &ranked.text)
                .min_by_key(count_errors)
                .unwrap_or(hypothesis);
            let best = Transcription { text: text.clone(), ..Transcription::default() };
            Transcript::new(id.clone(), subset.clone(), speaker.clone(), reference.clone(), best)
        };
        Some(Score::new(&self.transcripts.iter().map(with_best_text).collect::<Vec<_>>()))
    }

    /// Formats one JSON line per utterance.
    ///
    /// A line has id, subset, speaker, reference, hypothesis and, if requested, the n-best texts. A
    /// line `{"id": ..., "left_out": REASON}` for each excluded utterance follows.
    pub fn hypotheses(&self) -> String {
        let transcripts = self.transcripts.iter().map(to_json_line);
        let to_excluded_line = |item: &ExcludedUtterance| {
            to_json_line(&ExcludedLine { id: item.id.clone(), reason: item.reason.clone() })
        };
        transcripts.chain(self.bad.excluded.iter().map(to_excluded_line)).collect()
    }

    /// Reads the lines of [`Self::hypotheses`]; blank lines are skipped.
    ///
    /// # Errors
    /// The parser's error, with the line number from 1.
    pub fn read(text: &str) -> std::result::Result<Self, (usize, serde_json::Error)> {
        let (mut transcripts, mut excluded) = (Vec::new(), Vec::new());
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        for (number, line) in lines {
            match serde_json::from_str::<ExcludedLine>(line) {
                Ok(ExcludedLine { id, reason }) => {
                    excluded.push(ExcludedUtterance { id, reason, has_other_rate: false });
                }
                Err(_) => transcripts.push(serde_json::from_str(line).map_err(|error| (number, error))?),
            }
        }
        let bad = BadItems { excluded, other_length: Vec::new() };
        Ok(Evaluation { bad, ..Evaluation::new(transcripts) })
    }
}

/// A line of [`Evaluation::hypotheses`] about an excluded utterance.
#[derive(Serialize, Deserialize)]
struct ExcludedLine {
    #[serde(deserialize_with = "speech::names::required_id")]
    id: String,
    #[serde(rename = "left_out")]
    reason: String,
}

fn to_json_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("numbers and strings are valid JSON") + "\n"
}

impl Recognizer {
    /// Splits examples into batches of similar length.
    ///
    /// `fits(utterances, rows)` returns false for a padded batch that is too large.
    pub fn plan_batches(&self, examples: &[Example], fits: &dyn Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
        examples::plan_batches(examples, &self.model().config().input.rows, self.batch_limits(), fits)
    }

    /// Recognizes batches of examples; returns texts with the indices of the examples.
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
            let results = self.recognize(&features)?;
            for ((index, features), result) in batch.into_iter().zip(features).zip(results) {
                texts.push((
                    index,
                    self.to_transcription(features, &result)?.delayed_by(examples[index].lead),
                ));
            }
        }
        Ok(texts)
    }

    /// Computes the inputs of the loss in one padded batch.
    ///
    /// Benchmarks run the loss on them.
    ///
    /// # Errors
    /// [`Error::Empty`] for an empty list; [`Error::Speech`](model::Error::Speech) for audio or
    /// text that the model cannot read.
    pub fn joint_rows(&self, utterances: &[Utterance]) -> Result<JointRows> {
        if utterances.is_empty() {
            return Err(Error::Empty { what: "batch".into() });
        }
        let (tokenizer, stop) = (Some(self.tokenizer()), AtomicBool::new(false));
        let examples = examples::load_with(utterances, &self.front_end, tokenizer, self.conversion(), &stop)?;
        let features: Vec<_> = examples.iter().map(|example| &example.features).collect();
        let (rows, lengths) = model::collate(&features, &self.model().config().input.rows)?;
        let labels: Vec<Vec<u32>> = examples.iter().map(|example| example.labels.clone()).collect();
        Ok(self.model().joint_rows(&rows, &lengths, &labels)?)
    }

    /// Scores the texts of examples against their references.
    pub fn score(
        &self,
        examples: &[Example],
        texts: impl IntoIterator<Item = (usize, Transcription)>,
    ) -> Evaluation {
        let mut transcriptions = vec![Transcription::default(); examples.len()];
        texts.into_iter().for_each(|(index, text)| transcriptions[index] = text);
        let new_transcript = |(example, transcription): (&Example, Transcription)| {
            let Example { id, subset, speaker, text, .. } = example;
            let reference = self.tokenizer().normalize(text);
            let reference = match self.omits_special() {
                true => self.tokenizer().without_special(&reference),
                false => reference.into_owned(),
            };
            Transcript::new(id.clone(), subset.clone(), speaker.clone(), reference, transcription)
        };
        let mut evaluation =
            Evaluation::new(examples.iter().zip(transcriptions).map(new_transcript).collect());
        examples::count_changes(&mut evaluation.changes, examples);
        evaluation
    }
}

/// Recognizes utterances and counts errors, overall and in parts.
///
/// References are normalized like training texts ([`normalize`](speech::Tokenizer::normalize)).
///
/// # Errors
/// [`Error::Empty`] for an empty list; [`Error::TooManyBad`], before recognition, if more
/// utterances cannot be used than [`Recognizer::with_max_bad`] allows. Otherwise they are excluded
/// and listed in [`Evaluation::bad`].
pub fn evaluate(recognizer: &Recognizer, utterances: &[Utterance]) -> Result<Evaluation> {
    let (examples, bad) = recognizer.load_examples(utterances, None)?;
    bad.check("evaluation", utterances.len(), recognizer.max_bad())?;
    if examples.is_empty() {
        return Err(Error::Empty { what: "evaluation".into() });
    }
    let batches = recognizer.plan_batches(&examples, &|_, _| true);
    let texts = recognizer.recognize_examples(&examples, batches, &AtomicBool::new(false))?;
    Ok(Evaluation { bad, ..recognizer.score(&examples, texts) })
}
