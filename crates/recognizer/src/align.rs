//! Forced alignment: times and confidences of the words of given transcripts.
//!
//! For each batch of examples, [`Session::align`] or, for a CTC model, [`align_ctc`] finds the best
//! path of the transcript and the posteriors of its tokens over all paths; frames then become
//! seconds and tokens words.
use std::collections::BTreeMap;
use std::fmt::Write;

use candle_core::Tensor;
use decoding::unpad;
use rnnt_loss::{
    Head, JointInputs, LabelAlignment, Layout, Loss, MemoryPlan, Options, Session, Targets, align_ctc,
};
use serde::{Deserialize, Serialize};
use speech::{AudioChange, Tokenizer};

use crate::OutputIds;
use crate::bad_items::BadItems;
use crate::examples::{self, BatchSize, Example};
use crate::{Error, Result};
use model::ModelConfig;
use model::tensors::{with_slice, with_slices};
use model::{JointRows, Model};

/// A token and its time on the best path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenAlignment {
    /// The text of the token.
    pub text: String,
    /// Start of its frame, in seconds from the start of the audio.
    pub start: f64,
    /// Seconds until the next token is emitted, at least one frame; one frame for the last token.
    pub duration: f64,
    /// Expected emission time over all paths, in seconds.
    pub expected: f64,
    /// Natural log-probability of its arc.
    pub log_prob: f64,
    /// Posterior probability of its emission at this frame.
    pub confidence: f64,
}

/// A word and its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AlignedWord {
    /// The word.
    pub text: String,
    /// Emission time of its first token, in seconds.
    pub start: f64,
    /// Seconds until the end of its last token.
    pub duration: f64,
    /// The lowest confidence of its tokens.
    pub confidence: f64,
    /// Index of its first token, and the index after its last token.
    pub tokens: (usize, usize),
}

/// The alignment of an utterance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AlignedUtterance {
    /// Id from the manifest.
    pub id: String,
    /// Transcript.
    pub text: String,
    /// Natural log-probability of the transcript over all paths.
    pub log_likelihood: f64,
    /// Natural log-probability of the best path.
    pub best_path: f64,
    /// Mean expected emission time of the tokens, in seconds; `None` without tokens.
    ///
    /// The difference between two models on the same audio is the difference of their latencies.
    pub expected_latency: Option<f64>,
    /// The tokens, in order.
    pub tokens: Vec<TokenAlignment>,
    /// The words, in order.
    pub words: Vec<AlignedWord>,
}

/// Alignments of a list of utterances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alignments {
    /// Seconds per encoder frame, the resolution of times.
    pub frame_seconds: f64,
    /// Mean expected emission time of all tokens, in seconds; `None` without tokens.
    pub expected_latency: Option<f64>,
    /// Ids of utterances without a path.
    ///
    /// They have too many labels for their frames, or no path with a positive probability.
    pub without_path: Vec<String>,
    /// Excluded utterances, and recordings whose length differs from the manifest.
    #[serde(flatten)]
    pub bad: BadItems,
    /// The aligned utterances, in the order of the list.
    pub utterances: Vec<AlignedUtterance>,
    /// Conversions of recordings, with the number of recordings.
    #[serde(skip)]
    pub changes: BTreeMap<AudioChange, usize>,
}

impl Alignments {
    /// Concatenates alignments of several lists, such as shards; `None` without a list.
    pub fn merge(lists: impl IntoIterator<Item = Alignments>) -> Option<Self> {
        let mut lists = lists.into_iter();
        let mut merged = lists.next()?;
        for list in lists {
            merged.without_path.extend(list.without_path);
            merged.bad.extend(list.bad);
            merged.utterances.extend(list.utterances);
            list.changes
                .into_iter()
                .for_each(|(change, count)| *merged.changes.entry(change).or_default() += count);
        }
        merged.expected_latency =
            mean_expected_time(merged.utterances.iter().flat_map(|utterance| &utterance.tokens));
        Some(merged)
    }

    pub(crate) fn new(config: &ModelConfig) -> Self {
        Self::empty(config.frame_ms() / 1000.0)
    }

    /// Creates a list without utterances.
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

