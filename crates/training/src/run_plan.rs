//! `RunPlan`: predicted peak memory of a run, and batches that fit a budget.
//!
//! ```text
//! planned = baseline + (fixed + prefetched + step) · 17/16
//! fixed   = 2 numbers a weight: itself, average; 4 more if it is trained: two moments, and
//!           gradients of a step and of one backward pass
//! step    = upper bound of encoder, predictor, projections and losses of a batch, in the passes
//!           that each of them has
//! ```
//! The sums are upper bounds by shape only, so that a recipe has the same batches on every machine;
//! the sixteenth is memory that an allocator loses between its blocks.
mod step_bytes;

use std::fmt;

use crate::data::Batch;
use crate::encoder_pass::EncoderPass;
use crate::{Error, Result};
use model::Model;
use speech::memory::format_bytes;
use step_bytes::encoded_step_bytes;
pub use step_bytes::{check_step_bytes, recomputed_step_bytes, step_bytes};

/// Planned memory, divided by what an allocator loses of it.
const ALLOCATOR_LOSS_DIVISOR: usize = 16;
/// Copies of the weights and moments while a checkpoint is read.
///
/// Those of the model, and those of the checkpoint.
pub(crate) const COPIES_DURING_READ: usize = 2;
/// Bytes of a number.
const BYTES_PER_NUMBER: usize = size_of::<f32>();
/// Numbers for each weight: itself and its average.
pub(crate) const NUMBERS_PER_WEIGHT: usize = 2;
/// Moments of each trained weight.
pub(crate) const MOMENTS_PER_WEIGHT: usize = 2;
/// Gradients of each trained weight: their sum over a step, and those of one backward pass.
const GRADIENTS_PER_WEIGHT: usize = 2;
/// Copies of a batch's rows while it is loaded.
///
/// Rows, stacked features, features before and after masks, and the audio with its copies.
const FEATURE_COPIES: usize = 5;
/// Bytes of the names and lists of an utterance in a batch.
const UTTERANCE_OVERHEAD_BYTES: usize = 4096;

/// The shape of a padded batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Number of utterances.
    pub utterances: usize,
    /// Input rows of the longest one, or encoder rows from a cache.
    pub rows: usize,
    /// Labels of the longest one.
    pub labels: usize,
}

impl BatchShape {
    /// Returns the shape of a batch.
    pub fn from_batch(batch: &Batch) -> Self {
        BatchShape {
            utterances: batch.labels.len(),
            rows: batch.lengths.iter().copied().max().unwrap_or(0),
            labels: batch.labels.iter().map(Vec::len).max().unwrap_or(0),
        }
    }
}

/// Returns the bytes of weights, averages and moments.
fn stored_bytes(model: &Model) -> usize {
    let (count, trained) = (model.parameters().count(), trained_count(model));
    BYTES_PER_NUMBER * (NUMBERS_PER_WEIGHT * count + MOMENTS_PER_WEIGHT * trained)
}

/// Returns the number of weights that training changes.
fn trained_count(model: &Model) -> usize {
    model.parameters().iter_trained().map(|(_, variable)| variable.elem_count()).sum()
}

/// Returns the bytes in use from the first to the last step.
fn fixed_bytes(model: &Model) -> usize {
    stored_bytes(model) + GRADIENTS_PER_WEIGHT * BYTES_PER_NUMBER * trained_count(model)
}

/// Returns the bytes while a checkpoint is read; two copies of the current tensor exist.
fn reading_bytes(model: &Model) -> usize {
    let largest = model.parameters().iter().map(|(_, variable)| variable.elem_count()).max().unwrap_or(0);
    COPIES_DURING_READ * stored_bytes(model) + 2 * BYTES_PER_NUMBER * largest
}

/// Returns the bytes of prefetched batches and their inputs.
///
/// Rows have `row_width` values.
fn prefetched_bytes(row_width: usize, shape: BatchShape) -> usize {
    let rows = shape.utterances * shape.rows;
    let batch_bytes = FEATURE_COPIES * BYTES_PER_NUMBER * rows * row_width
        + shape.utterances * (shape.labels * BYTES_PER_NUMBER + UTTERANCE_OVERHEAD_BYTES);
    BATCHES_IN_MEMORY.saturating_mul(batch_bytes)
}

