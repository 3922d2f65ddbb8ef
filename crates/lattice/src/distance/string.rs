//! Sum over the lattice paths of one label string, in any semiring.
//!
//! u: label position, 0 to U; c_u: context state after u labels; `α[u]`: sum over the paths to
//! position u; b, l: weights of the blank and of the next label; K: largest number of labels of a
//! frame; N: frames; A: alignment states of a frame.
use rnnt_dp::semiring::Semiring;

use super::{ArcRows, Distance, FrameArc, step};
use crate::{
    AlignmentLattice, Arcs, Context, Result,
    context::walk_states,
    error::{Error, expect_nonempty},
};

/// Returns the sum over all paths of `num_frames` frames with these labels.
///
/// It is zero if the labels do not fit into the frames.
///
/// ```text
/// c_0 = start, c_u = δ(c_{u-1}, y_u)      b[t,u] = b_t[c_u]      l[t,u] = l_t[c_u, y_{u+1}]
/// ```
///
/// # Errors
/// A label out of range.
///
/// # Cost
/// Time and memory *N A (U + 1)*.
pub fn string_distance<S: Semiring>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    labels: &[u32],
    num_frames: usize,
    weight: impl Fn(usize, FrameArc) -> S::Weight,
) -> Result<Distance<S::Weight>> {
    if let Some(position) = labels.iter().position(|&y| y == 0) {
        return Err(Error::Label { utterance: 0, position, vocabulary: context.vocabulary(), found: 0 });
    }
    let states = walk_states(context, labels)?;
    let (positions, alignments) = (states.len(), alignment.num_states());
    let mut alpha = vec![S::ZERO; positions];
    alpha[0] = S::ONE;
    let mut alphas = Vec::with_capacity(num_frames * positions);
    for t in 0..num_frames {
        let arcs = |alignment: usize, u: usize| {
            let weight = |label| weight(t, FrameArc { alignment, context: states[u], label });
            (weight(0), labels.get(u).map_or(S::ZERO, |&y| weight(y as usize)))
        };
        let (blank, label_arcs): (Vec<_>, Vec<_>) =
            (0..alignments * positions).map(|index| arcs(index / positions, index % positions)).unzip();
        alphas.extend_from_slice(&alpha);
        alpha = string_forward_step::<S>(alignment, Arcs { blank: &blank, labels: &label_arcs }, &alpha)?;
    }
    Ok(Distance { total: alpha[labels.len()], alphas })
}

/// Returns α after a frame, over the positions between labels.
///
/// ```text
/// shift(v)[0] = 0, shift(v)[u+1] = v[u]
/// FrameDependent:       α' = α ⊗ b ⊕ shift(α ⊗ l)
/// FrameLabelDependent:  a_0 = α;  a_{i+1} = shift(a_i ⊗ l_i);  α' = ⊕_{i=0..K} a_i ⊗ b_i
/// ```
///
/// # Shapes
/// `arcs` *A x (U + 1)* each, or *U + 1* for all alignment states, a label's weight at the position
/// before it; `alpha` *U + 1*.
///
/// # Errors
/// Arguments of other lengths.
pub fn string_forward_step<S: Semiring>(
    alignment: AlignmentLattice,
    arcs: Arcs<S::Weight>,
    alpha: &[S::Weight],
) -> Result<Vec<S::Weight>> {
    expect_nonempty("alpha", alpha.len())?;
    let rows = ArcRows::new(arcs, alignment, [alpha.len(); 2])?;
    if alignment.expansions().is_none() {
        let (blank, label_arcs) = rows.row(0);
        let labels = shift_labels::<S>(alpha, label_arcs);
        return Ok(step::apply_blanks::<S>(alpha, blank)
            .zip(labels)
            .map(|(blank, label)| S::plus(blank, label))
            .collect());
    }
    let mut levels = vec![alpha.to_vec()];
    for i in 1..alignment.num_states() {
        levels.push(shift_labels::<S>(&levels[i - 1], rows.row(i - 1).1));
    }
    Ok(step::sum_blank_ends::<S>(&rows, &levels))
}

/// Returns `shift(α ⊗ l)`.
fn shift_labels<S: Semiring>(alpha: &[S::Weight], label_arcs: &[S::Weight]) -> Vec<S::Weight> {
    let products = alpha.iter().zip(label_arcs).map(|(&alpha, &l)| S::times(alpha, l));
    std::iter::once(S::ZERO).chain(products).take(alpha.len()).collect()
}
