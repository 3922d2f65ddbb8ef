//! CTC alignments: the best one (Viterbi), and samples from the posterior.
use std::ops::RangeInclusive;

use super::Trellis;
use crate::{
    Error, Regularizers, Result,
    path::PathRng,
    semiring::Log,
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

/// The choice among alignments of equal probability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TieBreak {
    /// Labels are emitted late: the earlier state at the first frame where alignments differ.
    #[default]
    Late,
    /// Labels are emitted early, as in torchaudio: the later state at the last such frame.
    ///
    /// In the last frame, a label has priority over the blank.
    Early,
}

/// Returns the most probable alignment of an utterance (Viterbi).
///
/// ```
/// use rnnt_dp::ctc::{TieBreak, best_path};
/// let e = [-0.1, -3.0, -2.0, -0.2, -2.0, -0.2, -0.1, -4.0]; // blank, label 7 at four frames
/// let path = best_path(&[7], &e, TieBreak::Late)?;
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
/// O(T U) time, and a byte for each state of each frame.
pub fn best_path(labels: &[u32], emissions: &[f64], ties: TieBreak) -> Result<CtcPath> {
    let trellis = Trellis::new(labels, emissions, Regularizers::default())?;
    let (states, frames) = (trellis.states_per_frame(), trellis.frames);
    // The search prefers to stay in a state. `Late` searches from the last frame and the last state
    // back: index i of the search is then state `states - 1 - i`, of the same kind.
    let frame = |step: usize| if ties == TieBreak::Late { frames - 1 - step } else { step };
    let state = |index: usize| if ties == TieBreak::Late { states - 1 - index } else { index };
    let may_skip: Vec<bool> = (0..states)
        .map(|index| index >= 2 && trellis.may_skip_to(state(index).max(state(index - 2))))
        .collect();
    let mut scores = vec![f64::NEG_INFINITY; states];
    (0..states.min(2)).for_each(|index| scores[index] = trellis.emission(frame(0), state(index)));
    let mut next_scores = scores.clone();
    // By how many states the best path has advanced to each state, from the frame before.
    let mut advances = vec![0u8; frames * states];
    for (step, advances) in advances.chunks_exact_mut(states).enumerate().skip(1) {
        for index in 0..states {
            let (mut best, mut advance) = (scores[index], 0);
            if index >= 1 && scores[index - 1] > best {
                (best, advance) = (scores[index - 1], 1);
            }
            if may_skip[index] && scores[index - 2] > best {
                (best, advance) = (scores[index - 2], 2);
            }
            next_scores[index] = best + trellis.emission(frame(step), state(index));
            advances[index] = advance;
        }
        std::mem::swap(&mut scores, &mut next_scores);
    }
    let (blank, label) = (states - 1, states.saturating_sub(2));
    let ends_in_blank = match ties {
        TieBreak::Late => scores[blank] >= scores[label],
        TieBreak::Early => states == 1 || scores[blank] > scores[label],
    };
    let mut index = if ends_in_blank { blank } else { label };
    let log_prob = scores[index];
    if log_prob.is_nan() || log_prob == f64::INFINITY {
        return Err(Error::Overflow { utterance: 0, loss: -log_prob });
    }
    if log_prob == f64::NEG_INFINITY {
        return Ok(CtcPath { log_prob, columns: Vec::new() });
    }
    let mut columns = vec![0; frames];
    for (step, advances) in advances.chunks_exact(states).enumerate().rev() {
        columns[frame(step)] = Trellis::column(state(index));
        index -= usize::from(advances[index]);
    }
    Ok(CtcPath { log_prob, columns })
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