/// Returns the shape of utterances of unknown text.
///
/// They have as many labels as encoder frames.
fn shape_of_rows(model: &Model, utterances: usize, rows: usize) -> BatchShape {
    BatchShape { utterances, rows, labels: model.config().encoder.output_rows(rows) }
}

/// Returns the bytes for encoding utterances of dev, test or a cache.
///
/// An encoder with packed inference has a copy of its weights then, which takes the place of the
/// gradients; frozen weights have none.
fn evaluation_bytes(model: &Model, utterances: usize, rows: usize) -> usize {
    let frozen_count = model.parameters().count() - trained_count(model);
    let encoding = model.encoding_bytes(utterances, rows).unwrap_or(usize::MAX);
    encoding.saturating_add(BYTES_PER_NUMBER * frozen_count)
}

/// Batches that are loaded, waiting or in use.
const BATCHES_IN_MEMORY: usize = crate::data::PREFETCHED_BATCHES + 1;

/// Bytes of the program itself: code, libraries, stacks and small allocations.
const PROGRAM_BYTES: usize = 48 << 20;

/// Returns the bytes of a process before a model is created.
///
/// `data_bytes` is the size of features and lists.
pub(crate) fn baseline_bytes(data_bytes: usize) -> usize {
    PROGRAM_BYTES + data_bytes + data_bytes / ALLOCATOR_LOSS_DIVISOR
}

/// The memory plan of a run, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunPlan {
    /// The memory budget.
    pub budget: usize,
    /// The process before the model is created: the program, features in memory, lists of
    /// utterances.
    pub baseline: usize,
    /// Weights, optimizer state and gradients.
    pub fixed: usize,
    /// Prefetched batches.
    pub prefetched: usize,
    /// The largest step.
    pub step: usize,
    /// A model in addition to a checkpoint that is being read.
    ///
    /// No step runs at that time.
    pub reading: usize,
    /// The work of a step in the encoder.
    pub encoder_pass: EncoderPass,
}

impl RunPlan {
    /// Plans a run.
    ///
    /// `longest` and `longest_evaluated` are the input rows of the longest utterances in training
    /// and evaluation; `min_utterances` is the number of utterances that batches have at any
    /// length. With [`EncoderPass::Cached`], the encoder runs before the steps. If the longest
    /// utterance fits only with recomputation, [`EncoderPass::Saved`] becomes
    /// [`EncoderPass::Recomputed`], where the encoder has it.
    ///
    /// # Errors
    /// [`Error::NoPlan`], see [`check_step_bytes`]; [`Error::Budget`] if the longest utterance does
    /// not fit next to such prefetched batches, with and without recomputation.
    pub(crate) fn new(
        model: &Model,
        budget: usize,
        baseline: usize,
        longest: usize,
        longest_evaluated: usize,
        min_utterances: usize,
        encoder_pass: EncoderPass,
    ) -> Result<Self> {
        check_step_bytes(model)?;
        let (reading, fixed) = (reading_bytes(model), fixed_bytes(model));
        let plan = RunPlan { budget, baseline, fixed, prefetched: 0, step: 0, reading, encoder_pass };
        let plan_pass = |encoder_pass| {
            let plan = RunPlan { encoder_pass, ..plan };
            plan.with_step(model, longest, longest_evaluated, min_utterances)
        };
        match plan_pass(encoder_pass) {
            Err(Error::Budget { smallest: saved, .. }) if encoder_pass == EncoderPass::Saved => {
                match plan_pass(EncoderPass::Recomputed) {
                    Err(Error::Budget { smallest, .. }) => {
                        Err(Error::Budget { budget, smallest: smallest.min(saved) })
                    }
                    plan => plan,
                }
            }
            plan => plan,
        }
    }

    /// Plans batches and steps; see [`Self::new`].
    fn with_step(
        self,
        model: &Model,
        longest: usize,
        longest_evaluated: usize,
        min_utterances: usize,
    ) -> Result<Self> {
        let mut plan = self;
        plan.prefetched = plan.prefetched_bytes(model, plan.batch_shape(model, min_utterances, longest));
        let longest_step = plan.step_bytes(model, plan.batch_shape(model, 1, longest));
        let evaluation = evaluation_bytes(model, 1, longest_evaluated);
        // Rows for a cache are computed with prefetched batches of input rows.
        let caching = match plan.encoder_pass {
            EncoderPass::Cached => plan.caching_bytes(model, 1, longest),
            EncoderPass::Saved | EncoderPass::Recomputed => 0,
        };
        // No batches are prefetched during an evaluation.
        plan.step = longest_step.max(evaluation.max(caching).saturating_sub(plan.prefetched));
        plan.check()?;
        // Batches may use all that remains.
        Ok(RunPlan { step: plan.available().saturating_sub(plan.prefetched), ..plan })
    }

