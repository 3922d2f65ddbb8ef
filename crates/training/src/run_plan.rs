//! What a step and a run take in memory, known before the first step.
//!
//! ```text
//! planned = what the process holds already + what is fixed + batches that wait + the largest step + 1/16 of the three
//! fixed   = weights, two moments, average: 4 numbers a weight; two more for gradients: a step's sum, and those of a part of it
//! step    = what encoder, predictor, projections and losses of a batch hold at most, forward and backward
//! ```
//! The sums are upper bounds by shape alone, so that the same recipe has the same batches everywhere; the 16th is what an allocator
//! loses between its blocks.
use std::fmt;

use crate::data::Batch;
use crate::{Error, Result};
use model::Model;
use model::config::{LossConfig, Terms};
use speech::memory::format_bytes;

/// Bytes of a number.
const F: usize = size_of::<f32>();
/// Numbers a weight, beside gradients: itself, two moments, an average.
const NUMBERS: usize = 4;
/// Bytes that a step takes whatever its shape: stacks and blocks of threads, nodes of the graph.
const ALWAYS: usize = 4 << 20;

/// The shape of a padded batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchShape {
    /// Utterances.
    pub utterances: usize,
    /// Input rows of the longest.
    pub rows: usize,
    /// Labels of the longest.
    pub labels: usize,
}

impl BatchShape {
    /// That of a batch.
    pub fn of(batch: &Batch) -> Self {
        BatchShape {
            utterances: batch.labels.len(),
            rows: batch.lengths.iter().copied().max().unwrap_or(0),
            labels: batch.labels.iter().map(Vec::len).max().unwrap_or(0),
        }
    }
}

/// Fails if the memory of a model's steps is not known.
///
/// # Errors
/// [`Error::NoPlan`] if the encoder, the predictor or the loss does not report what it takes.
pub fn check_step_bytes(model: &Model) -> Result<()> {
    let none = |what: &str| Error::NoPlan { what: what.to_owned() };
    let config = model.config();
    if model.encoder().bytes(1, 1, config.input.width()).is_none() {
        return Err(none("the encoder"));
    }
    if model.predictor().ok_or_else(|| none("a recognition lattice"))?.bytes(1, 1).is_none() {
        return Err(none("the predictor"));
    }
    // One takes all there is, the other what lattices and sites take beside it.
    let budget = config.loss.options.budget;
    if budget.bytes == usize::MAX {
        return Err(none(&format!("loss.budget = \"{budget}\"")));
    }
    Ok(())
}

/// Bytes that are there from the first step to the last.
fn fixed_bytes(model: &Model) -> usize {
    (NUMBERS + 2) * F * model.parameters().count()
}

/// Bytes of the batches that wait, and of what they are made from.
fn waiting_bytes(model: &Model, shape: BatchShape) -> usize {
    // Rows, stacked planes, planes before and after masks, and the sound with its copies.
    let rows = shape.utterances * shape.rows;
    let batch = 5 * F * rows * model.config().input.width() + shape.utterances * (shape.labels * F + 4096);
    WAITING.saturating_mul(batch)
}

/// Most bytes that forward and backward of a batch hold beside weights, their gradients and the input rows.
pub fn step_bytes(model: &Model, shape: BatchShape) -> usize {
    let BatchShape { utterances, rows, labels } = shape;
    let config = model.config();
    let encoder = model.encoder().bytes(utterances, rows, config.input.width()).unwrap_or(usize::MAX);
    let predictor = model.predictor().and_then(|part| part.bytes(utterances, labels + 1));
    let frames = utterances * rows.div_ceil(config.encoder.reduction());
    let positions = utterances * (labels + 1);
    let (w, p) = (model.encoder().width(), model.predictor().map_or(0, |part| part.width()));
    // Projected rows and their gradients, and gradients of what was projected, twice where they are added up.
    let joint = F * (4 * (frames + positions) * model.width() + 3 * (frames * w + positions * p));
    let pruned = match config.loss.kind {
        LossConfig::Pruned { .. } => 2 * F * (frames * w + positions * p),
        _ => 0,
    };
    let ctc = if Terms::has_ctc(&config.terms) { 2 * F * frames * w } else { 0 };
    // An auxiliary CTC loss shares the budget.
    let losses = config.loss.options.budget.bytes;
    // Losses keep their gradients of heads as long as the graph lives.
    let heads = ["joint.head", "joint.durations", "ctc", "simple"];
    let heads = model.parameters().iter().filter(|(name, _)| heads.iter().any(|head| name.starts_with(head)));
    let heads = F * heads.map(|(_, head)| head.elem_count()).sum::<usize>();
    [encoder, predictor.unwrap_or(usize::MAX), joint, pruned, ctc, losses, heads, ALWAYS]
        .into_iter()
        .fold(0, usize::saturating_add)
}

/// The shape of utterances whose labels are not known: as many as encoder frames.
fn shape_of_rows(model: &Model, utterances: usize, rows: usize) -> BatchShape {
    BatchShape { utterances, rows, labels: rows.div_ceil(model.config().encoder.reduction()) }
}

/// Batches that are made, wait or are computed.
const WAITING: usize = crate::data::PREFETCHED_BATCHES + 1;

/// What the program itself holds: its code and libraries, stacks and small things.
const PROGRAM: usize = 48 << 20;

