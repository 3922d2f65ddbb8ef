//! Simple joiner (as in k2) for benchmarks of the pruned loss.
use kernels::{Accumulate, View, ViewMut, product};
use pruned::{Batch, Heads, Linear, Matrices};
use rnnt_loss::{MemoryPlan, Options, Pruning, SimpleInputs, Targets};

use super::case::{FirstPassScores, PrunedWork};
use super::error::Result;
use super::inputs::{LossInputs, synthetic_targets};
use super::workload::PruningReport;

/// Scores of frames `am = f Wᵀ` and of labels `lm = g Wᵀ + b`.
///
/// f and g are the projected encoder and predictor rows, W and b the head. The score of a lattice
/// node (t, u) is `am[t] + lm[u]`, without the tanh of the joint network.
pub(crate) enum SimpleScores {
    /// Score matrices.
    Matrices {
        /// Scores of the frames, `[B, T, C]`.
        am: Vec<f32>,
        /// Scores of the labels, `[B, U+1, C]`.
        lm: Vec<f32>,
    },
    /// Linear layers over the rows.
    Heads {
        /// Weight of the frames, `[C, H]`.
        am: Vec<f32>,
        /// Weight of the labels, `[C, H]`.
        lm: Vec<f32>,
        /// Bias of the labels, `[C]`.
        bias: Vec<f32>,
    },
}

impl SimpleScores {
    /// Creates the scores of a model's rows and head; all values are written.
    pub(crate) fn new(inputs: &LossInputs, scores: FirstPassScores) -> Self {
        let LossInputs { frames, labels, weight, bias, sizes, .. } = inputs;
        match scores {
            FirstPassScores::Heads => {
                Self::Heads { am: weight.clone(), lm: weight.clone(), bias: bias.clone() }
            }
            FirstPassScores::Matrices => {
                let (hidden, classes) = (sizes.hidden, sizes.classes);
                let head = View::new(weight, classes, hidden).transposed();
                let scores = |rows: &[f32], mut out: Vec<f32>| {
                    let count = rows.len() / hidden;
                    let view = ViewMut::new(&mut out, count, classes);
                    product(view, View::new(rows, count, hidden), head, 1.0, Accumulate::Add);
                    out
                };
                let am = scores(frames, vec![0.0; frames.len() / hidden * classes]);
                let lm = scores(labels, bias.repeat(labels.len() / hidden));
                Self::Matrices { am, lm }
            }
        }
    }

    /// Returns the input of the first pass; layers use the rows of the joint network.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub(crate) fn first_pass_inputs<'a>(
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
    /// Returns the pruning options.
    pub(crate) fn pruning(&self) -> Pruning {
        Pruning { s_range: self.s_range, ..Pruning::default() }
    }

    /// Returns the report for a number of retained sites.
    pub(crate) fn pruning_report(&self, retained_sites: usize) -> PruningReport {
        let share = retained_sites as f64 / self.loss.sizes().sites as f64;
        PruningReport { scores: self.scores, retained_sites, share }
    }

    /// Returns the bytes of gradients of the first pass in `f32`.
    ///
    /// The inputs have at most as many bytes.
    pub(crate) fn first_pass_bytes(&self) -> u64 {
        let sizes = self.loss.sizes();
        let rows = sizes.batch * (sizes.frames + sizes.labels + 1);
        // Four bytes per value.
        4 * match self.scores {
            FirstPassScores::Matrices => rows * sizes.classes,
            FirstPassScores::Heads => rows * sizes.hidden + 2 * sizes.classes * (sizes.hidden + 1),
        } as u64
    }

    /// Returns the number of sites that pruning retains.
    pub(crate) fn retained_sites(&self) -> usize {
        let (frames, labels) = self.loss.all_lengths();
        frames.iter().zip(labels).map(|(frames, labels)| frames * self.s_range.min(labels + 1)).sum()
    }

    /// Returns the floating-point operations of the first pass.
    pub(crate) fn first_pass_operations(&self) -> u64 {
        let sizes = self.loss.sizes();
        // Sums of exponentials, and gradients of frames and labels.
        let pair_operations = 6 * (sizes.sites * sizes.classes) as u64;
        let rows = sizes.batch * (sizes.frames + sizes.labels + 1);
        match self.scores {
            FirstPassScores::Matrices => pair_operations,
            // Scores in forward and recomputed in backward, gradients of rows and weight.
            FirstPassScores::Heads => {
                pair_operations + 8 * (rows * sizes.hidden) as u64 * sizes.classes as u64
            }
        }
    }

    /// Returns the floating-point operations of the second pass.
    ///
    /// They do not depend on the positions of the bands.
    ///
    /// # Errors
    /// If the loss does not support the sizes.
    pub(crate) fn second_pass_operations(&self, options: &Options) -> Result<u64> {
        let targets = synthetic_targets(&self.loss)?;
        let bands = |b: usize| vec![0..self.s_range.min(targets.labels(b).len() + 1); targets.frames(b)];
        let retained = targets.with_bands((0..targets.batch()).map(bands).collect())?;
        Ok(MemoryPlan::new::<f32>(&retained, self.loss.hidden, self.loss.classes, options)?.operations)
    }
}

/// Converts targets to a padded batch of the first pass.
///
/// # Errors
/// If the first pass does not support the sizes.
pub(crate) fn first_pass_batch(targets: &Targets, frames: usize, labels: usize) -> Result<Batch> {
    let utterances = 0..targets.batch();
    let lengths = utterances.clone().map(|b| targets.frames(b)).collect();
    let sequences = utterances.map(|b| targets.labels(b).to_vec()).collect();
    Ok(Batch::padded(targets.blank(), lengths, sequences, frames, labels + 1)?)
}