    /// Returns the bytes for a step and prefetched batches.
    fn available(&self) -> usize {
        let usable =
            self.budget.saturating_sub(self.baseline) / (ALLOCATOR_LOSS_DIVISOR + 1) * ALLOCATOR_LOSS_DIVISOR;
        usable.saturating_sub(self.fixed)
    }

    /// Returns the shape of a batch of utterances with `rows` input rows.
    fn batch_shape(&self, model: &Model, utterances: usize, rows: usize) -> BatchShape {
        let shape = shape_of_rows(model, utterances, rows);
        match self.encoder_pass {
            EncoderPass::Cached => BatchShape { rows: shape.labels, ..shape },
            EncoderPass::Saved | EncoderPass::Recomputed => shape,
        }
    }

    /// Returns the bytes of a batch's passes.
    fn step_bytes(&self, model: &Model, shape: BatchShape) -> usize {
        match self.encoder_pass {
            EncoderPass::Cached => encoded_step_bytes(model, shape),
            EncoderPass::Saved => step_bytes(model, shape),
            EncoderPass::Recomputed => recomputed_step_bytes(model, shape),
        }
    }

    /// Returns the bytes of prefetched batches of input rows or encoder rows.
    fn prefetched_bytes(&self, model: &Model, shape: BatchShape) -> usize {
        let row_width = match self.encoder_pass {
            EncoderPass::Cached => model.encoder().width(),
            EncoderPass::Saved | EncoderPass::Recomputed => model.config().input.width(),
        };
        prefetched_bytes(row_width, shape)
    }

    /// Returns the bytes for encoding a batch for a cache.
    fn caching_bytes(&self, model: &Model, utterances: usize, rows: usize) -> usize {
        let prefetched =
            prefetched_bytes(model.config().input.width(), shape_of_rows(model, utterances, rows));
        evaluation_bytes(model, utterances, rows).saturating_add(prefetched)
    }

    /// Returns true if a step of these utterances fits.
    pub(crate) fn fits(&self, model: &Model, utterances: usize, rows: usize) -> bool {
        let shape = self.batch_shape(model, utterances, rows);
        self.step_bytes(model, shape).saturating_add(self.prefetched_bytes(model, shape)) <= self.available()
    }

    /// Returns true if these utterances fit without a backward pass.
    pub(crate) fn fits_encoding(&self, model: &Model, utterances: usize, rows: usize) -> bool {
        match self.encoder_pass {
            EncoderPass::Cached => self.caching_bytes(model, utterances, rows) <= self.available(),
            EncoderPass::Saved | EncoderPass::Recomputed => {
                self.fits(model, utterances, rows)
                    && evaluation_bytes(model, utterances, rows) <= self.available()
            }
        }
    }

    /// Splits a batch into parts that fit.
    ///
    /// Augmentation of the audio or long texts can make a batch larger than planned.
    ///
    /// # Errors
    /// [`Error::Memory`](model::Error::Memory) for a single utterance that does not fit.
    pub(crate) fn split(&self, model: &Model, batch: Batch) -> Result<Vec<Batch>> {
        // The whole batch, and the prefetched ones, are in memory until the last of its parts.
        let prefetched = self.prefetched_bytes(model, BatchShape::from_batch(&batch));
        self.split_with_prefetched(model, batch, prefetched)
    }

    /// Halves a batch until its parts fit next to `prefetched` bytes.
    fn split_with_prefetched(&self, model: &Model, batch: Batch, prefetched: usize) -> Result<Vec<Batch>> {
        let shape = BatchShape::from_batch(&batch);
        let (bytes, available) = (self.step_bytes(model, shape).saturating_add(prefetched), self.available());
        if bytes <= available {
            return Ok(vec![batch]);
        }
        if shape.utterances < 2 {
            let id = batch.ids.first().map_or("", String::as_str);
            let description =
                format!("a step of utterance {id}: {} rows and {} labels", shape.rows, shape.labels);
            return Err(model::Error::Memory { what: description, bytes, available }.into());
        }
        let [first, second] = batch.split(shape.utterances / 2)?;
        drop(batch);
        let mut parts = self.split_with_prefetched(model, first, prefetched)?;
        parts.extend(self.split_with_prefetched(model, second, prefetched)?);
        Ok(parts)
    }

