//! Padded batches, and which utterances meet in them.
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
    /// Rows and labels, for the losses of a model.
    pub fn labeled(&self) -> LabeledRows<'_> {
        LabeledRows { rows: &self.rows, lengths: &self.lengths, labels: &self.labels }
    }

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
    fits: &dyn Fn(usize, usize) -> bool,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<Vec<usize>>> {
    if batches.buckets == 0 {
        let size = batches.size();
        let fits = |count: usize, longest: usize| size.fits(count, longest) && fits(count, longest);
        return Ok(speech::batching::plan_batches_with(rows, &fits, Some(rng)));
    }
    let buckets = speech::batching::split_into_buckets(seconds, batches.buckets)?;
    // The utterances of a step are of one bucket, or of two neighbours, and all steps have as many.
    let of_step = batches.max_utterances.saturating_mul(batches.accumulate);
    let steps = speech::batching::bucket_batches(&buckets, of_step, rng)?;
    Ok(steps.iter().flat_map(|step| step.chunks(batches.max_utterances)).map(<[usize]>::to_vec).collect())
}
