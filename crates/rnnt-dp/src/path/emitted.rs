//! When labels are emitted, and how surely, from the adjoints of a lattice.
use crate::{Lattices, Path, Result, Topology, forward_backward::expect, path::each};

/// The frame at which each label is emitted, as an expectation over all paths: `Σ_t t · P(label u is emitted at t)`.
///
/// A label is emitted at the frame that its arc leaves. What emits early has a small latency, so that two models are
/// compared by these numbers, which do not jump as those of the best path do.
///
/// # Shapes
/// `adjoints` *N x S*, those of [`forward_backward`](fn@crate::forward_backward); FastEmit or weights of utterances do
/// not matter, since posteriors are divided by their sum. Returns U numbers an utterance, none for one without a path.
///
/// # Errors
/// A wrong length.
///
/// # Cost
/// O(N S) time, in parallel over utterances.
pub fn expected_emission_frames(
    lattices: &Lattices,
    topology: &Topology,
    adjoints: &[f64],
) -> Result<Vec<Vec<f64>>> {
    expect("adjoints", lattices.sites() * topology.columns(), adjoints.len())?;
    each(lattices, |utterance| {
        let mut sums = vec![(0.0, 0.0); lattices.labels(utterance)];
        for_each_label(lattices, topology, adjoints, utterance, |frame, label, posterior| {
            sums[label].0 += posterior;
            sums[label].1 += posterior * frame as f64;
        });
        let possible = sums.iter().all(|(total, _)| total.abs() > 0.0 && total.is_finite());
        Ok(if possible { sums.iter().map(|(total, sum)| sum / total).collect() } else { Vec::new() })
    })
}

/// The posterior probability that each label is emitted at the very frame at which `paths` emit it.
///
/// # Shapes
/// `adjoints` *N x S*, those of [`forward_backward`](fn@crate::forward_backward) without regularisers; one path an
/// utterance. Returns U numbers an utterance, none for one without a path.
///
/// # Errors
/// A wrong length.
///
/// # Cost
/// O(N S) time, in parallel over utterances.
pub fn confidences(
    lattices: &Lattices,
    topology: &Topology,
    adjoints: &[f64],
    paths: &[Path],
) -> Result<Vec<Vec<f64>>> {
    expect("adjoints", lattices.sites() * topology.columns(), adjoints.len())?;
    expect("paths", lattices.batch(), paths.len())?;
    each(lattices, |utterance| {
        let frames: Vec<usize> = paths[utterance].emitting(topology).map(|step| step.site.frame).collect();
        let mut found = vec![0.0; frames.len()];
        for_each_label(lattices, topology, adjoints, utterance, |frame, label, posterior| {
            if frames.get(label) == Some(&frame) {
                found[label] += posterior;
            }
        });
        // A sum of posteriors is above 1 by its rounding at most.
        Ok(found.into_iter().map(|posterior: f64| posterior.min(1.0)).collect())
    })
}

/// Calls `visit(frame, label, posterior)` for all that a site emits, in site order.
fn for_each_label(
    lattices: &Lattices,
    topology: &Topology,
    adjoints: &[f64],
    utterance: usize,
    mut visit: impl FnMut(usize, usize, f64),
) {
    let (range, width, end) = (lattices.range(utterance), topology.columns(), lattices.labels(utterance));
    let adjoints = &adjoints[range.start * width..range.end * width];
    // All arcs of a token emit as many labels.
    let emitted: Vec<usize> = (0..topology.tokens())
        .map(|token| topology.arcs_of(token).next().map_or(0, |arc| topology.arcs()[arc].labels))
        .collect();
    for (at, adjoints) in lattices.sites_of(utterance).zip(adjoints.chunks_exact(width)) {
        for (&labels, &adjoint) in emitted.iter().zip(adjoints) {
            // Arcs that leave the lattice have no adjoint.
            if adjoint != 0.0 {
                (at.label..end.min(at.label + labels)).for_each(|label| visit(at.frame, label, -adjoint));
            }
        }
    }
}
