//! Connectionist temporal classification over compact emissions.
//!
//! Graves et al. 2006. States alternate blank and label, `∅ y1 ∅ y2 ∅ .. yU ∅`; state `s` may be entered from
//! itself, from `s - 1`, and from `s - 2` when `s` is a label that differs from the one before. An emission belongs to a frame
//! and not to a site, since nothing depends on what was said before: hence a graph of its own beside [`Topology`], for the same
//! [`walk`](crate::walk).
//!
//! [`Topology`]: crate::Topology
mod emitted;
mod path;
mod trellis;

pub use emitted::{confidences, emission_posteriors, expected_emission_frames};
pub use path::{CtcPath, best_path, sample_paths};

use kernels::{ScratchReq, ensure_capacity};

use crate::{Regularisers, Result, forward_backward::expect, semiring::Log};
use trellis::Trellis;

/// Loss and adjoints of one utterance.
#[derive(Debug, Clone, PartialEq)]
pub struct CtcPosterior {
    /// `-log P`; +inf where the labels do not fit into the frames.
    pub loss: f64,
    /// `dloss/demission`, *T x (U+1)*; 0 for an impossible utterance.
    pub adjoints: Vec<f64>,
}

/// Sums over all CTC alignments of an utterance.
///
/// FastEmit multiplies the adjoints of all label columns, a delay penalty is added where a label begins (not where it stays),
/// and σ is subtracted at every frame.
///
/// # Shapes
/// `emissions` *T x (U+1)*: column 0 is blank, column `j` the `j`-th label. `labels` *U*: which labels are equal.
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow; a regulariser that is no number from 0 on.
///
/// # Cost
/// O(T U) time and memory.
pub fn forward_backward(
    labels: &[u32],
    emissions: &[f64],
    regularisers: &Regularisers,
) -> Result<CtcPosterior> {
    let mut adjoints = vec![0.0; emissions.len()];
    let loss = CtcWorkspace::default().forward_backward(labels, emissions, regularisers, &mut adjoints)?;
    Ok(CtcPosterior { loss, adjoints })
}

/// `log P` of some labels, the sum over all of their alignments; -inf where they do not fit into the frames.
///
/// ```
/// let e = [0.6f64.ln(), 0.4f64.ln(), 0.3f64.ln(), 0.7f64.ln()]; // blank, label 7 at two frames
/// let p = rnnt_dp::ctc::log_prob(&[7], &e)?.exp();
/// assert!((p - (0.4 * 0.7 + 0.4 * 0.3 + 0.6 * 0.7)).abs() < 1e-12);
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
///
/// # Shapes
/// As [`forward_backward`].
///
/// # Errors
/// As [`forward_backward`].
///
/// # Cost
/// O(T U) time and memory.
pub fn log_prob(labels: &[u32], emissions: &[f64]) -> Result<f64> {
    Trellis::new(labels, emissions, Regularisers::default())?.forward(&mut Vec::new())
}

/// Memory for [`CtcWorkspace::forward_backward`], which is kept: α and β of the states at all frames.
#[derive(Debug, Default)]
pub struct CtcWorkspace {
    alpha: Vec<f64>,
    beta: Vec<f64>,
}

impl CtcWorkspace {
    /// Scratch for so many frames and labels.
    pub fn scratch(frames: usize, labels: usize) -> ScratchReq {
        ScratchReq::new::<f64>(Self::states(frames, labels)).times(2)
    }

    fn states(frames: usize, labels: usize) -> usize {
        1 + frames * (2 * labels + 1)
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        size_of::<f64>() * (self.alpha.capacity() + self.beta.capacity())
    }

    /// Makes room for so many frames and labels. Where there is not enough, there never is old and new at once.
    pub fn reserve(&mut self, frames: usize, labels: usize) {
        let states = Self::states(frames, labels);
        ensure_capacity(&mut self.alpha, states);
        ensure_capacity(&mut self.beta, states);
    }

    /// As [`forward_backward`], the adjoints into a given slice; returns the loss.
    ///
    /// # Shapes
    /// As there; `adjoints` as `emissions`. Every number of it is written.
    ///
    /// # Errors
    /// As there; `adjoints` of a wrong length.
    ///
    /// # Cost
    /// As there; no allocation where an utterance as large has been seen.
    pub fn forward_backward(
        &mut self,
        labels: &[u32],
        emissions: &[f64],
        regularisers: &Regularisers,
        adjoints: &mut [f64],
    ) -> Result<f64> {
        regularisers.check()?;
        expect("adjoints", emissions.len(), adjoints.len())?;
        let trellis = Trellis::new(labels, emissions, *regularisers)?;
        self.reserve(trellis.frames, labels.len());
        let Self { alpha, beta } = self;
        let log_p = trellis.forward(alpha)?;
        adjoints.fill(0.0);
        if log_p.is_finite() {
            trellis.backward_into::<Log>(beta);
            let width = labels.len() + 1;
            for (place, (alpha, beta)) in alpha.iter().zip(&*beta).enumerate().skip(1) {
                let (t, s) = trellis.at_place(place);
                let factor = regularisers.factor(Trellis::column(s) > 0);
                adjoints[t * width + Trellis::column(s)] -= factor * (alpha + beta - log_p).exp();
            }
        }
        Ok(-log_p)
    }
}
