//! Shortest distances over a lattice in any semiring, by the definition and without haste.
//!
//! ```text
//! α_0[p] = 1 if p = start else 0      α_{t+1} = forward_step(α_t)      D = ⊕_p α_T[p]
//! ```
//!
//! Arc weights come from closures that are told the frame and the [`FrameArc`], and may differ from alignment state to alignment state.
//! Sums have the order that ties are resolved in: the blank before labels, sources by their number.
//!
//! ```
//! use lattice::{AlignmentLattice, FullNGram, distance::distance};
//! use rnnt_dp::semiring::{Count, LogLogExpectation};
//! let context = FullNGram::new(2, 1)?;
//! let paths = distance::<Count>(&context, AlignmentLattice::FrameDependent, 3, |_, _| 1);
//! assert_eq!(paths.total, 27);
//! // Log-sum of weights, and of weights times the number of labels.
//! let labels = |_: usize, arc: lattice::distance::FrameArc| {
//!     LogLogExpectation::weighted(-3f64.ln(), if arc.label == 0 { f64::NEG_INFINITY } else { 0.0 })
//! };
//! let (log_sum, value) = distance::<LogLogExpectation>(&context, AlignmentLattice::FrameDependent, 3, labels).total;
//! assert!(log_sum.abs() < 1e-12 && (value.exp() - 2.0).abs() < 1e-12);
//! # Ok::<(), lattice::Error>(())
//! ```
mod step;
mod string;
mod through;

use rnnt_dp::semiring::Semiring;
pub use step::forward_step;
pub use string::{string_distance, string_forward_step};
pub(crate) use through::DistanceBackward;
pub use through::{Through, through, through_step};

use crate::{AlignmentLattice, Arcs, ArcsMut, Context, Result, error::Error};

/// An arc of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameArc {
    /// The alignment state that it leaves, below A.
    pub alignment: usize,
    /// The context state that it leaves, below C.
    pub context: usize,
    /// 1 to V; 0 is the blank.
    pub label: usize,
}

/// A sum over paths.
#[derive(Debug, Clone, PartialEq)]
pub struct Distance<W> {
    /// Over all of them, `D`; along a string of labels, `S`.
    pub total: W,
    /// α before each frame, *N x C*; along a string of labels *N x (U + 1)*.
    pub alphas: Vec<W>,
}

/// The sum over all paths of so many frames, every state final. Without frames, the path without arcs.
///
/// # Cost
/// Time *N A C V*, memory *N C* and the arcs of a frame.
pub fn distance<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    num_frames: usize,
    weigh: impl Fn(usize, FrameArc) -> S::Weight,
) -> Distance<S::Weight> {
    forward::<S>(context, alignment, num_frames, alignment.num_states(), each(context, weigh))
}

/// The same with weights of whole frames, that `fill` writes in so many rows, one for each alignment state or one for all.
pub(crate) fn forward<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    num_frames: usize,
    rows: usize,
    mut fill: impl FnMut(usize, ArcsMut<S::Weight>),
) -> Distance<S::Weight> {
    let states = context.states();
    let mut frame = FrameValues::<S>::new(context, rows);
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

/// Writes the weight of each arc.
fn each<W>(context: &dyn Context, weigh: impl Fn(usize, FrameArc) -> W) -> impl FnMut(usize, ArcsMut<W>) {
    let (states, labels) = (context.states(), context.vocabulary());
    move |t, arcs| {
        for (at, blank) in arcs.blank.iter_mut().enumerate() {
            *blank = weigh(t, FrameArc { alignment: at / states, context: at % states, label: 0 });
        }
        for (at, lexical) in arcs.lexical.iter_mut().enumerate() {
            let (from, label) = (at / labels, at % labels + 1);
            *lexical = weigh(t, FrameArc { alignment: from / states, context: from % states, label });
        }
    }
}

/// Room for the arcs of a frame.
struct FrameValues<S: Semiring> {
    blank: Vec<S::Weight>,
    lexical: Vec<S::Weight>,
    sizes: [usize; 2],
}

impl<S: Semiring> FrameValues<S> {
    fn new(context: &dyn Context, rows: usize) -> Self {
        let sizes = [context.states(), context.states() * context.vocabulary()];
        Self { blank: vec![S::ZERO; rows * sizes[0]], lexical: vec![S::ZERO; rows * sizes[1]], sizes }
    }

    fn arcs_mut(&mut self) -> ArcsMut<'_, S::Weight> {
        ArcsMut { blank: &mut self.blank, lexical: &mut self.lexical }
    }

    fn rows(&self) -> ArcRows<'_, S::Weight> {
        ArcRows { arcs: Arcs { blank: &self.blank, lexical: &self.lexical }, sizes: self.sizes }
    }
}

/// Arcs of a frame by alignment state: a row for each, or one for all.
struct ArcRows<'a, W> {
    arcs: Arcs<'a, W>,
    /// Of one row.
    sizes: [usize; 2],
}

impl<'a, W> ArcRows<'a, W> {
    fn new(arcs: Arcs<'a, W>, alignment: AlignmentLattice, sizes: [usize; 2]) -> Result<Self> {
        let found = [arcs.blank.len(), arcs.lexical.len()];
        let all = sizes.map(|size| size.saturating_mul(alignment.num_states()));
        if found == sizes || found == all {
            return Ok(Self { arcs, sizes });
        }
        let expected =
            format!("{sizes:?} blank and lexical weights, or {all:?}, a row for each alignment state");
        Err(Error::shape("arcs", expected, format!("{found:?}")))
    }

    fn of(&self, alignment: usize) -> (&'a [W], &'a [W]) {
        let [blank, lexical] = self.sizes;
        let row = if self.arcs.blank.len() == blank { 0 } else { alignment };
        (&self.arcs.blank[row * blank..][..blank], &self.arcs.lexical[row * lexical..][..lexical])
    }
}
