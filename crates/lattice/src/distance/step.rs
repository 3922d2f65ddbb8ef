//! Forward recursion of a recognition lattice over one frame, in any semiring.
//!
//! `α[p]`: sum over the paths to context state p; a_i: the same after i labels in the frame; b, l:
//! weights of blank and label arcs; K: largest number of labels of a frame.
use rnnt_dp::semiring::Semiring;

use super::ArcRows;
use crate::{AlignmentLattice, Arcs, Context, Result, context::forward_reduce, error::expect_len};

/// Returns α after a frame.
///
/// ```text
/// FrameDependent:       α'[q] = α[q] ⊗ b[q] ⊕ R_q(α[p] ⊗ l[p,y])
/// FrameLabelDependent:  a_0 = α;  a_{i+1}[q] = R_q(a_i[p] ⊗ l_i[p,y]),  i < K
///                       α'[q] = ⊕_{i=0..K} a_i[q] ⊗ b_i[q]
/// ```
/// R is [`forward_reduce`].
///
/// # Shapes
/// `arcs` *A x C* and *A x C x V*, or *C* and *C x V* for all alignment states; `alpha` *C*.
///
/// # Errors
/// Arguments of other lengths.
pub fn forward_step<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    arcs: Arcs<S::Weight>,
    alpha: &[S::Weight],
) -> Result<Vec<S::Weight>> {
    let states = context.states();
    let rows = ArcRows::new(arcs, alignment, [states, states * context.vocabulary()])?;
    expect_len("alpha", states, alpha.len())?;
    Ok(forward::<S>(context, alignment, &rows, alpha))
}

/// [`forward_step`] of checked arguments.
pub(super) fn forward<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    rows: &ArcRows<S::Weight>,
    alpha: &[S::Weight],
) -> Vec<S::Weight> {
    match alignment.expansions() {
        None => {
            let (blank, label_arcs) = rows.row(0);
            let labels = apply_labels::<S>(context, alpha, label_arcs);
            apply_blanks::<S>(alpha, blank).zip(labels).map(|(blank, label)| S::plus(blank, label)).collect()
        }
        Some(_) => sum_blank_ends::<S>(rows, &levels::<S>(context, alignment, rows, alpha)),
    }
}

/// α at each alignment state of a frame, `a_0 .. a_K`.
pub(super) fn levels<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    rows: &ArcRows<S::Weight>,
    alpha: &[S::Weight],
) -> Vec<Vec<S::Weight>> {
    let mut levels = vec![alpha.to_vec()];
    for i in 1..alignment.num_states() {
        levels.push(apply_labels::<S>(context, &levels[i - 1], rows.row(i - 1).1));
    }
    levels
}

/// Returns α after a frame that ends with a blank, `⊕_i a_i ⊗ b_i`.
pub(super) fn sum_blank_ends<S: Semiring>(
    rows: &ArcRows<S::Weight>,
    levels: &[Vec<S::Weight>],
) -> Vec<S::Weight> {
    let mut sums: Vec<_> = apply_blanks::<S>(&levels[0], rows.row(0).0).collect();
    for (i, level) in levels.iter().enumerate().skip(1) {
        let weights = apply_blanks::<S>(level, rows.row(i).0);
        sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum = S::plus(*sum, weight));
    }
    sums
}

/// Returns `α ⊗ b`.
pub(super) fn apply_blanks<S: Semiring>(
    alpha: &[S::Weight],
    blank: &[S::Weight],
) -> impl Iterator<Item = S::Weight> {
    alpha.iter().zip(blank).map(|(&alpha, &blank)| S::times(alpha, blank))
}

/// Returns `R(α ⊗ l)`.
fn apply_labels<S: Semiring>(
    context: &dyn Context,
    alpha: &[S::Weight],
    label_arcs: &[S::Weight],
) -> Vec<S::Weight> {
    let labels = context.vocabulary();
    let weights: Vec<_> =
        label_arcs.iter().enumerate().map(|(arc, &l)| S::times(alpha[arc / labels], l)).collect();
    let mut out = vec![S::ZERO; alpha.len()];
    forward_reduce::<S>(context, &weights, &mut out);
    out
}
