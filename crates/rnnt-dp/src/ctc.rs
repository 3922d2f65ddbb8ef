//! CTC loss, adjoints and paths (connectionist temporal classification).
//!
//! Graves et al. 2006. States alternate between blank and label, `∅ y1 ∅ y2 ∅ .. yU ∅`. State `s`
//! is entered from itself, from `s - 1`, and from `s - 2` if `s` is a label that differs from the
//! previous one. An emission belongs to a frame and not to a site, because it does not depend on
//! earlier labels (T frames, U labels: *T x (U+1)* emissions). CTC therefore has a graph separate
//! from [`Topology`], for the same [`walk`](crate::walk). Emissions are compact: only the blank and
//! the transcript's labels.
//!
//! [`Topology`]: crate::Topology
mod emission_times;
mod path;
mod trellis;

pub use emission_times::{confidences, emission_posteriors, expected_emission_frames};
pub use path::{CtcPath, TieBreak, best_path, sample_paths};

use kernels::{ScratchReq, ensure_capacity};

use crate::{Regularizers, Result, forward_backward::expect_len, semiring::Log};
use trellis::Trellis;

/// Loss and adjoints of one utterance.
#[derive(Debug, Clone, PartialEq)]
pub struct CtcPosterior {
    /// `-log P`; +inf where the labels do not fit into the frames.
    pub loss: f64,
    /// `dloss/demission`, *T x (U+1)*; 0 for an impossible utterance.
    pub adjoints: Vec<f64>,
}

/// Returns the loss and the adjoints of one utterance: a sum over all CTC alignments.
///
/// FastEmit multiplies the adjoints of all label columns. The delay penalty is added where a label
/// begins (not where it stays). σ is subtracted at every frame.
///
/// # Shapes
/// `emissions` *T x (U+1)*: column 0 is the blank, column `j` the `j`-th label. `labels` *U*: equal
/// ids mark equal labels.
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow; a regularizer
/// out of range.
///
/// # Cost
/// O(T U) time and memory.
pub fn forward_backward(
    labels: &[u32],
    emissions: &[f64],
    regularizers: &Regularizers,
) -> Result<CtcPosterior> {
    let mut adjoints = vec![0.0; emissions.len()];
    let loss = CtcWorkspace::default().forward_backward(labels, emissions, regularizers, &mut adjoints)?;
    Ok(CtcPosterior { loss, adjoints })
}

/// Returns `log P` of a label sequence, summed over all alignments.
///
/// -inf if the labels do not fit into the frames.
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
    Trellis::new(labels, emissions, Regularizers::default())?.forward(&mut Vec::new())
}

/// Memory of [`CtcWorkspace::forward_backward`]: α and β of the states at all frames.
#[derive(Debug, Default)]
pub struct CtcWorkspace {
    alpha: Vec<f64>,
    beta: Vec<f64>,
}

impl CtcWorkspace {
    /// Scratch memory for `frames` frames and `labels` labels.
    pub fn scratch(frames: usize, labels: usize) -> ScratchReq {
        ScratchReq::new::<f64>(Self::total_states(frames, labels)).times(2)
    }

    /// Number of states of all frames, and the start.
    fn total_states(frames: usize, labels: usize) -> usize {
        1 + frames * (2 * labels + 1)
    }

    /// Allocated bytes.
    pub fn allocated_bytes(&self) -> usize {
        size_of::<f64>() * (self.alpha.capacity() + self.beta.capacity())
    }

    /// Reserves memory for `frames` frames and `labels` labels.
    ///
    /// Old and new buffers never exist at the same time.
    pub fn reserve(&mut self, frames: usize, labels: usize) {
        let states = Self::total_states(frames, labels);
        ensure_capacity(&mut self.alpha, states);
        ensure_capacity(&mut self.beta, states);
    }

    /// [`forward_backward`] into a given slice of adjoints; returns the loss.
    ///
    /// # Shapes
    /// As [`forward_backward`]; `adjoints` as `emissions`. Every element is written.
    ///
    /// # Errors
    /// As [`forward_backward`]; `adjoints` of a wrong length.
    ///
    /// # Cost
    /// As [`forward_backward`]; no allocation after an utterance of the same size.
    pub fn forward_backward(
        &mut self,
        labels: &[u32],
        emissions: &[f64],
        regularizers: &Regularizers,
        adjoints: &mut [f64],
    ) -> Result<f64> {
        regularizers.check()?;
        expect_len("adjoints", emissions.len(), adjoints.len())?;
        let trellis = Trellis::new(labels, emissions, *regularizers)?;
        self.reserve(trellis.frames, labels.len());
        let Self { alpha, beta } = self;
        let log_p = trellis.forward(alpha)?;
        adjoints.fill(0.0);
        if log_p.is_finite() {
            trellis.write_backward::<Log>(beta);
            let width = labels.len() + 1;
            for (index, (alpha, beta)) in alpha.iter().zip(&*beta).enumerate().skip(1) {
                let (t, s) = trellis.frame_and_state(index);
                let factor = regularizers.adjoint_factor(Trellis::column(s) > 0);
                adjoints[t * width + Trellis::column(s)] -= factor * (alpha + beta - log_p).exp();
            }
        }
        Ok(-log_p)
    }
}
