//! The trivial joiner of a made-up model.
use kernels::{Accumulate, View, ViewMut, product};
use pruned::{Batch, Heads, Linear, Matrices};
use rnnt_loss::{MemoryPlan, Options, Pruning, SimpleInputs, Targets};

use super::answer::PruningReport;
use super::case::{FirstPassScores, PrunedWork};
use super::error::Result;
use super::inputs::{LossInputs, targets};

/// `am = f Wᵀ` and `lm = g Wᵀ + b`: what the head says of the rows one by one, without the joint's tanh.
pub enum Trivial {
    /// Scores, *B x T x C* and *B x (U+1) x C*.
    Matrices {
        /// Of the frames.
        am: Vec<f32>,
        /// Of the labels.
        lm: Vec<f32>,
    },
    /// Weights *C x H* of a layer each, and the bias of the second.
    Heads {
        /// Of the frames.
        am: Vec<f32>,
        /// Of the labels.
        lm: Vec<f32>,
        /// Of the labels.
        bias: Vec<f32>,
    },
}

impl Trivial {
    /// That of a model's rows and head; every value was written.
    pub fn of(inputs: &LossInputs, scores: FirstPassScores) -> Self {
        let LossInputs { frames, labels, weight, bias, sizes, .. } = inputs;
        match scores {
            FirstPassScores::Heads => {
                Self::Heads { am: weight.clone(), lm: weight.clone(), bias: bias.clone() }
            }
            FirstPassScores::Matrices => {
                let (h, c) = (sizes.hidden, sizes.classes);
                let head = View::new(weight, c, h).transposed();
                let scores = |rows: &[f32], mut out: Vec<f32>| {
                    let count = rows.len() / h;
                    let into = ViewMut::new(&mut out, count, c);
                    product(into, View::new(rows, count, h), head, 1.0, Accumulate::Add);
                    out
                };
                let am = scores(frames, vec![0.0; frames.len() / h * c]);
                let lm = scores(labels, bias.repeat(labels.len() / h));
                Self::Matrices { am, lm }
            }
        }
    }

    /// The first pass's view of it; layers are over the same rows as the joint.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn source<'a>(
        &'a self,
        frames: &'a [f32],
        labels: &'a [f32],
        hidden: usize,
    ) -> Result<SimpleInputs<'a, f32>> {
        Ok(match self {
            Self::Matrices { am, lm } => {
                let classes = am.len() * hidden / frames.len();
                SimpleInputs::Matrices(Matrices::new(am, lm, classes)?)
            }
            Self::Heads { am, lm, bias } => {
                let am = Linear::new(frames, am, None, hidden)?;
                SimpleInputs::Heads(Heads::new(am, Linear::new(labels, lm, Some(bias), hidden)?)?)
            }
        })
    }
}

impl PrunedWork {
    /// What whoever does it is told.
    pub fn pruning(&self) -> Pruning {
        Pruning { s_range: self.s_range, ..Pruning::default() }
    }

    /// What is said about so many retained sites.
    pub fn report(&self, retained: usize) -> PruningReport {
        let share = retained as f64 / self.loss.sizes().sites as f64;
        PruningReport { scores: self.scores, retained, share }
    }

    /// Bytes of the gradient of what the first pass is given, `f32`; what it is given takes no more.
    pub fn source_bytes(&self) -> u64 {
        let sizes = self.loss.sizes();
        let rows = sizes.batch * (sizes.frames + sizes.labels + 1);
        4 * match self.scores {
            FirstPassScores::Matrices => rows * sizes.classes,
            FirstPassScores::Heads => rows * sizes.hidden + 2 * sizes.classes * (sizes.hidden + 1),
        } as u64
    }

    /// Sites that pruning retains.
    pub fn retained(&self) -> usize {
        let (frames, labels) = self.loss.all_lengths();
        frames.iter().zip(labels).map(|(frames, labels)| frames * self.s_range.min(labels + 1)).sum()
    }

    /// Floating-point operations of the first pass's products.
    pub fn first_operations(&self) -> u64 {
        let sizes = self.loss.sizes();
        // Sums of exponentials, and a gradient for either side.
        let pairs = 6 * (sizes.sites * sizes.classes) as u64;
        let rows = sizes.batch * (sizes.frames + sizes.labels + 1);
        match self.scores {
            FirstPassScores::Matrices => pairs,
            // Scores in forward and again in backward, gradients of rows and weight.
            FirstPassScores::Heads => pairs + 8 * (rows * sizes.hidden) as u64 * sizes.classes as u64,
        }
    }

    /// Those of our second pass, which do not depend on where the bands lie.
    ///
    /// # Errors
    /// Sizes that the loss refuses.
    pub fn second_operations(&self, options: &Options) -> Result<u64> {
        let targets = targets(&self.loss)?;
        let bands = |b: usize| vec![0..self.s_range.min(targets.labels(b).len() + 1); targets.frames(b)];
        let retained = targets.with_bands((0..targets.batch()).map(bands).collect())?;
        Ok(MemoryPlan::new::<f32>(&retained, self.loss.hidden, self.loss.classes, options)?.operations)
    }
}

/// Targets as the first pass wants them, rows padded.
///
/// # Errors
/// What the first pass refuses.
pub fn batch(targets: &Targets, frames: usize, labels: usize) -> Result<Batch> {
    let each = 0..targets.batch();
    let lengths = each.clone().map(|b| targets.frames(b)).collect();
    let sequences = each.map(|b| targets.labels(b).to_vec()).collect();
    Ok(Batch::padded(targets.blank(), lengths, sequences, frames, labels + 1)?)
}
