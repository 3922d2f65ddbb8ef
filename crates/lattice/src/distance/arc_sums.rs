//! Sums over the paths through each lattice arc, in any semiring.
//!
//! This is the forward-backward algorithm.
//!
//! α and β are the sums over the paths from the start and to the end; `b` and `l` are the weights
//! of blank and label arcs. Sizes: N frames, A alignment states, C context states, V labels.
use rnnt_dp::semiring::Semiring;

use super::{ArcRows, Distance, FrameArc, FrameArcBuffer, fill_arcs, forward, step};
use crate::{AlignmentLattice, ArcEnd, Arcs, ArcsMut, Context, Result, error::expect_len};

/// Sums over the paths through each arc of one frame.
#[derive(Debug, Clone, PartialEq)]
pub struct ArcSums<W> {
    /// β before the frame, *C*: sums over all paths from there to the end.
    pub beta: Vec<W>,
    /// Sum over all paths through each blank, *A x C*.
    pub blank: Vec<W>,
    /// Sum over all paths through each label, *A x C x V*.
    pub labels: Vec<W>,
}

impl ArcSums<f64> {
    /// Returns arc probabilities from log-sums, `exp(sum - total)`.
    ///
    /// The results are *A x C* and *A x C x V*; 0 if there is no path.
    pub fn marginals(&self, total: f64) -> (Vec<f64>, Vec<f64>) {
        let probability = |&sum: &f64| if total == f64::NEG_INFINITY { 0.0 } else { (sum - total).exp() };
        (self.blank.iter().map(probability).collect(), self.labels.iter().map(probability).collect())
    }
}

/// Calls `visit(frame, sums)` for all frames, last frame first; returns the sum over all paths.
///
/// # Cost
/// Three times that of [`distance`](super::distance()), and the weight of each arc twice; memory *N
/// C* and, for one frame, *A C V*.
pub fn arc_sums<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    num_frames: usize,
    weight: impl Fn(usize, FrameArc) -> S::Weight,
    mut visit: impl FnMut(usize, &ArcSums<S::Weight>),
) -> Distance<S::Weight> {
    let rows = alignment.num_states();
    let mut fill = fill_arcs(context, weight);
    let distance = forward::<S>(context, alignment, num_frames, rows, &mut fill);
    let mut backward = DistanceBackward::<S>::new(context, alignment, rows);
    for (t, alpha) in distance.alphas.chunks_exact(context.states()).enumerate().rev() {
        visit(t, &backward.step(alpha, |arcs| fill(t, arcs)));
    }
    distance
}

/// The backward recursion, frame by frame.
pub(crate) struct DistanceBackward<'a, S: Semiring> {
    context: &'a dyn Context,
    alignment: AlignmentLattice,
    frame: FrameArcBuffer<S>,
    beta: Vec<S::Weight>,
}

impl<'a, S: Semiring> DistanceBackward<'a, S> {
    /// Starts after the last frame.
    ///
    /// Weights have `rows` rows, one for each alignment state or one for all.
    pub(crate) fn new(context: &'a dyn Context, alignment: AlignmentLattice, rows: usize) -> Self {
        Self {
            context,
            alignment,
            frame: FrameArcBuffer::new(context, rows),
            beta: vec![S::ONE; context.states()],
        }
    }

    /// Moves to the previous frame, and returns its arc sums.
    ///
    /// `alpha` is α before the frame; `fill` writes the weights.
    pub(crate) fn step(
        &mut self,
        alpha: &[S::Weight],
        fill: impl FnOnce(ArcsMut<S::Weight>),
    ) -> ArcSums<S::Weight> {
        fill(self.frame.arcs_mut());
        let sums = backward::<S>(self.context, self.alignment, &self.frame.rows(), alpha, &self.beta);
        self.beta.copy_from_slice(&sums.beta);
        sums
    }
}

/// Returns the arc sums of one frame, and β before it.
///
/// The arguments are α before the frame and β after it.
///
/// ```text
/// FrameDependent:       β'[p] = b[p] ⊗ β[p] ⊕ ⊕_y l[p,y] ⊗ β[δ(p,y)]
/// FrameLabelDependent:  β_K[p] = b_K[p] ⊗ β[p]
///                       β_j[p] = b_j[p] ⊗ β[p] ⊕ ⊕_y l_j[p,y] ⊗ β_{j+1}[δ(p,y)],  j = K-1 .. 0
///                       β' = β_0
/// sum through an arc:   α ⊗ weight ⊗ β of its source and target; zero for a missing arc
/// ```
///
/// # Shapes
/// `arcs` *A x C* and *A x C x V*, or *C* and *C x V* for all alignment states; `alpha`, `beta`
/// *C*.
///
/// # Errors
/// Arguments of other lengths.
pub fn arc_sums_step<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    arcs: Arcs<S::Weight>,
    alpha: &[S::Weight],
    beta: &[S::Weight],
) -> Result<ArcSums<S::Weight>> {
    let states = context.states();
    let rows = ArcRows::new(arcs, alignment, [states, states * context.vocabulary()])?;
    expect_len("alpha", states, alpha.len())?;
    expect_len("beta", states, beta.len())?;
    Ok(backward::<S>(context, alignment, &rows, alpha, beta))
}

/// [`arc_sums_step`] of checked arguments.
fn backward<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    rows: &ArcRows<S::Weight>,
    alpha: &[S::Weight],
    beta: &[S::Weight],
) -> ArcSums<S::Weight> {
    let (states, labels, alignments) = (context.states(), context.vocabulary(), alignment.num_states());
    let levels = step::levels::<S>(context, alignment, rows, alpha);
    let mut blank = vec![S::ZERO; alignments * states];
    let mut label_arcs = vec![S::ZERO; alignments * states * labels];
    let mut products = vec![S::ZERO; labels];
    // β at the next alignment state.
    let mut next_beta = beta.to_vec();
    for i in (0..alignments).rev() {
        let (b, l) = rows.row(i);
        let mut current_beta = Vec::with_capacity(states);
        for p in 0..states {
            let alpha = levels[i][p];
            let end = S::times(b[p], beta[p]);
            blank[i * states + p] = S::times(alpha, end);
            current_beta.push(match alignment.label_next(i) {
                None => end,
                Some(next) => {
                    let target = if next == ArcEnd::Frame { beta } else { &next_beta };
                    let targets = context.next_states(p);
                    for (y, product) in products.iter_mut().enumerate() {
                        *product = S::times(l[p * labels + y], target[targets.state(y + 1)]);
                        label_arcs[(i * states + p) * labels + y] = S::times(alpha, *product);
                    }
                    S::plus(end, S::sum(products.iter().copied()))
                }
            });
        }
        next_beta = current_beta;
    }
    ArcSums { beta: next_beta, blank, labels: label_arcs }
}
