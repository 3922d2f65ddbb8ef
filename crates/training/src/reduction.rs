//! Data-parallel steps: all-reduce of gradients and losses over ranks (processes).
//!
//! ```text
//! plan of the epoch       the same on all ranks: a function of the seed
//! shard_step              each rank computes some utterances of every step
//! begin                   an all-reduce waits for gradients
//!                         a backward pass sends those that are final: they are summed meanwhile
//! finish                  the other gradients are sent; losses, errors and bad items are gathered
//! checkpoints, logs       written by rank 0
//! evaluation              each rank recognizes some batches; all receive the transcripts
//! ```
//! The gradient of an utterance depends on no other utterance, so the sums are those of one process
//! except for the order of their terms. Trained batch norms are an exception: their statistics are
//! those of the batch of a rank.
use candle_core::{Tensor, Var};
use distributed::{Pending, ProcessGroup, SharedError, first_error};
use serde::{Deserialize, Serialize};

use crate::error_report::ErrorReport;
use crate::metrics::LossSums;
use crate::{Error, Result};
use model::{BatchStatistics, GradientSum, GradientTerms, Gradients, Parameters, SentGradients};
use recognizer::bad_items::BadItems;

/// Returns the batches of a step that a rank computes.
///
/// These are whole batches if all ranks get the same number of batches; else some utterances of
/// each batch. Utterances are assigned to ranks back and forth (0, 1, 1, 0, ...), since adjacent
/// ones have similar lengths; each batch starts with another rank.
pub(crate) fn shard_step(step: &[Vec<usize>], rank: usize, ranks: usize) -> Vec<Vec<usize>> {
    if step.len().is_multiple_of(ranks) {
        return step.iter().skip(rank).step_by(ranks).cloned().collect();
    }
    let owner_rank = |batch_index: usize, position: usize| {
        let (round, turn) = (position / ranks, position % ranks);
        (batch_index + if round.is_multiple_of(2) { turn } else { ranks - 1 - turn }) % ranks
    };
    let shard_of_batch = |(batch_index, batch): (usize, &Vec<usize>)| {
        let positions = batch.iter().enumerate();
        let own = positions.filter(|&(position, _)| owner_rank(batch_index, position) == rank);
        own.map(|(_, &utterance)| utterance).collect()
    };
    step.iter().enumerate().map(shard_of_batch).filter(|shard: &Vec<usize>| !shard.is_empty()).collect()
}

/// A slow rank takes more than this multiple of the others' mean.
const MIN_SLOW_RATIO: f64 = 1.5;
/// A slow rank takes over this many seconds more than their mean.
const MIN_SLOW_SECONDS: f64 = 1.0;

/// Returns a rank that is much slower than the others.
///
/// The ratio of its time to the others' mean is returned as well.
pub(crate) fn slow_rank(seconds: &[f64]) -> Option<(usize, f64)> {
    let (rank, longest) = seconds.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let mean = (seconds.iter().sum::<f64>() - longest) / (seconds.len() - 1) as f64;
    (longest > MIN_SLOW_RATIO * mean && longest > MIN_SLOW_SECONDS + mean).then(|| (rank, longest / mean))
}

/// The results of a step of all ranks, apart from gradients.
pub(crate) struct StepTotals {
    pub loss_sums: LossSums,
    pub bad: BadItems,
    /// Seconds of each rank for its gradients.
    pub seconds: Vec<f64>,
    /// Statistics of trained batch norms, those of rank 0 first.
    pub statistics: Vec<BatchStatistics>,
}

/// The results of a step of one rank, apart from gradients.
#[derive(Serialize, Deserialize)]
struct RankStep {
    error: Option<ErrorReport>,
    /// True for each parameter with a gradient, in order of names.
    has_gradient: Vec<bool>,
    loss_sums: LossSums,
    /// The bad items among the rank's utterances.
    bad: BadItems,
    seconds: f64,
    /// Statistics of trained batch norms.
    statistics: Vec<BatchStatistics>,
    /// Parameters whose gradients were sent during the backward pass, in this order.
    ///
    /// Empty once the order is known.
    early: Vec<usize>,
    /// True if a gradient was sent before it was final.
    is_incomplete: bool,
}

/// The all-reduce of the gradients of a run's steps.
#[derive(Default)]
pub(crate) struct GradientReduction {
    /// Indices of the parameters in the order of their all-reduce.
    ///
    /// Once a step has shown which gradients are final first, these come first.
    order: Vec<usize>,
    is_order_known: bool,
    /// True if gradients are sent after the backward pass only.
    ///
    /// This is the case once a gradient was sent before it was final.
    sends_after_backward: bool,
}

/// An all-reduce of a step that has begun.
pub(crate) struct StepReduction {
    /// The terms of this rank.
    pub terms: GradientTerms,
    sums: Pending<distributed::Result<Vec<Vec<f32>>>>,
}

impl GradientReduction {
    /// Begins a step; none if there is only one rank.
    pub(crate) fn begin(
        &mut self,
        group: &mut ProcessGroup,
        parameters: &Parameters,
    ) -> Option<StepReduction> {
        if group.size() == 1 {
            return None;
        }
        if self.order.is_empty() {
            self.order = (0..parameters.iter_trained().count()).collect();
        }
        Some(self.begin_sums(group, parameters, !self.sends_after_backward))
    }

