//! Single CTC alignments: the best one, and draws from the posterior.
use std::ops::RangeInclusive;

use super::Trellis;
use crate::{Error, Regularisers, Result, path::Draws};

/// What each frame says.
#[derive(Debug, Clone, PartialEq)]
pub struct CtcPath {
    /// Sum of the emissions; -inf for an utterance without a path.
    pub log_prob: f64,
    /// For each frame 0 for blank or `j` for the `j`-th label, as the columns of the emissions are; empty for an
    /// utterance without a path.
    pub columns: Vec<usize>,
}

impl CtcPath {
    /// First and last frame of each label, U of them.
    pub fn spans(&self) -> Vec<RangeInclusive<usize>> {
        let runs = self.columns.chunk_by(|a, b| a == b);
        let ends = runs.scan(0, |frame, run| {
            let first = std::mem::replace(frame, *frame + run.len());
            Some((run[0], first..=*frame - 1))
        });
        ends.filter(|(column, _)| *column > 0).map(|(_, span)| span).collect()
    }
}

/// The alignment of largest probability of an utterance (Viterbi).
///
/// Of equally good ones it takes that which, at the first frame where they part, has come less far: labels come late.
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
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow. An utterance without an
/// alignment is not an error: its log-probability is -inf.
///
/// # Cost
/// O(T U) time and memory.
pub fn best_path(labels: &[u32], emissions: &[f64]) -> Result<CtcPath> {
    let trellis = Trellis::new(labels, emissions, Regularisers::default())?;
    let (frames, states) = (trellis.frames, trellis.states());
    // What is best from a state on, its own emission included, and the state that follows it there.
    let mut best = vec![f64::NEG_INFINITY; states];
    trellis.last().for_each(|s| best[s] = trellis.at(frames - 1, s));
    let mut choices = vec![0u32; frames * states];
    for t in (0..frames - 1).rev() {
        // States only lead onwards, so that those after `s` are still of the next frame.
        for s in 0..states {
            let next = first_best(trellis.next(s), &best);
            choices[t * states + s] = next as u32;
            best[s] = trellis.at(t, s) + best[next];
        }
    }
    let mut state = first_best(trellis.first(), &best);
    let log_prob = best[state];
    if log_prob.is_nan() || log_prob == f64::INFINITY {
        return Err(Error::Overflow { utterance: 0, loss: -log_prob });
    }
    if log_prob == f64::NEG_INFINITY {
        return Ok(CtcPath { log_prob, columns: Vec::new() });
    }
    let mut columns = Vec::with_capacity(frames);
    for t in 0..frames {
        columns.push(Trellis::column(state));
        state = choices[t * states + state] as usize;
    }
    Ok(CtcPath { log_prob, columns })
}

/// The first of the states with the largest score.
fn first_best(states: impl Iterator<Item = usize>, scores: &[f64]) -> usize {
    states.reduce(|best, state| if scores[state] > scores[best] { state } else { best }).unwrap_or(0)
}

/// `count` independent alignments of an utterance, exactly from its posterior; none for one without an alignment.
///
/// The randomness of a path is a stream of its own, named by `seed` and the path's index.
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
    let trellis = Trellis::new(labels, emissions, Regularisers::default())?;
    let (states, beta) = (trellis.states(), trellis.log_beta());
    if let Some(found) = beta.iter().find(|b| b.is_nan() || **b == f64::INFINITY) {
        return Err(Error::Overflow { utterance: 0, loss: -found });
    }
    let log = |t: usize, s: usize| trellis.at(t, s) + beta[t * states + s];
    if trellis.first().all(|s| log(0, s) == f64::NEG_INFINITY) {
        return Ok(Vec::new());
    }
    let draw = |path| {
        let mut stream = Draws::new(seed, 0, path);
        let (mut log_prob, mut columns) = (0.0, Vec::with_capacity(trellis.frames));
        let mut next: Vec<usize> = trellis.first().collect();
        for t in 0..trellis.frames {
            let top = next.iter().fold(f64::NEG_INFINITY, |top, &s| top.max(log(t, s)));
            let weights: Vec<f64> = next.iter().map(|&s| (log(t, s) - top).exp()).collect();
            let state = next[stream.pick(&weights)];
            log_prob += trellis.at(t, state);
            columns.push(Trellis::column(state));
            next.clear();
            next.extend(trellis.next(state));
        }
        CtcPath { log_prob, columns }
    };
    Ok((0..count).map(draw).collect())
}
