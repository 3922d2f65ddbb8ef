//! The forward half of the first pass: sums, unigrams and emissions of a batch.
use std::ops::Range;

use kernels::{Real, WorkerSlots, ensure_len};
use rayon::prelude::*;

use crate::{
    Batch, Error, Options, Plan, Result, Side, Source, TaskScratch, Unigram, Workspace, emissions,
    moves::Moves,
    normaliser::{self, Picks},
    plan::{GroupSizes, groups},
    rare,
    sums::{BatchSums, UtteranceSumsMut},
    tiles::part,
    unigram::UnigramRow,
    utterance::UtteranceScores,
    workspace::reserve_slots,
};

/// Where an utterance's numbers go, and what it works in.
struct ForwardWork<'a, F> {
    values: &'a mut [f64],
    sums: UtteranceSumsMut<'a, F>,
    narrow: &'a mut [F],
    wide: &'a mut [f64],
    spare: UnigramRow<F>,
}

/// ClassSums of all utterances and their unigrams, group after group; writes the emissions of all sites to the front of the wide room.
pub(crate) fn emit<F: Real, S: Source<F>>(
    source: &S,
    batch: &Batch,
    (options, moves): (&Options, Moves),
    plan: Plan,
    workspace: &mut Workspace<F>,
) -> Result<(BatchSums<F>, Vec<UnigramRow<F>>)> {
    let Workspace { slots, narrow, wide, spare, .. } = workspace;
    let smooths = options.am_only_scale != 0.0;
    let (own, shared) = (smooths && options.unigram == Unigram::Utterance, options.shares_unigram());
    let sizes = GroupSizes::new(source.classes(), batch, options, plan);
    reserve_slots(slots, plan.tasks, sizes.of_task::<F, S>(source));
    let (groups, sites) = (groups(batch, plan.forward_rows()), batch.lattices().sites());
    let [of_narrow, of_wide] = sizes.most(&groups, |b| sizes.forward::<F>(b));
    ensure_len(narrow, of_narrow, F::ZERO);
    ensure_len(wide, 2 * sites + of_wide.max(if shared { source.classes() } else { 0 }), 0.0);
    let (mut values, wide) = wide.split_at_mut(2 * sites);
    let mut spares = std::mem::take(&mut spare.unigrams).into_iter();
    let mut sums = BatchSums::new(std::mem::take(&mut spare.sums), &sizes.of_utterances);
    let average = |rows: Range<usize>, room: (UnigramRow<F>, &mut [f64])| {
        let average = UnigramRow::average(source, rows, plan.classes, room, slots);
        average.map_err(|row| refuse(source, batch, plan, row, slots))
    };
    let mut unigrams = Vec::new();
    if shared {
        let spare = spares.next().unwrap_or_else(UnigramRow::none);
        unigrams.push(average(0..source.rows(Side::Labels), (spare, &mut *wide))?);
    }
    unigrams.reserve_exact(if own { batch.len() } else { 0 });
    let mut parts = sums.cut_mut(&sizes.of_utterances).into_iter();
    for group in groups {
        let (mut narrow, mut wide) = (&mut narrow[..], &mut wide[..]);
        let work = group.clone().zip(parts.by_ref()).map(|(b, sums)| {
            let [of_narrow, of_wide] = sizes.forward::<F>(b);
            let values = part(&mut values, 2 * batch.lattices().range(b).len());
            let (narrow, wide) = (part(&mut narrow, of_narrow), part(&mut wide, of_wide));
            let spare = if own { spares.next() } else { None }.unwrap_or_else(UnigramRow::none);
            ForwardWork { values, sums, narrow, wide, spare }
        });
        let work: Vec<_> = work.collect();
        let common = unigrams.first().filter(|_| !own);
        let found: Vec<Result<Option<UnigramRow<F>>>> = (work.into_par_iter().enumerate())
            .map(|(i, ForwardWork { values, mut sums, mut narrow, wide, spare })| {
                let b = group.start + i;
                let row = match own {
                    true => Some(average(batch.rows(Side::Labels, b), (spare, wide))?),
                    false => None,
                };
                let utterance = UtteranceScores::new(source, batch, b, row.as_ref().or(common));
                let mut picks = Picks::new(&mut narrow, sizes.of_utterances[b]);
                let into = (&mut sums, &mut picks);
                normaliser::sums(&utterance, plan.classes, into, (narrow, &mut *values), slots)?;
                emissions::write(&utterance, &sums.found(), &picks, options, moves.forced, values);
                Ok(row)
            })
            .collect();
        // The earliest error, so that the same mistake always gives the same message.
        for row in found {
            unigrams.extend(row?);
        }
    }
    Ok((sums, unigrams))
}

/// What is wrong with a label row without an average.
fn refuse<F: Real, S: Source<F>>(
    source: &S,
    batch: &Batch,
    plan: Plan,
    row: usize,
    slots: &WorkerSlots<TaskScratch<F>>,
) -> Error {
    let owner = (0..batch.len()).find(|&b| batch.rows(Side::Labels, b).contains(&row));
    let Some(utterance) = owner else { return Error::Padding { row } };
    let position = row - batch.rows(Side::Labels, utterance).start;
    let odd = rare::find_odd(&UtteranceScores::new(source, batch, utterance, None), plan.classes, slots);
    odd.err().unwrap_or(Error::AllMasked { utterance, frame: 0, position })
}
