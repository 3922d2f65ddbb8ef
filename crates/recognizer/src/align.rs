//! When the words of known texts were said.
use std::collections::BTreeMap;
use std::fmt::Write;

use rnnt_loss::{Alignment, Head, Joint, Layout, Loss, MemoryPlan, Options, Session};
use serde::{Deserialize, Serialize};
use speech::{AudioChange, Tokenizer};

use crate::OutputIds;
use crate::Result;
use crate::bad_items::BadItems;
use crate::examples::{self, BatchSize, Example};
use model::ModelConfig;
use model::tensors::with_slices;
use model::{JointRows, Model};

/// A token and its place in the audio, on the best path of all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenAlignment {
    /// The token's own text.
    pub text: String,
    /// Start of the frame at which it is emitted, in seconds from the start of the audio.
    pub start: f64,
    /// Seconds until the next token is emitted; one frame for the last one, and never less.
    pub duration: f64,
    /// Expected time of its emission over all paths, in seconds.
    pub expected: f64,
    /// Natural log-probability of its arc.
    pub log_prob: f64,
    /// Posterior probability that it is emitted at this frame.
    pub confidence: f64,
}

/// A word and its place in the audio.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AlignedWord {
    /// The word.
    pub text: String,
    /// When its first token is emitted, in seconds from the start of the audio.
    pub start: f64,
    /// Seconds until its last token is over.
    pub duration: f64,
    /// The lowest of its tokens' confidences.
    pub confidence: f64,
    /// Index of its first token, and of the first one that is no more part of it.
    pub tokens: (usize, usize),
}

/// What is known about one utterance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AlignedUtterance {
    /// Id from the manifest.
    pub id: String,
    /// Transcript.
    pub text: String,
    /// Natural logarithm of the probability of the transcript, over all paths.
    pub log_likelihood: f64,
    /// That of the best path alone.
    pub best_path: f64,
    /// Mean over the tokens of their expected times, in seconds; none without a token.
    ///
    /// By as much as it differs between two models on the same audio, their latencies differ.
    pub expected_latency: Option<f64>,
    /// The tokens in their order.
    pub tokens: Vec<TokenAlignment>,
    /// The words in their order.
    pub words: Vec<AlignedWord>,
}

/// Alignments of a list of utterances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alignments {
    /// Seconds from one encoder frame to the next: what times are multiples of.
    pub frame_seconds: f64,
    /// Mean over the tokens of all utterances of their expected times, in seconds; none without a token.
    pub expected_latency: Option<f64>,
    /// Ids of the utterances that have no path: too many labels for their frames, or none that the model gives any probability.
    pub without_path: Vec<String>,
    /// Utterances that cannot be used, and recordings of another length than their lines.
    #[serde(flatten)]
    pub bad: BadItems,
    /// The others, in the order of the list.
    pub utterances: Vec<AlignedUtterance>,
    /// What was done to how many recordings so that the model can read them.
    #[serde(skip)]
    pub changes: BTreeMap<AudioChange, usize>,
}

impl Alignments {
    /// Those of several lists as those of one, in this order; none without a list.
    pub fn merge(lists: impl IntoIterator<Item = Alignments>) -> Option<Self> {
        let mut lists = lists.into_iter();
        let mut all = lists.next()?;
        for list in lists {
            all.without_path.extend(list.without_path);
            all.bad.extend(list.bad);
            all.utterances.extend(list.utterances);
            list.changes
                .into_iter()
                .for_each(|(change, count)| *all.changes.entry(change).or_default() += count);
        }
        all.expected_latency = latency(all.utterances.iter().flat_map(|utterance| &utterance.tokens));
        Some(all)
    }

    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self::empty(config.frame_ms() / 1000.0)
    }

    /// Those of no utterance, at so many seconds from one encoder frame to the next.
    pub fn empty(frame_seconds: f64) -> Self {
        Self {
            frame_seconds,
            expected_latency: None,
            without_path: Vec::new(),
            bad: BadItems::default(),
            utterances: Vec::new(),
            changes: BTreeMap::new(),
        }
    }

    /// Aligns some more utterances.
    pub(crate) fn extend(
        &mut self,
        model: &Model,
        tokenizer: &Tokenizer,
        batches: BatchSize,
        examples: &[Example],
    ) -> Result<()> {
        examples::count_changes(&mut self.changes, examples);
        let mut found = vec![None; examples.len()];
        for batch in examples::plan_batches(examples, &model.config().input.rows, batches, &|_, _| true) {
            let alignments = align(model, examples, &batch)?;
            batch.into_iter().zip(alignments).for_each(|(index, alignment)| found[index] = alignment);
        }
        for (example, found) in examples.iter().zip(found) {
            // Where a model says NaN or nothing but -inf, there are no labels on the best path.
            let sound = |found: &rnnt_loss::Alignment| {
                found.tokens.len() == example.labels.len() && found.log_prob.is_finite()
            };
            match found.filter(sound) {
                Some(found) => {
                    self.utterances.push(self.utterance(tokenizer, model.config(), example, &found)?)
                }
                None => self.without_path.push(example.id.clone()),
            }
        }
        let tokens = self.utterances.iter().flat_map(|utterance| &utterance.tokens);
        self.expected_latency = latency(tokens);
        Ok(())
    }

    fn utterance(
        &self,
        tokenizer: &Tokenizer,
        config: &ModelConfig,
        example: &Example,
        found: &Alignment,
    ) -> Result<AlignedUtterance> {
        let frame_ms = config.frame_ms();
        let seconds = |frames: f64| frames * frame_ms / 1000.0;
        let time = |frames: f64| seconds(frames) + example.lead;
        let mut tokens = Vec::with_capacity(found.tokens.len());
        let mut spans = Vec::with_capacity(found.tokens.len());
        for (index, token) in found.tokens.iter().enumerate() {
            let next = found.tokens.get(index + 1).map_or(0, |next| next.frame);
            let span = token.frame..next.max(token.frame + 1);
            tokens.push(TokenAlignment {
                text: tokenizer.tokens()[token.label as usize].clone(),
                start: time(span.start as f64),
                duration: seconds(span.len() as f64),
                expected: time(token.expected_frame),
                log_prob: token.log_prob,
                confidence: token.confidence,
            });
            spans.push(span);
        }
        let word = |group: std::ops::Range<usize>| -> Result<AlignedWord> {
            let (first, last) = (&spans[group.start], &spans[group.end - 1]);
            let confidences = tokens[group.clone()].iter().map(|token| token.confidence);
            Ok(AlignedWord {
                text: tokenizer.decode(&example.labels[group.clone()])?,
                start: time(first.start as f64),
                duration: seconds((last.end - first.start) as f64),
                confidence: confidences.fold(1.0, f64::min),
                tokens: (group.start, group.end),
            })
        };
        let words =
            crate::words::groups(tokenizer, &example.labels).into_iter().map(word).collect::<Result<_>>()?;
        Ok(AlignedUtterance {
            id: example.id.clone(),
            text: tokenizer.normalize(&example.text).into_owned(),
            log_likelihood: -found.loss,
            best_path: found.log_prob,
            expected_latency: latency(tokens.iter()),
            tokens,
            words,
        })
    }
}