    /// Aligns further utterances.
    pub(crate) fn extend(
        &mut self,
        model: &Model,
        tokenizer: &Tokenizer,
        batches: BatchSize,
        examples: &[Example],
    ) -> Result<()> {
        examples::count_changes(&mut self.changes, examples);
        // 1. Best paths, batch by batch.
        let mut alignments_by_example = vec![None; examples.len()];
        for batch in examples::plan_batches(examples, &model.config().input.rows, batches, &|_, _| true) {
            let alignments = align_batch(model, examples, &batch)?;
            batch
                .into_iter()
                .zip(alignments)
                .for_each(|(index, alignment)| alignments_by_example[index] = alignment);
        }
        // 2. Utterances with times, in the order of the examples.
        for (example, alignment) in examples.iter().zip(alignments_by_example) {
            // If all scores are NaN or -inf, the best path has no labels.
            let is_valid = |alignment: &rnnt_loss::LabelAlignment| {
                alignment.labels.len() == example.labels.len() && alignment.log_prob.is_finite()
            };
            match alignment.filter(is_valid) {
                Some(alignment) => self.utterances.push(self.new_utterance(
                    tokenizer,
                    model.config(),
                    example,
                    &alignment,
                )?),
                None => self.without_path.push(example.id.clone()),
            }
        }
        let tokens = self.utterances.iter().flat_map(|utterance| &utterance.tokens);
        self.expected_latency = mean_expected_time(tokens);
        Ok(())
    }

    /// Converts frames to seconds, and tokens to words.
    fn new_utterance(
        &self,
        tokenizer: &Tokenizer,
        config: &ModelConfig,
        example: &Example,
        alignment: &LabelAlignment,
    ) -> Result<AlignedUtterance> {
        // 1. Times: trimmed silence precedes the first frame.
        let frame_ms = config.frame_ms();
        let to_seconds = |frames: f64| frames * frame_ms / 1000.0;
        let start_of = |frame: f64| to_seconds(frame) + example.lead;
        // 2. Tokens: each lasts until the next one is emitted.
        let mut tokens = Vec::with_capacity(alignment.labels.len());
        let mut frame_spans = Vec::with_capacity(alignment.labels.len());
        for (index, token) in alignment.labels.iter().enumerate() {
            let next_frame = alignment.labels.get(index + 1).map_or(0, |next| next.frame);
            let span = token.frame..next_frame.max(token.frame + 1);
            tokens.push(TokenAlignment {
                text: tokenizer.tokens()[token.label as usize].clone(),
                start: start_of(span.start as f64),
                duration: to_seconds(span.len() as f64),
                expected: start_of(token.expected_frame),
                log_prob: token.log_prob,
                confidence: token.confidence,
            });
            frame_spans.push(span);
        }
        // 3. Words: from the first to the last of their tokens.
        let aligned_word = |range: std::ops::Range<usize>| -> Result<AlignedWord> {
            let (first_span, last_span) = (&frame_spans[range.start], &frame_spans[range.end - 1]);
            let confidences = tokens[range.clone()].iter().map(|token| token.confidence);
            Ok(AlignedWord {
                text: tokenizer.decode(&example.labels[range.clone()])?,
                start: start_of(first_span.start as f64),
                duration: to_seconds((last_span.end - first_span.start) as f64),
                confidence: confidences.fold(1.0, f64::min),
                tokens: (range.start, range.end),
            })
        };
        let words = crate::words::word_ranges(tokenizer, &example.labels)
            .into_iter()
            .map(aligned_word)
            .collect::<Result<_>>()?;
        Ok(AlignedUtterance {
            id: example.id.clone(),
            text: tokenizer.normalize(&example.text).into_owned(),
            log_likelihood: -alignment.loss,
            best_path: alignment.log_prob,
            expected_latency: mean_expected_time(tokens.iter()),
            tokens,
            words,
        })
    }
}

/// The unit of a CTM line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CtmUnit {
    /// A word.
    #[default]
    Words,
    /// A token.
    Tokens,
}

impl Alignments {
    /// Formats the alignments as CTM for NIST's sclite.
    ///
    /// One line `utterance channel start duration text confidence` per word or token, times in
    /// seconds, channel 1. `ids` maps the ids of the whole list to names. A token of white space
    /// becomes `<space>`.
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

    /// Formats the alignments as one line of JSON.
    ///
    /// The keys are the field names of this type.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings are valid JSON") + "\n"
    }
}

/// Returns the mean expected emission time of tokens, in seconds.
fn mean_expected_time<'a>(tokens: impl Iterator<Item = &'a TokenAlignment>) -> Option<f64> {
    let (count, sum) = tokens.fold((0, 0.0), |(count, sum), token| (count + 1, sum + token.expected));
    (count > 0).then(|| sum / f64::from(count))
}

/// Bytes per site of the best path, without those of the loss.
///
/// A site is a lattice node: an encoder frame and a label position.
const BEST_PATH_BYTES_PER_SITE: usize = 32;

