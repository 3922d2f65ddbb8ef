//! CTC alignments: the best one (Viterbi), and samples from the posterior.
use std::ops::RangeInclusive;

use super::Trellis;
use crate::{
    Error, Regularizers, Result,
    path::PathRng,
    semiring::{Log, Tropical},
    walk::{self, Transition},
};

/// A CTC alignment: the class of each frame.
#[derive(Debug, Clone, PartialEq)]
pub struct CtcPath {
    /// Sum of the emissions; -inf for an utterance without a path.
    pub log_prob: f64,
    /// For each frame its emission column: 0 for the blank or `j` for the `j`-th label.
    ///
    /// Empty for an utterance without a path.
    pub columns: Vec<usize>,
}

impl CtcPath {
    fn new(log_prob: f64, arcs: &[Transition]) -> Self {
        let columns = arcs.iter().filter(|arc| arc.target.is_some()).map(|arc| arc.arc).collect();
        Self { log_prob, columns }
    }

    /// Returns the first and last frame of each label, U ranges.
    pub fn spans(&self) -> Vec<RangeInclusive<usize>> {
        let runs = self.columns.chunk_by(|a, b| a == b);
        let run_spans = runs.scan(0, |next_frame, run| {
            let first_frame = std::mem::replace(next_frame, *next_frame + run.len());
            Some((run[0], first_frame..=*next_frame - 1))
        });
        run_spans.filter(|(column, _)| *column > 0).map(|(_, span)| span).collect()
    }
}

/// Returns the most probable alignment of an utterance (Viterbi).
///
/// Ties are resolved at the first frame where alignments differ, in favor of the earlier state:
/// labels are emitted late.
///
/// ```
/// use rnnt_dp::ctc::best_path;
/// let e = [-0.1, -3.0, -2.0, -0.2, -2.0, -0.2, -0.1, -4.0]; // blank, label 7 at four frames
/// let path = best_path(&[7], &e)?;
/// assert_eq!((&path.columns[..], path.spans()), (&[0, 1, 1, 0][..], vec![1..=2]));
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
///
/// # Shapes
/// As [`forward_backward`](super::forward_backward): `emissions` *T x (U+1)*, `labels` *U*.
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow. An utterance
/// without an alignment is not an error: its log-probability is -inf.
///
/// # Cost
/// O(T U) time and memory.
pub fn best_path(labels: &[u32], emissions: &[f64]) -> Result<CtcPath> {
    let trellis = Trellis::new(labels, emissions, Regularizers::default())?;
    let beta = trellis.backward::<Tropical>();
    let log_prob = beta[0];
    if log_prob.is_nan() || log_prob == f64::INFINITY {
        return Err(Error::Overflow { utterance: 0, loss: -log_prob });
    }
    Ok(CtcPath::new(log_prob, &walk::best_path(&trellis, &beta).unwrap_or_default()))
}

/// Returns `count` independent alignments of an utterance, sampled exactly from its posterior.
///
/// The list is empty for an utterance without an alignment. Each path has a separate random stream,
/// determined by `seed` and the index of the path.
///
/// # Shapes
/// As [`forward_backward`](super::forward_backward).
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow.
///
/// # Cost
/// O(T U + `count` T) time and O(T U) memory.
pub fn sample_paths(labels: &[u32], emissions: &[f64], count: usize, seed: u64) -> Result<Vec<CtcPath>> {
    let trellis = Trellis::new(labels, emissions, Regularizers::default())?;
    let beta = trellis.backward::<Log>();
    if let Some(value) = beta[1..].iter().find(|b| b.is_nan() || **b == f64::INFINITY) {
        return Err(Error::Overflow { utterance: 0, loss: -value });
    }
    let sample = |path| {
        let mut rng = PathRng::new(seed, 0, path);
        let arcs = walk::sample_path(&trellis, &beta, |weights| rng.weighted_index(weights))?;
        Some(CtcPath::new(arcs.iter().fold(0.0, |sum, arc| sum + arc.log_prob), &arcs))
    };
    Ok((0..count).map_while(sample).collect())
}