    /// Returns the planned peak.
    pub fn peak(&self) -> usize {
        let Self { baseline, fixed, prefetched, step, reading, .. } = *self;
        let planned = fixed.saturating_add(prefetched).saturating_add(step).max(reading);
        baseline.saturating_add(planned).saturating_add(planned / ALLOCATOR_LOSS_DIVISOR)
    }

    /// Returns the reserve of the peak: a sixteenth, and memory for reading checkpoints.
    fn reserve(&self) -> usize {
        let Self { baseline, fixed, prefetched, step, .. } = *self;
        let listed = baseline.saturating_add(fixed).saturating_add(prefetched).saturating_add(step);
        self.peak().saturating_sub(listed)
    }

    /// Checks that the peak is within the budget.
    ///
    /// # Errors
    /// [`Error::Budget`] with the smallest budget of the run.
    fn check(&self) -> Result<()> {
        let (budget, smallest) = (self.budget, self.peak());
        if smallest <= budget { Ok(()) } else { Err(Error::Budget { budget, smallest }) }
    }
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { budget, baseline, fixed, prefetched, step, .. } = *self;
        let [peak, budget, baseline, fixed, prefetched, step, reserve] =
            [self.peak(), budget, baseline, fixed, prefetched, step, self.reserve()].map(format_bytes);
        write!(
            f,
            "memory: {peak} planned of {budget}: {baseline} in use before, {fixed} of weights and optimizer state, {prefetched} of \
             prefetched batches, {step} of the largest step, {reserve} in reserve"
        )?;
        match self.encoder_pass {
            EncoderPass::Recomputed => {
                write!(f, "; layers of the encoder are recomputed in the backward pass")
            }
            EncoderPass::Saved | EncoderPass::Cached => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    /// Creates a model with an encoder and other keys of a recipe.
    fn model(encoder: &str, keys: &str) -> Model {
        let text = format!(
            r#"
            {keys}
            data = {{ train = ["none.jsonl"] }}
            features = {{ mels = 20 }}
            tokens = {{ kind = "words" }}
            encoder = {encoder}
            predictor = {{ kind = "stateless", embedding = 8, context = 1 }}
            joint = {{ width = 8 }}
            loss = {{ kind = "rnnt", budget = "1MiB" }}
            optimizer = {{ learning_rate = 1e-3 }}
            batch = {{ max_frames = 100, max_utterances = 4 }}
            training = {{ epochs = 1 }}
            "#
        );
        let recipe = Recipe::parse(&text, std::path::Path::new("test.toml")).unwrap();
        Model::new(&recipe.model_config(), 10).unwrap()
    }

    #[test]
    fn evaluations_are_planned_with_all_activations_of_recomputed_layers() {
        let model = model(
            r#"{ kind = "conformer", layers = 8, width = 32, heads = 4, feed_forward = 64, kernel = 7 }"#,
            "",
        );
        let plan = RunPlan::new(&model, 100 << 20, 0, 400, 400, 1, EncoderPass::Recomputed).unwrap();
        let largest = |fits: &dyn Fn(usize) -> bool| (1..1000).take_while(|&count| fits(count)).count();
        let trained = largest(&|count| plan.fits(&model, count, 400));
        let evaluated = largest(&|count| plan.fits_encoding(&model, count, 400));
        assert!(0 < evaluated && evaluated < trained, "{evaluated} {trained}");
        assert!(model.encoding_bytes(evaluated, 400).unwrap() <= plan.available());
    }

    #[test]
    fn caches_of_encoder_rows_are_planned_with_packed_weights() {
        let model = model(
            r#"{ kind = "lstm", layers = 2, hidden = 256 }"#,
            r#"init = { weights = "other.safetensors", frozen = ["encoder"] }"#,
        );
        let plan = RunPlan::new(&model, 1 << 30, 0, 40, 40, 1, EncoderPass::Cached).unwrap();
        let encoder = model.parameters().iter().filter(|(name, _)| name.starts_with("encoder."));
        let weights: usize = encoder.map(|(_, weight)| weight.elem_count()).sum();
        let encoding = model.encoding_bytes(1, 40).unwrap();
        assert!(plan.caching_bytes(&model, 1, 40) >= encoding + 4 * weights);
    }
}