/// Computes the best paths of a batch.
fn align_batch(model: &Model, examples: &[Example], batch: &[usize]) -> Result<Vec<Option<LabelAlignment>>> {
    // 1. Encoder and predictor: the inputs of the joint network.
    let features: Vec<_> = batch.iter().map(|&index| &examples[index].features).collect();
    let (rows, lengths) = model::collate(&features, &model.config().input.rows)?;
    let labels: Vec<Vec<u32>> = batch.iter().map(|&index| examples[index].labels.clone()).collect();
    let longest_example = batch.iter().max_by_key(|&&index| examples[index].labels.len());
    let longest_id = longest_example.map_or("", |&index| &examples[index].id);
    if model.is_ctc() {
        return align_ctc_batch(model, &rows, &lengths, labels, longest_id);
    }
    let JointRows { frames, labels, weight, bias, durations, targets } =
        model.joint_rows(&rows, &lengths, &labels)?;
    let ((_, padded_frames, width), (_, label_positions, _)) = (frames.dims3()?, labels.dims3()?);
    // 2. The memory of the best paths, in addition to that of the loss.
    let mut loss_options =
        Options { budget: usize::MAX, keep_scores: false, ..model.config().loss_options()? };
    if let Loss::Pruned { .. } = loss_options.loss {
        // The path uses the arcs of the joint network, over all sites.
        loss_options.loss = Options::default().loss;
    }
    let plan = MemoryPlan::new::<f32>(&targets, width, weight.dims()[0], &loss_options)?;
    let num_sites = plan.shape.sites;
    model::Error::expect_memory(
        || describe_sites(longest_id, num_sites),
        plan.transient_bytes.saturating_add(num_sites.saturating_mul(BEST_PATH_BYTES_PER_SITE)),
    )?;
    // 3. Best paths and posteriors.
    let layout = Layout::Padded { frames: padded_frames, positions: label_positions };
    let session = Session::new(&model.config().loss_options()?)?;
    // Each argument is a list of slices: (frames, labels), (weight, bias), (weight, bias).
    let align_slices =
        |rows: &[&[f32]], token_head: &[&[f32]], duration_head: Option<&[&[f32]]>| -> rnnt_loss::Result<_> {
            let mut joint =
                JointInputs::new(rows[0], rows[1], new_head(token_head, width)?).with_layout(layout);
            joint.durations = duration_head.map(|parts| new_head(parts, width)).transpose()?;
            session.align(&joint, &targets)
        };
    let alignments = with_slices(&[&frames, &labels], |rows| {
        with_slices(&[&weight, &bias], |head| match &durations {
            Some((weight, bias)) => {
                with_slices(&[weight, bias], |durations| Ok(align_slices(rows, head, Some(durations))))
            }
            None => Ok(align_slices(rows, head, None)),
        })
    })?;
    Ok(alignments?)
}

/// Bytes per site of a CTC alignment.
///
/// Utterances are aligned one after the other. A site is an encoder frame and a label position: its
/// emission, its posterior, α and β of two states, and an arc of the best path.
const CTC_BYTES_PER_SITE: usize = 96;

/// Computes the best paths of a batch in a CTC model.
fn align_ctc_batch(
    model: &Model,
    rows: &Tensor,
    lengths: &[usize],
    labels: Vec<Vec<u32>>,
    longest_id: &str,
) -> Result<Vec<Option<LabelAlignment>>> {
    let (encoded, lengths) = model.encoder().forward(rows, lengths, None)?;
    let sites = lengths.iter().zip(&labels).map(|(&frames, labels)| frames * (labels.len() + 1));
    let max_sites = sites.max().unwrap_or(0);
    model::Error::expect_memory(
        || describe_sites(longest_id, max_sites),
        max_sites.saturating_mul(CTC_BYTES_PER_SITE),
    )?;
    let log_probs = model.ctc_log_probabilities(&encoded)?;
    let log_probs = log_probs.ok_or_else(|| Error::shape("model", "a CTC head", "none"))?;
    let classes = log_probs.dim(2)?;
    let targets = Targets::new(model.blank(), lengths.clone(), labels)?;
    let alignments = with_slice(&log_probs, |values: &[f32]| {
        Ok(unpad(values, classes, &lengths).map(|utterances| align_ctc(&utterances, classes, &targets)))
    })?;
    Ok(alignments??)
}

/// Describes the alignment of an utterance in an error about memory.
fn describe_sites(id: &str, sites: usize) -> String {
    format!("alignment of {id}: {sites} sites, which are encoder frames times label positions")
}

/// Creates a head from its weight and bias.
fn new_head<'a>(parts: &[&'a [f32]], width: usize) -> rnnt_loss::Result<Head<'a, f32>> {
    Ok(Head::new(parts[0], Some(parts[1]), width)?)
}
