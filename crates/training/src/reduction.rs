//! Sums of a step's gradients and losses over the ranks of a run.
//!
//! ```text
//! plan of the epoch       the same on all ranks: a function of the seed
//! shard_step              each rank computes some utterances of every step
//! begin                   sums wait for gradients
//!                         a backward pass sends those that are final: their sums run next to it
//! finish                  the rest is sent; losses, problems and bad items are gathered
//! checkpoints, logs       written by rank 0
//! evaluation              each rank recognizes some batches; all receive the transcripts
//! ```
//! What a step computes for an utterance depends on no other, so the sums are those of one process but for the order of their terms.
use candle_core::{Tensor, Var};
use distributed::{Pending, ProcessGroup, SharedError, first_error};
use serde::{Deserialize, Serialize};

use crate::error_report::ErrorReport;
use crate::metrics::LossSums;
use crate::{Error, Result};
use model::{GradientSum, GradientTerms, Gradients, Parameters, SentGradients};
use recognizer::bad_items::BadItems;

/// Returns the batches of a step that a rank computes: whole batches where each rank has as many of them; else some utterances of each
/// batch, dealt out back and forth, since neighbors are of similar length, starting with another rank in each batch.
pub(crate) fn shard_step(step: &[Vec<usize>], rank: usize, ranks: usize) -> Vec<Vec<usize>> {
    if step.len().is_multiple_of(ranks) {
        return step.iter().skip(rank).step_by(ranks).cloned().collect();
    }
    let owner = |batch: usize, position: usize| {
        let (round, turn) = (position / ranks, position % ranks);
        (batch + if round.is_multiple_of(2) { turn } else { ranks - 1 - turn }) % ranks
    };
    let shard = |(at, batch): (usize, &Vec<usize>)| {
        let own = batch.iter().enumerate().filter(|&(position, _)| owner(at, position) == rank);
        own.map(|(_, &utterance)| utterance).collect()
    };
    step.iter().enumerate().map(shard).filter(|shard: &Vec<usize>| !shard.is_empty()).collect()
}

/// Returns the rank that took 1.5 times the mean of the others and a second more, if there is one, and the ratio.
pub(crate) fn slow_rank(seconds: &[f64]) -> Option<(usize, f64)> {
    let (rank, most) = seconds.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let mean = (seconds.iter().sum::<f64>() - most) / (seconds.len() - 1) as f64;
    (most > 1.5 * mean && most > 1.0 + mean).then(|| (rank, most / mean))
}

/// What a step has apart from gradients, of all ranks.
pub(crate) struct StepTotals {
    pub tally: LossSums,
    pub bad: BadItems,
    /// Seconds that each rank took for its gradients.
    pub seconds: Vec<f64>,
}

/// What a rank has of a step apart from gradients.
#[derive(Serialize, Deserialize)]
struct RankStep {
    problem: Option<ErrorReport>,
    /// Which parameters have a gradient, in the order of their names.
    has_gradient: Vec<bool>,
    tally: LossSums,
    /// Items of its shard that cannot be used, and recordings that are not as long as their lines.
    bad: BadItems,
    seconds: f64,
    /// Parameters whose gradients were sent during the backward pass, in this order, unless an order is known.
    early: Vec<usize>,
    /// Whether a gradient was sent before it was final.
    is_incomplete: bool,
}

/// How the gradients of a run's steps become sums over its ranks.
#[derive(Default)]
pub(crate) struct GradientReduction {
    /// Numbers of the parameters in the order of their sums: those that are final first come first, once a step has shown which.
    order: Vec<usize>,
    is_order_known: bool,
    /// Whether gradients are sent after the backward pass only, as some were sent before they were final.
    is_late: bool,
}

/// Sums of a step that have begun.
pub(crate) struct StepReduction {
    /// The terms of this rank, which its gradients become.
    pub terms: GradientTerms,
    sums: Pending<distributed::Result<Vec<Vec<f32>>>>,
}

impl GradientReduction {
    /// Begins a step; none if there is one rank.
    pub fn begin(&mut self, group: &mut ProcessGroup, parameters: &Parameters) -> Option<StepReduction> {
        if group.size() == 1 {
            return None;
        }
        if self.order.is_empty() {
            self.order = (0..parameters.iter().count()).collect();
        }
        Some(self.begin_sums(group, parameters, !self.is_late))
    }

    fn begin_sums(&self, group: &mut ProcessGroup, parameters: &Parameters, is_early: bool) -> StepReduction {
        let all: Vec<usize> = parameters.iter().map(|(_, parameter)| parameter.elem_count()).collect();
        let lengths = self.order.iter().map(|&number| all[number]).collect();
        let (terms, receiver) = GradientTerms::new(&self.order, is_early);
        StepReduction { terms, sums: group.begin_all_reduce(lengths, receiver, GradientTerms::read) }
    }

