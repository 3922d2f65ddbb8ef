//! Forced alignment over a recognition lattice: best path for given labels.
//!
//! u: label position; `α[u]`: weight of the best path to u; `B[t,u]`, `L[t,u]`: weights of the
//! blank and of the next label at frame t; a_i: weights after i labels in the frame; K: largest
//! number of labels of a frame; N frames, M labels.
//!
//! ```text
//! α'[u] = max(α[u] + B[t,u], α[u-1] + L[t,u-1])                      one label or a blank
//! a_0 = α    a_{i+1}[u+1] = a_i[u] + L[t,u]    α'[u] = B[t,u] + max_i a_i[u]    K labels, a blank
//! ```
//! Ties are resolved in favor of fewer labels in the frame. All sums are f64.
use kernels::{Real, items_mut, par_for};

use crate::{
    AlignmentLattice, Arcs, Frames, Labels, LatticePath, LatticeSession, PathSum, RecognitionLattice, Result,
    execution::{CallInputs, check_sums},
    plan::LatticeOperation,
};

/// Weight of a path that is not allowed.
const BLOCKED: f64 = f64::NEG_INFINITY;

impl<F: Real> LatticeSession<F> {
    /// Finds the best path of each utterance for its labels.
    ///
    /// The path gives the frame of each label. A string without a path has weight -inf.
    ///
    /// # Errors
    /// As [`distances`](Self::distances).
    ///
    /// # Cost
    /// Arc weights along the string, and 4 bytes for each frame and position between labels.
    pub fn best_alignments(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: &Labels,
    ) -> Result<Vec<LatticePath>> {
        let inputs = CallInputs::new(lattice, frames, Some(labels), PathSum::Numerator)?;
        let (mut call, plan) =
            self.start_call(inputs, |all_paths| LatticeOperation::sum(all_paths).with_best_paths())?;
        let (context, alignment) = (lattice.context(), lattice.alignment());
        let mut paths = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            call.set_frames(&group)?;
            self.buffers.numerator.compute_arc_weights(context, alignment, &*call.weights, &group, labels)?;
            let mut group_paths = vec![None; group.len()];
            let (numerator, may_be_nan) = (&self.buffers.numerator, call.step.may_be_nan());
            par_for(items_mut(&mut group_paths), |index, path| {
                let frames = group.frame_range(index).len();
                *path = Some(match numerator.labels_and_arcs(&group, index) {
                    // Comparisons would ignore NaN.
                    Some((labels, arcs)) if may_be_nan && has_nan(arcs, labels.len() + 1) => {
                        LatticePath { weight: f64::NAN, ..blocked_path(alignment, frames) }
                    }
                    Some((labels, arcs)) => align(alignment, frames, labels, arcs),
                    None => blocked_path(alignment, frames),
                });
            });
            let first_path = paths.len();
            paths.extend(group_paths.into_iter().flatten());
            let weights: Vec<f64> =
                paths[first_path..].iter().map(|path: &LatticePath| path.weight).collect();
            check_sums(&weights, &group)?;
        }
        Ok(paths)
    }
}

/// Returns true if a weight is NaN; the string has `positions` positions.
fn has_nan<F: Real>(arcs: Arcs<F>, positions: usize) -> bool {
    // No label follows the last position.
    let labels = arcs.labels.chunks_exact(positions).flat_map(|row| &row[..positions - 1]);
    arcs.blank.iter().chain(labels).any(|w| w.to_f64().is_nan())
}

/// Returns a path without labels of weight -inf.
fn blocked_path(alignment: AlignmentLattice, frames: usize) -> LatticePath {
    let per_frame = alignment.num_states();
    LatticePath { alignment: vec![0; frames * per_frame], per_frame, weight: BLOCKED }
}

/// Returns the best path of a string; `arcs` *N x (M + 1)* each.
fn align<F: Real>(alignment: AlignmentLattice, frames: usize, labels: &[u32], arcs: Arcs<F>) -> LatticePath {
    let positions = labels.len() + 1;
    // Number of labels of each frame on the best path to each position.
    let mut label_counts = vec![0u32; frames * positions];
    let (mut alpha, mut next, mut level) =
        (vec![BLOCKED; positions], vec![BLOCKED; positions], vec![BLOCKED; positions]);
    alpha[0] = 0.0;
    for (t, label_counts) in label_counts.chunks_exact_mut(positions).enumerate() {
        let b = |u: usize| arcs.blank[t * positions + u].to_f64();
        let l = |u: usize| arcs.labels[t * positions + u].to_f64();
        (0..positions).for_each(|u| next[u] = alpha[u] + b(u));
        level.copy_from_slice(&alpha);
        for label_count in 1..=alignment.expansions().unwrap_or(1).min(labels.len()) {
            for u in (label_count..positions).rev() {
                level[u] = level[u - 1] + l(u - 1);
                // If a label ends the frame, no blank follows it.
                let weight = if alignment.expansions().is_some() { level[u] + b(u) } else { level[u] };
                if weight > next[u] {
                    (next[u], label_counts[u]) = (weight, label_count as u32);
                }
            }
        }
        std::mem::swap(&mut alpha, &mut next);
    }
    // Traces the path back from the last label.
    let mut path = LatticePath { weight: alpha[labels.len()], ..blocked_path(alignment, frames) };
    if path.weight > BLOCKED {
        let mut end_position = labels.len();
        let per_frame = path.alignment.chunks_exact_mut(path.per_frame);
        for (out, label_counts) in per_frame.zip(label_counts.chunks_exact(positions)).rev() {
            let label_count = label_counts[end_position] as usize;
            out[..label_count].copy_from_slice(&labels[end_position - label_count..end_position]);
            end_position -= label_count;
        }
    }
    path
}
