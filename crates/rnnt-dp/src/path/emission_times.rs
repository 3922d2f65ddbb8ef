//! Transducer emission times of labels, and confidences, from the loss's adjoints.
//!
//! An adjoint is the negative posterior of an arc, so adjoints have the distribution of each
//! label's frame.
use crate::{AlignmentPath, Lattices, Result, Topology, forward_backward::expect_len, path::map_utterances};

/// Returns the expected frame at which each label is emitted.
///
/// `Σ_t t · P(label u is emitted at t)`, over all paths.
///
/// A label is emitted at the frame that its arc leaves. Early emission means low latency. The
/// expectation varies smoothly between models, in contrast to the frames of the best path.
///
/// # Shapes
/// `adjoints` *N x S* of [`forward_backward`](fn@crate::forward_backward). FastEmit and utterance
/// weights do not matter, because posteriors are divided by their sum. Returns U numbers per
/// utterance, none for one without a path.
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
    expect_len("adjoints", lattices.sites() * topology.columns(), adjoints.len())?;
    map_utterances(lattices, |utterance| {
        let mut sums = vec![(0.0, 0.0); lattices.labels(utterance)];
        for_each_label(lattices, topology, adjoints, utterance, |frame, label, posterior| {
            sums[label].0 += posterior;
            sums[label].1 += posterior * frame as f64;
        });
        let possible = sums.iter().all(|(total, _)| total.abs() > 0.0 && total.is_finite());
        Ok(if possible { sums.iter().map(|(total, sum)| sum / total).collect() } else { Vec::new() })
    })
}

/// Returns the posterior probability of each label's emission frame in `paths`.
///
/// # Shapes
/// `adjoints` *N x S* of [`forward_backward`](fn@crate::forward_backward) without regularizers; one
/// path per utterance. Returns U numbers per utterance, none for one without a path.
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
    paths: &[AlignmentPath],
) -> Result<Vec<Vec<f64>>> {
    expect_len("adjoints", lattices.sites() * topology.columns(), adjoints.len())?;
    expect_len("paths", lattices.batch(), paths.len())?;
    map_utterances(lattices, |utterance| {
        let frames: Vec<usize> = paths[utterance].label_steps(topology).map(|step| step.site.frame).collect();
        let mut confidences = vec![0.0; frames.len()];
        for_each_label(lattices, topology, adjoints, utterance, |frame, label, posterior| {
            if frames.get(label) == Some(&frame) {
                confidences[label] += posterior;
            }
        });
        // Rounding may lift a sum of posteriors slightly above 1.
        Ok(confidences.into_iter().map(|posterior: f64| posterior.min(1.0)).collect())
    })
}

/// Calls `visit(frame, label, posterior)` for each label that a site emits, in site order.
fn for_each_label(
    lattices: &Lattices,
    topology: &Topology,
    adjoints: &[f64],
    utterance: usize,
    mut visit: impl FnMut(usize, usize, f64),
) {
    let (range, width, end) =
        (lattices.site_range(utterance), topology.columns(), lattices.labels(utterance));
    let adjoints = &adjoints[range.start * width..range.end * width];
    // All arcs of a token emit the same number of labels.
    let label_counts: Vec<usize> = (0..topology.tokens())
        .map(|token| topology.token_arcs(token).next().map_or(0, |arc| topology.arcs()[arc].labels))
        .collect();
    for (at, adjoints) in lattices.utterance_sites(utterance).zip(adjoints.chunks_exact(width)) {
        for (&labels, &adjoint) in label_counts.iter().zip(adjoints) {
            // Arcs that leave the lattice have no adjoint.
            if adjoint != 0.0 {
                (at.label..end.min(at.label + labels)).for_each(|label| visit(at.frame, label, -adjoint));
            }
        }
    }
}