    /// Returns the whole step from this rank's gradients.
    ///
    /// # Errors
    /// As [`ProcessGroup::agree`].
    pub fn finish(
        &mut self,
        group: &mut ProcessGroup,
        begun: Option<StepReduction>,
        gradients: GradientSum,
        tally: Result<LossSums>,
        bad: BadItems,
        seconds: f64,
    ) -> Result<(Gradients, StepTotals)> {
        let Some(StepReduction { terms, sums }) = begun else {
            let totals = StepTotals { tally: tally?, bad, seconds: vec![seconds] };
            return Ok((gradients.into_gradients(), totals));
        };
        let (tally, mut problem) = match tally {
            Ok(tally) => (tally, None),
            Err(error) => (LossSums::default(), Some(error)),
        };
        // After an error too: the other ranks wait for sums, whose values are then of no use.
        gradients.send(terms)?;
        let SentGradients { positions, is_incomplete } = gradients.sent();
        let mut sums = sums.wait().unwrap_or_else(|error| {
            problem.get_or_insert(error.into());
            Vec::new()
        });
        let early = match self.is_order_known {
            true => Vec::new(),
            false => positions.iter().map(|&position| self.order[position]).collect(),
        };
        let (has_gradient, is_incomplete) = (gradients.present(), *is_incomplete);
        let report = problem.as_ref().map(Error::to_report);
        let part = RankStep { problem: report, has_gradient, tally, bad, seconds, early, is_incomplete };
        let parts = group.all_gather(&part)?;
        let reports = parts.iter().map(|part| part.problem.clone()).collect();
        first_error(group.rank(), reports, problem.map_or(Ok(()), Err))?;
        if parts.iter().any(|part| part.is_incomplete) {
            self.is_late = true;
            let StepReduction { terms, sums: again } = self.begin_sums(group, gradients.parameters(), false);
            gradients.send(terms)?;
            sums = group.agree(again.wait().map_err(Error::from))?;
        }
        let mut all = Gradients::new();
        let named: Vec<(&str, &Var)> = gradients.parameters().iter().collect();
        for (&number, sum) in self.order.iter().zip(sums) {
            // A parameter that no rank has reached has no gradient, as in one process.
            if parts.iter().any(|part| part.has_gradient[number]) {
                let (name, parameter) = named[number];
                all.insert(name.to_owned(), Tensor::from_vec(sum, parameter.shape(), parameter.device())?);
            }
        }
        self.learn_order(&parts);
        let (mut tally, mut bad) = (LossSums::default(), BadItems::default());
        parts.iter().for_each(|part| tally += part.tally);
        let seconds = parts.iter().map(|part| part.seconds).collect();
        parts.into_iter().for_each(|part| bad.extend(part.bad));
        Ok((all, StepTotals { tally, bad, seconds }))
    }

    /// Puts the parameters first whose gradients were sent early, in the order of the first rank that sent any.
    fn learn_order(&mut self, parts: &[RankStep]) {
        let Some(early) = parts.iter().map(|part| &part.early).find(|early| !early.is_empty()) else {
            return;
        };
        let rest = self.order.iter().filter(|number| !early.contains(number));
        self.order = early.iter().chain(rest).copied().collect();
        self.is_order_known = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_the_step() {
        let batches: Vec<Vec<usize>> = vec![vec![5, 1, 9], vec![2], vec![7, 3, 8, 4], vec![6]];
        for steps in 1..=4 {
            let step = &batches[..steps];
            let mut all = step.concat();
            all.sort_unstable();
            for ranks in 1..=5 {
                let shards: Vec<_> = (0..ranks).map(|rank| shard_step(step, rank, ranks)).collect();
                let mut dealt = shards.concat().concat();
                dealt.sort_unstable();
                assert_eq!(dealt, all, "{steps} batches, {ranks} ranks");
                assert!(shards.concat().iter().all(|batch| !batch.is_empty()));
            }
        }
        assert_eq!(shard_step(&batches, 1, 2), [vec![2], vec![6]]);
        assert_eq!(shard_step(&batches[..1], 1, 2), [vec![1, 9]]);
        assert_eq!(shard_step(&batches[1..2], 1, 2), [[0; 0]; 0]);
        let step = [vec![9, 8, 7, 6, 5, 4]];
        assert_eq!([0, 1].map(|rank| shard_step(&step, rank, 2)), [[[9, 6, 5]], [[8, 7, 4]]]);
        // Batches start with different ranks.
        assert_eq!(shard_step(&[vec![1], vec![2], vec![3]], 0, 2), [[1], [3]]);
    }

    #[test]
    fn a_slow_rank_is_named() {
        assert_eq!(slow_rank(&[1.0]), None);
        assert_eq!(slow_rank(&[10.0, 12.0, 11.0]), None);
        assert_eq!(slow_rank(&[0.1, 0.1, 0.9]), None);
        assert_eq!(slow_rank(&[10.0, 10.0, 20.0]), Some((2, 2.0)));
        assert_eq!(slow_rank(&[30.0, 10.0]), Some((0, 3.0)));
    }
}
