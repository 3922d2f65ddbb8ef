//! Padded training batches, and the assignment of utterances to batches.
use candle_core::Tensor;
use model::LabeledRows;
use rand_chacha::ChaCha8Rng;

use crate::Result;
use crate::recipe::BatchConfig;
use recognizer::bad_items::BadItems;

/// A padded batch.
#[derive(Debug)]
pub struct Batch {
    /// Names of the utterances.
    pub ids: Vec<String>,
    /// Indices of the utterances, which select their dropout masks.
    ///
    /// They count from 0 until the trainer replaces them by the indices in the training set.
    pub indices: Vec<u64>,
    /// Total length of the utterances in seconds.
    pub audio_seconds: f64,
    /// Input rows `[B, T, D]`, or encoder rows `[B, T', W]`.
    pub rows: Tensor,
    /// True if `rows` are encoder rows, of a frozen encoder.
    pub is_encoded: bool,
    /// Rows of each utterance.
    pub lengths: Vec<usize>,
    /// Labels of each utterance.
    pub labels: Vec<Vec<u32>>,
    /// Indices, in the training set, of utterances that cannot be used.
    pub absent: Vec<usize>,
    /// Reasons for `absent`, and recordings of another length than listed.
    pub bad: BadItems,
}

impl Batch {
    /// Returns rows and labels, for the losses of a model.
    pub fn labeled(&self) -> LabeledRows<'_> {
        LabeledRows { rows: &self.rows, lengths: &self.lengths, labels: &self.labels }
    }

    /// Splits the batch after `first_count` utterances.
    ///
    /// Padding that is not needed any more is removed. The length of the audio is divided by the
    /// number of utterances.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn split(&self, first_count: usize) -> Result<[Batch; 2]> {
        let num_utterances = self.lengths.len();
        let part = |start: usize, end: usize| -> Result<Batch> {
            let lengths = self.lengths[start..end].to_vec();
            let longest = lengths.iter().copied().max().unwrap_or(0);
            let rows = self.rows.narrow(0, start, end - start)?.narrow(1, 0, longest)?.contiguous()?;
            let fraction = (end - start) as f64 / num_utterances as f64;
            let ids = self.ids.get(start..end).map(<[String]>::to_vec).unwrap_or_default();
            let (indices, labels) = (self.indices[start..end].to_vec(), self.labels[start..end].to_vec());
            let audio_seconds = fraction * self.audio_seconds;
            let is_encoded = self.is_encoded;
            Ok(Batch { ids, audio_seconds, indices, is_encoded, ..Batch::new(rows, lengths, labels) })
        };
        Ok([part(0, first_count)?, part(first_count, num_utterances)?])
    }

    /// Creates a batch of utterances without names, numbered from 0.
    ///
    /// # Shapes
    /// `rows [B, T, D]`, D = mels · stack; `lengths` has B entries of at most T; `labels` has B
    /// sequences.
    pub fn new(rows: Tensor, lengths: Vec<usize>, labels: Vec<Vec<u32>>) -> Self {
        let indices = (0..labels.len() as u64).collect();
        let (ids, absent, bad) = (Vec::new(), Vec::new(), BadItems::default());
        Batch { ids, indices, audio_seconds: 0.0, rows, is_encoded: false, lengths, labels, absent, bad }
    }
}

/// Assigns utterances to the batches of an epoch of training.
///
/// `row_counts` and `seconds` are the lengths of each utterance; `fits(count, longest)` is true if
/// a batch of `count` utterances of at most `longest` rows may be made.
pub(super) fn plan_training_batches(
    row_counts: &[usize],
    seconds: &[f64],
    config: &BatchConfig,
    fits: &dyn Fn(usize, usize) -> bool,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<Vec<usize>>> {
    if config.buckets == 0 {
        let size = config.size();
        let fits = |count: usize, longest: usize| size.fits(count, longest) && fits(count, longest);
        return Ok(speech::batching::plan_batches_with(row_counts, &fits, Some(rng)));
    }
    let buckets = speech::batching::split_into_buckets(seconds, config.buckets)?;
    // The utterances of a step belong to one bucket or to two adjacent buckets. All steps have the
    // same number of utterances.
    let step_utterances = config.max_utterances.saturating_mul(config.accumulate);
    let steps = speech::batching::bucket_batches(&buckets, step_utterances, rng)?;
    Ok(steps.iter().flat_map(|step| step.chunks(config.max_utterances)).map(<[usize]>::to_vec).collect())
}
