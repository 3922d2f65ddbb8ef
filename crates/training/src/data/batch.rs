//! Padded batches, and which utterances meet in them.
use candle_core::Tensor;
use rand_chacha::ChaCha8Rng;
use speech::Features;

use super::Example;
use crate::bad_items::BadItems;
use crate::recipe::{BatchConfig, RowsConfig};
use crate::run_plan::Limit;
use crate::{Result, tensors};

/// A padded batch.
#[derive(Debug)]
pub struct Batch {
    /// Names of the utterances.
    pub ids: Vec<String>,
    /// Their numbers, by which dropout knows them: from 0, or those of the training set, which the trainer puts here.
    pub numbers: Vec<u64>,
    /// Their length in all.
    pub seconds: f64,
    /// Input rows `[B, T, D]`.
    pub rows: Tensor,
    /// Rows of each utterance.
    pub lengths: Vec<usize>,
    /// Labels of each utterance.
    pub labels: Vec<Vec<u32>>,
    /// Numbers of the utterances that were asked for and cannot be used.
    pub absent: Vec<usize>,
    /// Why, and which recordings are not as long as their manifest says.
    pub bad: BadItems,
}

impl Batch {
    /// The first utterances, and the others, without the padding that they no longer need.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn split(&self, first: usize) -> Result<[Batch; 2]> {
        let all = self.lengths.len();
        let part = |from: usize, to: usize| -> Result<Batch> {
            let lengths = self.lengths[from..to].to_vec();
            let longest = lengths.iter().copied().max().unwrap_or(0);
            let rows = self.rows.narrow(0, from, to - from)?.narrow(1, 0, longest)?.contiguous()?;
            let share = (to - from) as f64 / all as f64;
            let ids = self.ids.get(from..to).map(<[String]>::to_vec).unwrap_or_default();
            let (numbers, labels) = (self.numbers[from..to].to_vec(), self.labels[from..to].to_vec());
            let seconds = share * self.seconds;
            Ok(Batch { ids, seconds, numbers, ..Batch::new(rows, lengths, labels) })
        };
        Ok([part(0, first)?, part(first, all)?])
    }

    /// Utterances without names, numbered from 0.
    ///
    /// # Shapes
    /// `rows [B, T, D]`, D = mels · stack; `lengths` has B entries of at most T; `labels` has B sequences.
    pub fn new(rows: Tensor, lengths: Vec<usize>, labels: Vec<Vec<u32>>) -> Self {
        let numbers = (0..labels.len() as u64).collect();
        let (ids, absent, bad) = (Vec::new(), Vec::new(), BadItems::default());
        Batch { ids, numbers, seconds: 0.0, rows, lengths, labels, absent, bad }
    }
}

/// Which of so many utterances of some lengths, in rows and in seconds, meet in which batch of an epoch of training.
pub(super) fn train_plan(
    rows: &[usize],
    seconds: &[f64],
    batches: &BatchConfig,
    limit: Option<&Limit>,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<Vec<usize>>> {
    if batches.buckets == 0 {
        return Ok(cut(rows, batches, limit, Some(rng)));
    }
    let buckets = speech::batching::buckets(seconds, batches.buckets)?;
    // The utterances of a step are of one bucket, or of two neighbours, and all steps have as many.
    let of_step = batches.max_utterances.saturating_mul(batches.accumulate);
    let steps = speech::batching::bucketed(&buckets, of_step, rng)?;
    Ok(steps.iter().flat_map(|step| step.chunks(batches.max_utterances)).map(<[usize]>::to_vec).collect())
}

/// Input rows of each example.
pub(crate) fn rows<'a>(
    examples: impl IntoIterator<Item = &'a Example>,
    config: &RowsConfig,
) -> impl Iterator<Item = usize> {
    examples.into_iter().map(|example| example.features.frames.div_ceil(config.stride))
}

/// Cuts examples into batches in the order of their lengths.
pub(crate) fn plan(
    examples: &[Example],
    config: &RowsConfig,
    batches: &BatchConfig,
    limit: Option<&Limit>,
) -> Vec<Vec<usize>> {
    cut(&rows(examples, config).collect::<Vec<_>>(), batches, limit, None)
}

fn cut(
    rows: &[usize],
    batches: &BatchConfig,
    limit: Option<&Limit>,
    rng: Option<&mut ChaCha8Rng>,
) -> Vec<Vec<usize>> {
    let &BatchConfig { max_frames, max_utterances, .. } = batches;
    let fits = |count: usize, longest: usize| {
        count <= max_utterances
            && longest.saturating_mul(count) <= max_frames
            && limit.is_none_or(|limit| limit.holds(count, longest))
    };
    speech::batching::batches_that(rows, &fits, rng)
}

/// Stacks frames and pads with zeros: rows `[B, T, stack · D]`, or of more channels, and their lengths.
pub(crate) fn collate(planes: &[&Features], config: &RowsConfig) -> Result<(Tensor, Vec<usize>)> {
    let stacked: Vec<Features> =
        planes.iter().map(|plane| plane.stack_into(config.stack, config.stride, config.channels)).collect();
    let lengths: Vec<usize> = stacked.iter().map(|plane| plane.frames).collect();
    let frames = lengths.iter().copied().max().unwrap_or(0);
    let width = stacked.first().map_or(0, |plane| plane.dim);
    let mut rows = vec![0f32; stacked.len() * frames * width];
    for (to, plane) in rows.chunks_mut((frames * width).max(1)).zip(&stacked) {
        to[..plane.data.len()].copy_from_slice(&plane.data);
    }
    Ok((tensors::from_vec(rows, (stacked.len(), frames, width))?, lengths))
}
