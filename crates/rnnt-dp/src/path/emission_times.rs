//! Transducer emission times of labels, and confidences, from the adjoints of `forward_backward`.
//!
//! The adjoint of a site and token is minus the posterior of its arcs: the probability that a path
//! uses one of them. The adjoints of the label tokens thus give the distribution of the frame at
//! which a label is emitted. N: sites of the batch; S: emission columns of a site, tokens first; U:
//! labels of an utterance.
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
    expect_len("adjoints", lattices.num_sites() * topology.num_columns(), adjoints.len())?;
    map_utterances(lattices, |utterance| {
        // For each label the sum of its posteriors, and that of posterior times frame.
        let mut sums = vec![(0.0f64, 0.0f64); lattices.num_labels(utterance)];
        for_each_emission(lattices, topology, adjoints, utterance, |frame, label, posterior| {
            let (total, frame_sum) = &mut sums[label];
            *total += posterior;
            *frame_sum += posterior * frame as f64;
        });
        let has_path = sums.iter().all(|(total, _)| total.abs() > 0.0 && total.is_finite());
        Ok(if has_path {
            sums.iter().map(|(total, frame_sum)| frame_sum / total).collect()
        } else {
            Vec::new()
        })
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
    expect_len("adjoints", lattices.num_sites() * topology.num_columns(), adjoints.len())?;
    expect_len("paths", lattices.batch(), paths.len())?;
    map_utterances(lattices, |utterance| {
        let frames: Vec<usize> = paths[utterance].label_steps(topology).map(|step| step.site.frame).collect();
        let mut confidences = vec![0.0; frames.len()];
        for_each_emission(lattices, topology, adjoints, utterance, |frame, label, posterior| {
            if frames.get(label) == Some(&frame) {
                confidences[label] += posterior;
            }
        });
        // Rounding may lift a sum of posteriors slightly above 1.
        Ok(confidences.into_iter().map(|posterior: f64| posterior.min(1.0)).collect())
    })
}

/// Calls `visit(frame, label, posterior)` for each label that a site emits, in site order.
fn for_each_emission(
    lattices: &Lattices,
    topology: &Topology,
    adjoints: &[f64],
    utterance: usize,
    mut visit: impl FnMut(usize, usize, f64),
) {
    let (range, columns, labels) =
        (lattices.site_range(utterance), topology.num_columns(), lattices.num_labels(utterance));
    let adjoints = &adjoints[range.start * columns..range.end * columns];
    // All arcs of a token emit the same number of labels.
    let label_counts: Vec<usize> = (0..topology.num_tokens())
        .map(|token| topology.arcs_of_token(token).next().map_or(0, |arc| topology.arcs()[arc].labels))
        .collect();
    for (site, adjoints) in lattices.utterance_sites(utterance).zip(adjoints.chunks_exact(columns)) {
        for (&emitted, &adjoint) in label_counts.iter().zip(adjoints) {
            // Arcs that leave the lattice have no adjoint.
            if adjoint != 0.0 {
                (site.label..labels.min(site.label + emitted))
                    .for_each(|label| visit(site.frame, label, -adjoint));
            }
        }
    }
}
