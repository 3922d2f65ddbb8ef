//! Sums over all paths through each arc: forward-backward in any semiring.
use rnnt_dp::semiring::Semiring;

use super::{ArcRows, Distance, FrameArc, FrameValues, each, forward, step};
use crate::{AlignmentLattice, ArcEnd, Arcs, ArcsMut, Context, Result, error::expect_len};

/// What the arcs of one frame are part of.
#[derive(Debug, Clone, PartialEq)]
pub struct Through<W> {
    /// β before the frame, *C*: sums over all ways from there to the end.
    pub beta: Vec<W>,
    /// Sum over all paths with a blank, *A x C*.
    pub blank: Vec<W>,
    /// Sum over all paths with a label, *A x C x V*.
    pub lexical: Vec<W>,
}

impl Through<f64> {
    /// Probabilities of the arcs from log-sums, `exp(through - total)`, *A x C* and *A x C x V*; 0 where no path is left.
    pub fn marginals(&self, total: f64) -> (Vec<f64>, Vec<f64>) {
        let share = |&sum: &f64| if total == f64::NEG_INFINITY { 0.0 } else { (sum - total).exp() };
        (self.blank.iter().map(share).collect(), self.lexical.iter().map(share).collect())
    }
}

/// Goes over all frames, the last one first, and calls `visit(frame, sums)` for each; returns the sum over all paths.
///
/// # Cost
/// Time thrice that of [`distance`](super::distance()), which also weighs each arc once; memory *N C* and, for one frame, *A C V*.
pub fn through<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    num_frames: usize,
    weigh: impl Fn(usize, FrameArc) -> S::Weight,
    mut visit: impl FnMut(usize, &Through<S::Weight>),
) -> Distance<S::Weight> {
    let rows = alignment.num_states();
    let mut fill = each(context, weigh);
    let distance = forward::<S>(context, alignment, num_frames, rows, &mut fill);
    let mut backward = DistanceBackward::<S>::new(context, alignment, rows);
    for (t, alpha) in distance.alphas.chunks_exact(context.states()).enumerate().rev() {
        visit(t, &backward.step(alpha, |arcs| fill(t, arcs)));
    }
    distance
}

/// The way back, frame by frame.
pub(crate) struct DistanceBackward<'a, S: Semiring> {
    context: &'a dyn Context,
    alignment: AlignmentLattice,
    frame: FrameValues<S>,
    beta: Vec<S::Weight>,
}

impl<'a, S: Semiring> DistanceBackward<'a, S> {
    /// Behind the last frame; weights have so many rows, one for each alignment state or one for all.
    pub fn new(context: &'a dyn Context, alignment: AlignmentLattice, rows: usize) -> Self {
        Self {
            context,
            alignment,
            frame: FrameValues::new(context, rows),
            beta: vec![S::ONE; context.states()],
        }
    }

    /// The frame before, from α before it and the weights that `fill` writes.
    pub fn step(&mut self, alpha: &[S::Weight], fill: impl FnOnce(ArcsMut<S::Weight>)) -> Through<S::Weight> {
        fill(self.frame.arcs_mut());
        let found = back::<S>(self.context, self.alignment, &self.frame.rows(), alpha, &self.beta);
        self.beta.copy_from_slice(&found.beta);
        found
    }
}

/// One frame, from α before it and β after it.
///
/// ```text
/// FrameDependent:       β'[p] = b[p] ⊗ β[p] ⊕ ⊕_y l[p,y] ⊗ β[δ(p,y)]
/// FrameLabelDependent:  β_K[p] = b_K[p] ⊗ β[p]
///                       β_j[p] = b_j[p] ⊗ β[p] ⊕ ⊕_y l_j[p,y] ⊗ β_{j+1}[δ(p,y)],  j = K-1 .. 0;  β' = β_0
/// through an arc:       α ⊗ weight ⊗ β, those of the states that it joins; zero for an arc that there is not
/// ```
///
/// # Shapes
/// `arcs` *A x C* and *A x C x V*, or *C* and *C x V* for all alignment states; `alpha`, `beta` *C*.
///
/// # Errors
/// Other lengths.
pub fn through_step<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    arcs: Arcs<S::Weight>,
    alpha: &[S::Weight],
    beta: &[S::Weight],
) -> Result<Through<S::Weight>> {
    let states = context.states();
    let rows = ArcRows::new(arcs, alignment, [states, states * context.vocabulary()])?;
    expect_len("alpha", states, alpha.len())?;
    expect_len("beta", states, beta.len())?;
    Ok(back::<S>(context, alignment, &rows, alpha, beta))
}

fn back<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    rows: &ArcRows<S::Weight>,
    alpha: &[S::Weight],
    beta: &[S::Weight],
) -> Through<S::Weight> {
    let (states, labels, alignments) = (context.states(), context.vocabulary(), alignment.num_states());
    let levels = step::levels::<S>(context, alignment, rows, alpha);
    let mut blank = vec![S::ZERO; alignments * states];
    let mut lexical = vec![S::ZERO; alignments * states * labels];
    let mut onward = vec![S::ZERO; labels];
    // β at the alignment state before, which is the next one.
    let mut later = beta.to_vec();
    for i in (0..alignments).rev() {
        let (b, l) = rows.of(i);
        let mut here = Vec::with_capacity(states);
        for p in 0..states {
            let alpha = levels[i][p];
            let end = S::times(b[p], beta[p]);
            blank[i * states + p] = S::times(alpha, end);
            here.push(match alignment.lexical_next(i) {
                None => end,
                Some(next) => {
                    let target = if next == ArcEnd::Frame { beta } else { &later };
                    let after = context.after(p);
                    for (y, onward) in onward.iter_mut().enumerate() {
                        *onward = S::times(l[p * labels + y], target[after.label(y + 1)]);
                        lexical[(i * states + p) * labels + y] = S::times(alpha, *onward);
                    }
                    S::plus(end, S::sum(onward.iter().copied()))
                }
            });
        }
        later = here;
    }
    Through { beta: later, blank, lexical }
}