    /// Begins an all-reduce; with `is_overlapped`, during a backward pass.
    ///
    /// The backward pass then sends gradients once they are final.
    fn begin_sums(
        &self,
        group: &mut ProcessGroup,
        parameters: &Parameters,
        is_overlapped: bool,
    ) -> StepReduction {
        let counts: Vec<usize> =
            parameters.iter_trained().map(|(_, parameter)| parameter.elem_count()).collect();
        let lengths = self.order.iter().map(|&parameter| counts[parameter]).collect();
        let (terms, receiver) = GradientTerms::new(&self.order, is_overlapped);
        StepReduction { terms, sums: group.begin_all_reduce(lengths, receiver, GradientTerms::read) }
    }

    /// Sums the gradients and the losses of a step over all ranks.
    ///
    /// # Errors
    /// As [`ProcessGroup::agree`].
    pub(crate) fn finish(
        &mut self,
        group: &mut ProcessGroup,
        reduction: Option<StepReduction>,
        gradients: GradientSum,
        loss_sums: Result<LossSums>,
        bad: BadItems,
        seconds: f64,
    ) -> Result<(Gradients, StepTotals)> {
        let Some(StepReduction { terms, sums }) = reduction else {
            let statistics = gradients.statistics().to_vec();
            let totals = StepTotals { loss_sums: loss_sums?, bad, seconds: vec![seconds], statistics };
            return Ok((gradients.into_gradients(), totals));
        };
        // 1. This rank's gradients are sent and the sums received.
        let (loss_sums, mut error) = match loss_sums {
            Ok(loss_sums) => (loss_sums, None),
            Err(error) => (LossSums::default(), Some(error)),
        };
        // Also after an error: the other ranks wait for sums, whose values are then not used.
        gradients.send(terms)?;
        let SentGradients { positions, is_incomplete } = gradients.sent();
        let mut sums = sums.wait().unwrap_or_else(|failure| {
            error.get_or_insert(failure.into());
            Vec::new()
        });
        // 2. Losses, errors and bad items of all ranks.
        let early = match self.is_order_known {
            true => Vec::new(),
            false => positions.iter().map(|&position| self.order[position]).collect(),
        };
        let (has_gradient, is_incomplete) = (gradients.has_gradient(), *is_incomplete);
        let report = error.as_ref().map(Error::to_report);
        let statistics = gradients.statistics().to_vec();
        let rank_step = RankStep {
            error: report,
            has_gradient,
            loss_sums,
            bad,
            seconds,
            statistics,
            early,
            is_incomplete,
        };
        let rank_steps = group.all_gather(&rank_step)?;
        let reports = rank_steps.iter().map(|rank_step| rank_step.error.clone()).collect();
        first_error(group.rank(), reports, error.map_or(Ok(()), Err))?;
        // 3. If a gradient was sent before it was final, all are summed again.
        if rank_steps.iter().any(|rank_step| rank_step.is_incomplete) {
            self.sends_after_backward = true;
            let StepReduction { terms, sums: late_sums } =
                self.begin_sums(group, gradients.parameters(), false);
            gradients.send(terms)?;
            sums = group.agree(late_sums.wait().map_err(Error::from))?;
        }
        // 4. The sums become gradients by name.
        let mut reduced = Gradients::new();
        let parameters: Vec<(&str, &Var)> = gradients.parameters().iter_trained().collect();
        for (&index, sum) in self.order.iter().zip(sums) {
            // A parameter without a gradient on all ranks has none, as in one process.
            if rank_steps.iter().any(|rank_step| rank_step.has_gradient[index]) {
                let (name, parameter) = parameters[index];
                let sum = Tensor::from_vec(sum, parameter.shape(), parameter.device())?;
                reduced.insert(name.to_owned(), sum);
            }
        }
        self.update_order(&rank_steps);
        let (mut loss_sums, mut bad) = (LossSums::default(), BadItems::default());
        rank_steps.iter().for_each(|rank_step| loss_sums += rank_step.loss_sums);
        let seconds = rank_steps.iter().map(|rank_step| rank_step.seconds).collect();
        let mut statistics = Vec::new();
        for rank_step in rank_steps {
            bad.extend(rank_step.bad);
            statistics.extend(rank_step.statistics);
        }
        Ok((reduced, StepTotals { loss_sums, bad, seconds, statistics }))
    }

    /// Moves the parameters to the front whose gradients were sent early.
    ///
    /// They are in the order in which the first rank with early gradients has sent them.
    fn update_order(&mut self, rank_steps: &[RankStep]) {
        let Some(early) = rank_steps.iter().map(|rank_step| &rank_step.early).find(|early| !early.is_empty())
        else {
            return;
        };
        let rest = self.order.iter().filter(|index| !early.contains(index));
        self.order = early.iter().chain(rest).copied().collect();
        self.is_order_known = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shards_of_all_ranks_are_the_step() {
        let batches: Vec<Vec<usize>> = vec![vec![5, 1, 9], vec![2], vec![7, 3, 8, 4], vec![6]];
        for steps in 1..=4 {
            let step = &batches[..steps];
            let mut all = step.concat();
            all.sort_unstable();
            for ranks in 1..=5 {
                let shards: Vec<_> = (0..ranks).map(|rank| shard_step(step, rank, ranks)).collect();
                let mut sharded = shards.concat().concat();
                sharded.sort_unstable();
                assert_eq!(sharded, all, "{steps} batches, {ranks} ranks");
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
    fn the_slowest_rank_is_returned_if_it_is_much_slower() {
        assert_eq!(slow_rank(&[1.0]), None);
        assert_eq!(slow_rank(&[10.0, 12.0, 11.0]), None);
        assert_eq!(slow_rank(&[0.1, 0.1, 0.9]), None);
        assert_eq!(slow_rank(&[10.0, 10.0, 20.0]), Some((2, 2.0)));
        assert_eq!(slow_rank(&[30.0, 10.0]), Some((0, 3.0)));
    }
}
