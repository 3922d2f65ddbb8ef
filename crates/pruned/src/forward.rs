//! Forward half of the first pass: normalizer sums and arc log-probabilities.
//!
//! The lattice recursions follow in `first_pass.rs`. Utterances are processed in groups that limit
//! the memory.
use std::ops::Range;

use kernels::{Real, WorkerSlots, ensure_len};
use rayon::prelude::*;

use crate::{
    Batch, Error, Options, Plan, Result, Side, Source, TaskScratch, Unigram, Workspace,
    arc_shape::ArcShape,
    emissions,
    normalizer::{self, SelectedScores},
    plan::{GroupSizes, utterance_groups},
    sums::{BatchSums, UtteranceSumsMut},
    tiles::split_front,
    underflow,
    unigram::UnigramRow,
    utterance::UtteranceScores,
    workspace::reserve_slots,
};

/// Outputs and scratch memory of an utterance.
struct ForwardWork<'a, F> {
    values: &'a mut [f64],
    sums: UtteranceSumsMut<'a, F>,
    scratch: &'a mut [F],
    scratch_f64: &'a mut [f64],
    recycled: UnigramRow<F>,
}

/// Computes the sums and unigrams of all utterances, group by group.
///
/// The emissions of all sites are written to the front of `workspace.scratch_f64`.
pub(crate) fn compute_emissions<F: Real, S: Source<F>>(
    source: &S,
    batch: &Batch,
    (options, arc_shape): (&Options, ArcShape),
    plan: Plan,
    workspace: &mut Workspace<F>,
) -> Result<(BatchSums<F>, Vec<UnigramRow<F>>)> {
    let Workspace { slots, scratch, scratch_f64, recycled, .. } = workspace;
    let needs_unigram = options.am_only_scale != 0.0;
    let (per_utterance, shared) =
        (needs_unigram && options.unigram == Unigram::Utterance, options.shares_unigram());
    let sizes = GroupSizes::new(source.classes(), batch, options, plan);
    reserve_slots(slots, plan.tasks, sizes.task_scratch::<F, S>(source));
    let groups = utterance_groups(batch, plan.forward_rows());
    let sites = batch.lattices().sites();
    let [scratch_len, scratch_f64_len] = sizes.max_over(&groups, |b| sizes.forward::<F>(b));
    ensure_len(scratch, scratch_len, F::ZERO);
    ensure_len(scratch_f64, 2 * sites + scratch_f64_len.max(if shared { source.classes() } else { 0 }), 0.0);
    let (mut values, scratch_f64) = scratch_f64.split_at_mut(2 * sites);
    let mut recycled_unigrams = std::mem::take(&mut recycled.unigrams).into_iter();
    let mut sums = BatchSums::new(std::mem::take(&mut recycled.sums), &sizes.utterances);
    let average = |rows: Range<usize>, buffer: (UnigramRow<F>, &mut [f64])| {
        let average = UnigramRow::average(source, rows, plan.classes, buffer, slots);
        average.map_err(|row| label_row_error(source, batch, plan, row, slots))
    };
    let mut unigrams = Vec::new();
    if shared {
        let recycled = recycled_unigrams.next().unwrap_or_else(UnigramRow::empty);
        unigrams.push(average(0..source.rows(Side::Labels), (recycled, &mut *scratch_f64))?);
    }
    unigrams.reserve_exact(if per_utterance { batch.len() } else { 0 });
    let mut parts = sums.split_mut(&sizes.utterances).into_iter();
    for group in groups {
        let (mut scratch, mut scratch_f64) = (&mut scratch[..], &mut scratch_f64[..]);
        let work = group.clone().zip(parts.by_ref()).map(|(b, sums)| {
            let [scratch_len, scratch_f64_len] = sizes.forward::<F>(b);
            let values = split_front(&mut values, 2 * batch.lattices().site_range(b).len());
            let (scratch, scratch_f64) =
                (split_front(&mut scratch, scratch_len), split_front(&mut scratch_f64, scratch_f64_len));
            let recycled =
                if per_utterance { recycled_unigrams.next() } else { None }.unwrap_or_else(UnigramRow::empty);
            ForwardWork { values, sums, scratch, scratch_f64, recycled }
        });
        let work: Vec<_> = work.collect();
        let shared_unigram = unigrams.first().filter(|_| !per_utterance);
        let rows: Vec<Result<Option<UnigramRow<F>>>> = (work.into_par_iter().enumerate())
            .map(|(i, ForwardWork { values, mut sums, mut scratch, scratch_f64, recycled })| {
                let b = group.start + i;
                let row = match per_utterance {
                    true => Some(average(batch.rows(Side::Labels, b), (recycled, scratch_f64))?),
                    false => None,
                };
                let utterance = UtteranceScores::new(source, batch, b, row.as_ref().or(shared_unigram));
                let mut selected = SelectedScores::new(&mut scratch, sizes.utterances[b]);
                let into = (&mut sums, &mut selected);
                normalizer::accumulate(&utterance, plan.classes, into, (scratch, &mut *values), slots)?;
                emissions::write_emissions(
                    &utterance,
                    &sums.as_sums(),
                    &selected,
                    options,
                    arc_shape.forces_blank,
                    values,
                );
                Ok(row)
            })
            .collect();
        // The error of the first utterance, so that the message is deterministic.
        for row in rows {
            unigrams.extend(row?);
        }
    }
    Ok((sums, unigrams))
}

/// Returns the error for a label row without a finite average.
fn label_row_error<F: Real, S: Source<F>>(
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
        underflow::find_bad_score(&UtteranceScores::new(source, batch, utterance, None), plan.classes, slots);
    error.err().unwrap_or(Error::AllMasked { utterance, frame: 0, position })
}