/// What a line of CTM is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CtmUnit {
    /// A word.
    #[default]
    Words,
    /// A token.
    Tokens,
}

impl Alignments {
    /// CTM, as NIST's sclite reads it: a line `utterance channel start duration text confidence` for each word or
    /// token, times in seconds, the channel always 1.
    ///
    /// `ids` are the names of the utterances of the whole list. A token of white space becomes `<space>`.
    pub fn ctm(&self, unit: CtmUnit, ids: &OutputIds) -> String {
        let mut out = String::new();
        for utterance in &self.utterances {
            let id = ids.name(&utterance.id);
            let mut line = |start: f64, duration: f64, text: &str, confidence: f64| {
                let text = if text.trim().is_empty() { "<space>" } else { text };
                // Writing to a string does not fail.
                let _ = writeln!(out, "{id} 1 {start:.3} {duration:.3} {text} {confidence:.4}");
            };
            match unit {
                CtmUnit::Words => {
                    utterance.words.iter().for_each(|w| line(w.start, w.duration, &w.text, w.confidence));
                }
                CtmUnit::Tokens => {
                    utterance.tokens.iter().for_each(|t| line(t.start, t.duration, &t.text, t.confidence));
                }
            }
        }
        out
    }

    /// Everything as one JSON object in a line, with the names that the fields have here.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts have a place in JSON") + "\n"
    }
}

fn latency<'a>(tokens: impl Iterator<Item = &'a TokenAlignment>) -> Option<f64> {
    let (count, sum) = tokens.fold((0, 0.0), |(count, sum), token| (count + 1, sum + token.expected));
    (count > 0).then(|| sum / f64::from(count))
}

/// Bytes a site that the best path and what is read off it take, beside the sums over all paths.
const OF_PATH: usize = 32;

/// Best paths of a batch.
fn align(model: &Model, examples: &[Example], batch: &[usize]) -> Result<Vec<Option<Alignment>>> {
    let planes: Vec<_> = batch.iter().map(|&index| &examples[index].features).collect();
    let (rows, lengths) = model::collate(&planes, &model.config().input.rows)?;
    let labels: Vec<Vec<u32>> = batch.iter().map(|&index| examples[index].labels.clone()).collect();
    let JointRows { frames, labels, weight, bias, durations, targets } =
        model.joint_rows(&rows, &lengths, &labels)?;
    let ((_, padded, width), (_, positions, _)) = (frames.dims3()?, labels.dims3()?);
    let mut plain = Options { budget: usize::MAX, keep_scores: false, ..model.config().loss_options()? };
    if let Loss::Pruned { .. } = plain.loss {
        // The joint network's arcs, over all sites.
        plain.loss = Options::default().loss;
    }
    let plan = MemoryPlan::new::<f32>(&targets, width, weight.dims()[0], &plain)?;
    let sites = plan.shape.sites;
    let longest = batch.iter().max_by_key(|&&index| examples[index].labels.len());
    let what = || {
        let of = longest.map_or("", |&index| &examples[index].id);
        format!("alignment of {of}: {sites} sites, which are encoder frames times label positions")
    };
    model::Error::expect_memory(what, plan.transient.saturating_add(sites.saturating_mul(OF_PATH)))?;
    let layout = Layout::Padded { frames: padded, positions };
    let session = Session::new(&model.config().loss_options()?)?;
    let run = |rows: &[&[f32]], tokens: &[&[f32]], durations: Option<&[&[f32]]>| -> rnnt_loss::Result<_> {
        let mut joint = Joint::new(rows[0], rows[1], head(tokens, width)?).with_layout(layout);
        joint.durations = durations.map(|durations| head(durations, width)).transpose()?;
        session.align(&joint, &targets)
    };
    let found = with_slices(&[&frames, &labels], |rows| {
        with_slices(&[&weight, &bias], |head| match &durations {
            Some((weight, bias)) => {
                with_slices(&[weight, bias], |durations| Ok(run(rows, head, Some(durations))))
            }
            None => Ok(run(rows, head, None)),
        })
    })?;
    Ok(found?)
}

fn head<'a>(parts: &[&'a [f32]], width: usize) -> rnnt_loss::Result<Head<'a, f32>> {
    Ok(Head::new(parts[0], Some(parts[1]), width)?)
}
