//! CTC emission times of labels, and confidences, from posteriors.
//!
//! T: frames, U: labels of the utterance.
use super::{CtcPath, Trellis};
use crate::{
    Error, Regularizers, Result,
    semiring::Log,
    walk::{self, beta_after},
};

/// Returns the posterior probability that each label begins at each frame.
///
/// The result is *T x U*; 0 for an utterance without an alignment.
///
/// ```
/// let e = [-0.1, -3.0, -2.0, -0.2, -2.0, -0.2, -0.1, -4.0]; // blank, label 7 at four frames
/// let posteriors = rnnt_dp::ctc::emission_posteriors(&[7], &e)?;
/// assert!(posteriors[1] > 0.8 && (posteriors.iter().sum::<f64>() - 1.0).abs() < 1e-12);
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
///
/// # Shapes
/// As [`forward_backward`](super::forward_backward): `emissions` *T x (U+1)*, `labels` *U*.
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow.
///
/// # Cost
/// O(T U) time and memory.
pub fn emission_posteriors(labels: &[u32], emissions: &[f64]) -> Result<Vec<f64>> {
    let trellis = Trellis::new(labels, emissions, Regularizers::default())?;
    let beta = trellis.backward::<Log>();
    let log_p = trellis.check_log_prob(beta[0])?;
    let mut out = vec![0.0; trellis.frames * labels.len()];
    if log_p == f64::NEG_INFINITY {
        return Ok(out);
    }
    let mut alpha = vec![0.0; beta.len()];
    walk::forward_visit::<Log, _>(
        &trellis,
        |arc| arc.log_prob,
        &mut alpha,
        |arc, source_alpha| {
            // A label begins where an arc enters its state from another state.
            let source_state = (arc.source > 0).then(|| trellis.frame_and_state(arc.source).1);
            let label_begin = arc
                .target
                .map(|to| trellis.frame_and_state(to))
                .filter(|&(_, s)| arc.arc > 0 && source_state != Some(s));
            if let Some((t, _)) = label_begin {
                let posterior = (source_alpha + arc.log_prob + beta_after::<Log>(arc, &beta) - log_p).exp();
                out[t * labels.len() + arc.arc - 1] += posterior;
            }
        },
    );
    Ok(out)
}

/// Returns the expected frame at which each label begins, *U*.
///
/// The expectation is over all alignments. The list is empty for an utterance without alignment.
///
/// # Shapes
/// As [`forward_backward`](super::forward_backward).
///
/// # Errors
/// As [`emission_posteriors`].
///
/// # Cost
/// O(T U) time and memory.
pub fn expected_emission_frames(labels: &[u32], emissions: &[f64]) -> Result<Vec<f64>> {
    let posteriors = emission_posteriors(labels, emissions)?;
    let mean_frame = |label: usize| {
        let frame_posteriors = posteriors.iter().skip(label).step_by(labels.len());
        let (total, frame_sum) = frame_posteriors
            .enumerate()
            .fold((0.0, 0.0), |(total, frame_sum), (frame, p)| (total + p, frame_sum + p * frame as f64));
        (total > 0.0).then(|| frame_sum / total)
    };
    Ok((0..labels.len()).map(mean_frame).collect::<Option<_>>().unwrap_or_default())
}

/// Returns the posterior probability that each label begins where `path` has it.
///
/// The result is *U*; the list is empty for an utterance without an alignment.
///
/// # Shapes
/// As [`forward_backward`](super::forward_backward).
///
/// # Errors
/// As [`emission_posteriors`]; a path of other labels or frames.
///
/// # Cost
/// O(T U) time and memory.
pub fn confidences(labels: &[u32], emissions: &[f64], path: &CtcPath) -> Result<Vec<f64>> {
    let (posteriors, spans) = (emission_posteriors(labels, emissions)?, path.spans());
    if path.columns.is_empty() {
        return Ok(Vec::new());
    }
    for (expected, found) in
        [(emissions.len() / (labels.len() + 1), path.columns.len()), (labels.len(), spans.len())]
    {
        if expected != found {
            return Err(Error::Length { argument: "path", expected, found });
        }
    }
    let begin_posterior = |(label, span): (usize, &std::ops::RangeInclusive<usize>)| {
        posteriors[span.start() * labels.len() + label]
    };
    // Rounding may lift a sum of posteriors slightly above 1.
    Ok(spans.iter().enumerate().map(begin_posterior).map(|posterior| posterior.min(1.0)).collect())
}