/// What a process holds before a model is made, when so many bytes of features and lists are in memory.
pub(crate) fn before(data: usize) -> usize {
    PROGRAM + data + data / 16
}

/// What a run takes, and what it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunPlan {
    /// What it may.
    pub budget: usize,
    /// What the process holds before the model is made: the program, features in memory, lists of utterances.
    pub before: usize,
    /// What stays from the first step to the last.
    pub fixed: usize,
    /// Batches that wait.
    pub waiting: usize,
    /// The largest step.
    pub step: usize,
    /// A model in training beside a checkpoint that is being read, its bytes and its numbers; there is no step then.
    pub reading: usize,
}

impl RunPlan {
    /// The plan of a run whose longest training utterance has `longest` input rows, and the longest that is evaluated `evaluated`;
    /// `together` is the number of utterances that batches have however long they are.
    ///
    /// # Errors
    /// [`Error::NoPlan`], see [`check_step_bytes`]; [`Error::Budget`] if the longest utterance does not fit alone, beside such batches
    /// that wait.
    pub(crate) fn new(
        model: &Model,
        budget: usize,
        before: usize,
        (longest, evaluated, together): (usize, usize, usize),
    ) -> Result<Self> {
        check_step_bytes(model)?;
        let alone = step_bytes(model, shape_of_rows(model, 1, longest));
        let waiting = waiting_bytes(model, shape_of_rows(model, together, longest));
        // Nothing waits during an evaluation.
        let evaluation = model.encoding_bytes(1, evaluated).unwrap_or(usize::MAX);
        let step = alone.max(evaluation.saturating_sub(waiting));
        let reading = 3 * NUMBERS * F * model.parameters().count();
        let plan = RunPlan { budget, before, fixed: fixed_bytes(model), waiting, step, reading };
        plan.check()?;
        // All that is left may be used by one batch or another.
        Ok(RunPlan { step: plan.available().saturating_sub(waiting), ..plan })
    }

    /// Bytes for a step and the batches that wait.
    fn available(&self) -> usize {
        (self.budget.saturating_sub(self.before) / 17 * 16).saturating_sub(self.fixed)
    }

    /// Whether a step of so many utterances of at most so many rows fits.
    pub(crate) fn holds(&self, model: &Model, utterances: usize, rows: usize) -> bool {
        let shape = shape_of_rows(model, utterances, rows);
        step_bytes(model, shape).saturating_add(waiting_bytes(model, shape)) <= self.available()
    }

    /// Cuts a batch into parts that fit, as changes to sound or many labels can make it larger than was planned.
    ///
    /// # Errors
    /// [`Error::Memory`](model::Error::Memory) for an utterance that does not fit alone.
    pub(crate) fn parts(&self, model: &Model, batch: Batch) -> Result<Vec<Batch>> {
        // The whole batch, and those behind it, are there until the last of its parts.
        let waiting = waiting_bytes(model, BatchShape::of(&batch));
        self.parts_beside(model, batch, waiting)
    }

    fn parts_beside(&self, model: &Model, batch: Batch, waiting: usize) -> Result<Vec<Batch>> {
        let shape = BatchShape::of(&batch);
        let (bytes, available) = (step_bytes(model, shape).saturating_add(waiting), self.available());
        if bytes <= available {
            return Ok(vec![batch]);
        }
        if shape.utterances < 2 {
            let of = batch.ids.first().map_or("", String::as_str);
            let what = format!("a step of utterance {of}: {} rows and {} labels", shape.rows, shape.labels);
            return Err(model::Error::Memory { what, bytes, available }.into());
        }
        let [first, second] = batch.split(shape.utterances / 2)?;
        drop(batch);
        let mut parts = self.parts_beside(model, first, waiting)?;
        parts.extend(self.parts_beside(model, second, waiting)?);
        Ok(parts)
    }

    /// The planned peak.
    pub fn peak(&self) -> usize {
        let Self { before, fixed, waiting, step, reading, .. } = *self;
        let own = fixed.saturating_add(waiting).saturating_add(step).max(reading);
        before.saturating_add(own).saturating_add(own / 16)
    }

    /// What is left of the peak beside the parts that are named: room for reading that is more than they are, and a sixteenth that nobody
    /// accounts for.
    fn rest(&self) -> usize {
        let Self { before, fixed, waiting, step, .. } = *self;
        let named = before.saturating_add(fixed).saturating_add(waiting).saturating_add(step);
        self.peak().saturating_sub(named)
    }

    /// Fails if the peak is more than the budget, with what would do.
    ///
    /// # Errors
    /// [`Error::Budget`]
    fn check(&self) -> Result<()> {
        let (budget, smallest) = (self.budget, self.peak());
        if smallest <= budget { Ok(()) } else { Err(Error::Budget { budget, smallest }) }
    }
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { budget, before, fixed, waiting, step, .. } = *self;
        let [peak, budget, before, fixed, waiting, step, rest] =
            [self.peak(), budget, before, fixed, waiting, step, self.rest()].map(amount);
        write!(
            f,
            "memory: {peak} planned of {budget}: {before} already held, {fixed} of weights and moments, {waiting} of waiting batches, \
             {step} of the largest step, {rest} to spare"
        )
    }
}
