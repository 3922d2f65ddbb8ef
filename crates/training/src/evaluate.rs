//! What a model makes of a set of utterances.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use decoding::Aggregate;
use serde::{Deserialize, Serialize, Serializer};
use speech::{Change, ErrorCounts, Tokenizer, character_errors, word_errors};

use crate::bad_items::{BadItems, LeftOut};
use crate::data::{self, Example};
use crate::model::Model;
use crate::ranks::{self, Ranks};
use crate::recipe::BatchConfig;
use crate::run_plan::Limit;
use crate::score::Score;
use crate::search::{Search, Searcher};
use crate::silence::is_silence;
use crate::transcription::{RankedText, Transcription, Writer};
use crate::{Error, Result};

/// What the model said about one utterance.
///
/// It is read from a line of [`Evaluation::hypotheses`] without the times of words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Line")]
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
    pub heard: Transcription,
}

/// A line of [`Evaluation::hypotheses`].
#[derive(Deserialize)]
struct Line {
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

impl From<Line> for Transcript {
    fn from(line: Line) -> Self {
        let Line { id, subset, speaker, reference, hypothesis, discarded, nbest } = line;
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
            heard,
        }
    }
}

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
    /// Utterances whose text was discarded as silence; see [`crate::Recogniser::with_silence`].
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

/// Recognises all examples and counts errors, for each subset and each speaker apart and overall; what `silence` says of words that are not
/// believed is at [`crate::Recogniser::with_silence`], and 0 believes all. Each process hears some batches, and all learn what was heard.
///
/// # Errors
/// [`Error::Empty`] without examples; [`Error::Stopped`] if the flag becomes true; errors of the model or the search.
pub(crate) fn evaluate(
    (model, search, aggregate): (&Model, &Search, Aggregate),
    (tokenizer, ignores_special): (&Tokenizer, bool),
    (batches, limit): (&BatchConfig, Option<&Limit>),
    examples: &[Example],
    silence: f64,
    (ranks, stop): (&mut dyn Ranks, &AtomicBool),
) -> Result<Evaluation> {
    if examples.is_empty() {
        return Err(Error::Empty { what: "evaluation".into() });
    }
    let writer = Writer::new(!model.durations().is_empty(), model.config().frame_ms() / 1000.0, aggregate)
        .with_special_omitted(ignores_special);
    let mut searcher = Searcher::new(model, search, silence > 0.0)?;
    let mut hear = |batches: &mut dyn Iterator<Item = Vec<usize>>| {
        let mut heard = Vec::new();
        for batch in batches {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let planes: Vec<_> = batch.iter().map(|&index| &examples[index].features).collect();
            let found = searcher.recognise(model, &planes)?;
            for ((index, plane), found) in batch.into_iter().zip(planes).zip(found) {
                let text = match is_silence(plane, tokenizer, &found, silence) {
                    true => Transcription { silence: true, ..Transcription::default() },
                    false => writer.write_found(tokenizer, &found)?.after(examples[index].lead),
                };
                heard.push((index, text));
            }
        }
        Ok(heard)
    };
    let (rank, count) = (ranks.rank(), ranks.count());
    let batches = data::plan(examples, &model.config().input.rows, batches, limit);
    let mine = hear(&mut batches.into_iter().skip(rank).step_by(count));
    let mine = ranks::agree(ranks, mine)?;
    let all = if count == 1 { vec![mine] } else { ranks::exchange(ranks, &mine)? };
    let mut texts = vec![Transcription::default(); examples.len()];
    all.into_iter().flatten().for_each(|(index, heard)| texts[index] = heard);
    let transcripts: Vec<Transcript> = examples
        .iter()
        .zip(texts)
        .map(|(example, heard)| {
            let Example { id, subset, speaker, text, .. } = example;
            let reference = tokenizer.normalize(text);
            let reference = match ignores_special {
                true => tokenizer.without_special(&reference),
                false => reference.into_owned(),
            };
            Transcript::new(id.clone(), subset.clone(), speaker.clone(), reference, heard)
        })
        .collect();
    let mut evaluation = Evaluation::of(transcripts);
    data::count_changes(&mut evaluation.changes, examples);
    Ok(evaluation)
}
