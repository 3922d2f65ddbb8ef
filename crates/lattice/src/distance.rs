//! Shortest distances over a recognition lattice in any semiring, by the definition.
//!
//! This module is a readable reference; [`LatticeSession`](crate::LatticeSession) is fast.
//!
//! ```text
//! α_0[p] = 1 if p = start else 0      α_{t+1} = forward_step(α_t)      D = ⊕_p α_N[p]
//! ```
//!
//! D: sum over all paths; `α_t[p]`: sum over the paths to context state p before frame t; N frames,
//! C context states, V labels, A alignment states. Arc weights are closures of the frame and the
//! [`FrameArc`], and may depend on the alignment state. Sums are in the order by which ties are
//! resolved: the blank before labels, sources by number.
//!
//! ```
//! use lattice::{AlignmentLattice, FullNGram, distance::distance};
//! use rnnt_dp::semiring::{Count, LogLogExpectation};
//! let context = FullNGram::new(2, 1)?;
//! let paths = distance::<Count>(&context, AlignmentLattice::FrameDependent, 3, |_, _| 1);
//! assert_eq!(paths.total, 27);
//! // Log-sum of weights, and of weights times the number of labels.
//! let labels = |_: usize, arc: lattice::distance::FrameArc| {
//!     let cost = if arc.label == 0 { f64::NEG_INFINITY } else { 0.0 };
//!     LogLogExpectation::weighted(-3f64.ln(), cost)
//! };
//! let alignment = AlignmentLattice::FrameDependent;
//! let (log_sum, value) = distance::<LogLogExpectation>(&context, alignment, 3, labels).total;
//! assert!(log_sum.abs() < 1e-12 && (value.exp() - 2.0).abs() < 1e-12);
//! # Ok::<(), lattice::Error>(())
//! ```
mod arc_sums;
mod step;
mod string;

pub(crate) use arc_sums::DistanceBackward;
pub use arc_sums::{ArcSums, arc_sums, arc_sums_step};
use rnnt_dp::semiring::Semiring;
pub use step::forward_step;
pub use string::{string_distance, string_forward_step};

use crate::{AlignmentLattice, Arcs, ArcsMut, Context, Result, error::Error};

/// An arc of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameArc {
    /// Alignment state of the source, below A.
    pub alignment: usize,
    /// Context state of the source, below C.
    pub context: usize,
    /// Label, 1 to V; 0 is the blank.
    pub label: usize,
}

/// A sum over paths.
#[derive(Debug, Clone, PartialEq)]
pub struct Distance<W> {
    /// Sum `D` over all paths, or `S` over a label string.
    pub total: W,
    /// α before each frame, *N x C*; along a label string *N x (U + 1)*.
    pub alphas: Vec<W>,
}

/// Returns the sum over all paths of `num_frames` frames; every state is final.
///
/// Without frames the only path has no arcs.
///
/// # Cost
/// Time *N A C V*, memory *N C* and the arcs of a frame.
pub fn distance<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    num_frames: usize,
    weight: impl Fn(usize, FrameArc) -> S::Weight,
) -> Distance<S::Weight> {
    forward::<S>(context, alignment, num_frames, alignment.num_states(), fill_arcs(context, weight))
}

/// [`distance`] with weights of whole frames; `fill` writes those of a frame.
///
/// They have `rows` rows, one for each alignment state or one for all.
pub(crate) fn forward<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    num_frames: usize,
    rows: usize,
    mut fill: impl FnMut(usize, ArcsMut<S::Weight>),
) -> Distance<S::Weight> {
    let states = context.states();
    let mut frame = FrameArcBuffer::<S>::new(context, rows);
    let mut alpha = vec![S::ZERO; states];
    alpha[context.start()] = S::ONE;
    let mut alphas = Vec::with_capacity(num_frames * states);
    for t in 0..num_frames {
        fill(t, frame.arcs_mut());
        alphas.extend_from_slice(&alpha);
        alpha = step::forward::<S>(context, alignment, &frame.rows(), &alpha);
    }
    Distance { total: S::sum(alpha), alphas }
}

/// Returns a function that writes the arc weights of a frame.
fn fill_arcs<W>(
    context: &dyn Context,
    weight: impl Fn(usize, FrameArc) -> W,
) -> impl FnMut(usize, ArcsMut<W>) {
    let (states, labels) = (context.states(), context.vocabulary());
    move |t, arcs| {
        for (index, blank) in arcs.blank.iter_mut().enumerate() {
            *blank = weight(t, FrameArc { alignment: index / states, context: index % states, label: 0 });
        }
        for (index, label_arc) in arcs.labels.iter_mut().enumerate() {
            let (source, label) = (index / labels, index % labels + 1);
            *label_arc = weight(t, FrameArc { alignment: source / states, context: source % states, label });
        }
    }
}

/// Weights of the arcs of a frame: one row for each alignment state, or one for all.
struct FrameArcBuffer<S: Semiring> {
    blank: Vec<S::Weight>,
    label_arcs: Vec<S::Weight>,
    /// Numbers of blank and label arcs of one row.
    row_sizes: [usize; 2],
}

impl<S: Semiring> FrameArcBuffer<S> {
    fn new(context: &dyn Context, rows: usize) -> Self {
        let row_sizes = [context.states(), context.states() * context.vocabulary()];
        let [blank, label_arcs] = row_sizes.map(|size| vec![S::ZERO; rows * size]);
        Self { blank, label_arcs, row_sizes }
    }

    fn arcs_mut(&mut self) -> ArcsMut<'_, S::Weight> {
        ArcsMut { blank: &mut self.blank, labels: &mut self.label_arcs }
    }

    fn rows(&self) -> ArcRows<'_, S::Weight> {
        ArcRows { arcs: Arcs { blank: &self.blank, labels: &self.label_arcs }, row_sizes: self.row_sizes }
    }
}

/// Arcs of a frame: one row for each alignment state, or one for all.
struct ArcRows<'a, W> {
    arcs: Arcs<'a, W>,
    /// Numbers of blank and label arcs of one row.
    row_sizes: [usize; 2],
}

impl<'a, W> ArcRows<'a, W> {
    fn new(arcs: Arcs<'a, W>, alignment: AlignmentLattice, row_sizes: [usize; 2]) -> Result<Self> {
        let lengths = [arcs.blank.len(), arcs.labels.len()];
        let all_rows = row_sizes.map(|size| size.saturating_mul(alignment.num_states()));
        if lengths == row_sizes || lengths == all_rows {
            return Ok(Self { arcs, row_sizes });
        }
        let expected =
            format!("{row_sizes:?} blank and label weights, or {all_rows:?}, one row per alignment state");
        Err(Error::shape("arcs", expected, format!("{lengths:?}")))
    }

    /// Returns the blank and label weights of an alignment state.
    fn row(&self, alignment: usize) -> (&'a [W], &'a [W]) {
        let [blank_count, label_count] = self.row_sizes;
        let row = if self.arcs.blank.len() == blank_count { 0 } else { alignment };
        (
            &self.arcs.blank[row * blank_count..][..blank_count],
            &self.arcs.labels[row * label_count..][..label_count],
        )
    }
}
