//! Forward part of the pruned first pass: normalizers and arc log-probabilities.
//!
//! The lattice recursions follow in `first_pass.rs`. Utterances are processed in groups that limit
//! the memory.
use std::ops::Range;

use kernels::{Real, WorkerSlots, ensure_len};
use rayon::prelude::*;

use crate::{
    Batch, Error, Options, Plan, Result, ScoreSource, Side, TaskScratch, Unigram, Workspace, emissions,
    label_arc::LabelArc,
    normalizer::{self, SelectedScores},
    plan::{GroupSizes, utterance_groups},
    sums::{BatchSums, UtteranceSumsMut},
    tiles::take_front,
    underflow,
    unigram::UnigramDistribution,
    utterance::UtteranceScores,
    workspace::reserve_slots,
};

/// Outputs and scratch memory of an utterance.
struct ForwardWork<'a, F> {
    /// Log-probabilities of blank and next label, *T x (U+1) x 2*.
    emissions: &'a mut [f64],
    sums: UtteranceSumsMut<'a, F>,
    scratch: &'a mut [F],
    scratch_f64: &'a mut [f64],
    /// A unigram whose memory is reused.
    recycled: UnigramDistribution<F>,
}

/// Computes the sums and unigrams of all utterances, group by group.
///
/// The emissions of all sites are written to the front of `workspace.scratch_f64`.
pub(crate) fn compute_emissions<F: Real, S: ScoreSource<F>>(
    source: &S,
    batch: &Batch,
    options: &Options,
    label_arc: LabelArc,
    plan: Plan,
    workspace: &mut Workspace<F>,
) -> Result<(BatchSums<F>, Vec<UnigramDistribution<F>>)> {
    let Workspace { slots, scratch, scratch_f64, recycled, .. } = workspace;
    // Buffers: the emissions of all sites, and scratch for the largest group.
    let needs_unigram = options.am_only_scale != 0.0;
    let has_own_unigrams = needs_unigram && options.unigram == Unigram::Utterance;
    let shares_unigram = options.shares_unigram();
    let sizes = GroupSizes::new(source.classes(), batch, options, plan);
    reserve_slots(slots, plan.tasks, sizes.task_scratch::<F, S>(source));
    let groups = utterance_groups(batch, plan.forward_rows());
    let group_lens = sizes.max_over(&groups, |b| sizes.forward_lens::<F>(b));
    let shared_len = if shares_unigram { source.classes() } else { 0 };
    let num_emissions = 2 * batch.lattices().num_sites();
    ensure_len(scratch, group_lens.scratch, F::ZERO);
    ensure_len(scratch_f64, num_emissions + group_lens.scratch_f64.max(shared_len), 0.0);
    let (mut emissions, scratch_f64) = scratch_f64.split_at_mut(num_emissions);
    let mut recycled_unigrams = std::mem::take(&mut recycled.unigrams).into_iter();
    let mut sums = BatchSums::new(std::mem::take(&mut recycled.sums), &sizes.utterances);
    let average = |rows: Range<usize>, recycled: UnigramDistribution<F>, buffer: &mut [f64]| {
        let average = UnigramDistribution::average(source, rows, plan.classes, recycled, buffer, slots);
        average.map_err(|row| label_row_error(source, batch, plan, row, slots))
    };
    // The unigram, if it is shared.
    let mut unigrams = Vec::new();
    if shares_unigram {
        let recycled = recycled_unigrams.next().unwrap_or_else(UnigramDistribution::empty);
        unigrams.push(average(0..source.rows(Side::Labels), recycled, &mut *scratch_f64)?);
    }
    unigrams.reserve_exact(if has_own_unigrams { batch.len() } else { 0 });
    let mut utterance_sums = sums.split_mut(&sizes.utterances).into_iter();
    // Groups, one after the other; the utterances of a group in parallel.
    for group in groups {
        let (mut scratch, mut scratch_f64) = (&mut scratch[..], &mut scratch_f64[..]);
        let work = group.clone().zip(utterance_sums.by_ref()).map(|(b, sums)| {
            let lens = sizes.forward_lens::<F>(b);
            let emissions = take_front(&mut emissions, 2 * batch.lattices().site_range(b).len());
            let (scratch, scratch_f64) =
                (take_front(&mut scratch, lens.scratch), take_front(&mut scratch_f64, lens.scratch_f64));
            let recycled = if has_own_unigrams { recycled_unigrams.next() } else { None }
                .unwrap_or_else(UnigramDistribution::empty);
            ForwardWork { emissions, sums, scratch, scratch_f64, recycled }
        });
        let work: Vec<_> = work.collect();
        let shared_unigram = unigrams.first().filter(|_| !has_own_unigrams);
        let results: Vec<Result<Option<UnigramDistribution<F>>>> = (work.into_par_iter().enumerate())
            .map(|(index, ForwardWork { emissions, mut sums, mut scratch, scratch_f64, recycled })| {
                let b = group.start + index;
                let unigram = match has_own_unigrams {
                    true => Some(average(batch.rows(Side::Labels, b), recycled, scratch_f64)?),
                    false => None,
                };
                let utterance = UtteranceScores::new(source, batch, b, unigram.as_ref().or(shared_unigram));
                let mut selected = SelectedScores::new(&mut scratch, sizes.utterances[b]);
                normalizer::accumulate(
                    &utterance,
                    plan.classes,
                    &mut sums,
                    &mut selected,
                    scratch,
                    emissions,
                    slots,
                )?;
                emissions::write_emissions(
                    &utterance,
                    &sums.as_sums(),
                    &selected,
                    options,
                    label_arc.forces_blank,
                    emissions,
                );
                Ok(unigram)
            })
            .collect();
        // The first utterance with an error is reported, so that the message is deterministic.
        for unigram in results {
            unigrams.extend(unigram?);
        }
    }
    Ok((sums, unigrams))
}

/// Returns the error for a label row without a finite average.
fn label_row_error<F: Real, S: ScoreSource<F>>(
    source: &S,
    batch: &Batch,
    plan: Plan,
    row: usize,
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Error {
    let utterance = (0..batch.len()).find(|&b| batch.rows(Side::Labels, b).contains(&row));
    let Some(utterance) = utterance else { return Error::Padding { row } };
    let position = row - batch.rows(Side::Labels, utterance).start;
    let error =
        underflow::check_scores(&UtteranceScores::new(source, batch, utterance, None), plan.classes, slots);
    error.err().unwrap_or(Error::AllMasked { utterance, frame: 0, position })
}
