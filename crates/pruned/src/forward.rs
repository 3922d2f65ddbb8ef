//! The forward half of the first pass: sums, unigrams and emissions of a batch.
use std::ops::Range;

use kernels::{Real, ensure_len};
use rayon::prelude::*;

use crate::{
    Batch, Error, Options, Plan, Result, Scratches, Side, Source, Unigram, Workspace, emissions,
    moves::Moves,
    normaliser::{self, Picks},
    plan::{Rooms, groups},
    rare,
    sums::{Finding, OfBatch},
    tiles::part,
    unigram::Row,
    utterance::Utterance,
};

/// Where an utterance's numbers go, and what it works in.
struct Work<'a, F> {
    values: &'a mut [f64],
    sums: Finding<'a, F>,
    narrow: &'a mut [F],
    wide: &'a mut [f64],
    spare: Row<F>,
}

/// Sums of all utterances and their unigrams, group after group; writes the emissions of all sites to the front of the wide room.
pub(crate) fn emit<F: Real, S: Source<F>>(
    source: &S,
    batch: &Batch,
    (options, moves): (&Options, Moves),
    plan: Plan,
    workspace: &mut Workspace<F>,
) -> Result<(OfBatch<F>, Vec<Row<F>>)> {
    let Workspace { scratches, narrow, wide, spare, .. } = workspace;
    let smooths = options.am_only_scale != 0.0;
    let (own, shared) = (smooths && options.unigram == Unigram::Utterance, options.shares_unigram());
    let rooms = Rooms::new(source.classes(), batch, options, plan);
    scratches.reserve(plan.tasks, rooms.scratch::<F, S>(source));
    let (groups, sites) = (groups(batch, plan.forward_rows()), batch.lattices().sites());
    let [of_narrow, of_wide] = rooms.most(&groups, |b| rooms.forward::<F>(b));
    ensure_len(narrow, of_narrow, F::ZERO);
    ensure_len(wide, 2 * sites + of_wide.max(if shared { source.classes() } else { 0 }), 0.0);
    let (mut values, wide) = wide.split_at_mut(2 * sites);
    let mut spares = std::mem::take(&mut spare.unigrams).into_iter();
    let mut sums = OfBatch::new(std::mem::take(&mut spare.sums), &rooms.sizes);
    let average = |rows: Range<usize>, room: (Row<F>, &mut [f64])| {
        let average = Row::average(source, rows, plan.classes, room, scratches);
        average.map_err(|row| refuse(source, batch, plan, row, scratches))
    };
    let mut unigrams = Vec::new();
    if shared {
        let spare = spares.next().unwrap_or_else(Row::none);
        unigrams.push(average(0..source.rows(Side::Labels), (spare, &mut *wide))?);
    }
    unigrams.reserve_exact(if own { batch.len() } else { 0 });
    let mut parts = sums.cut_mut(&rooms.sizes).into_iter();
    for group in groups {
        let (mut narrow, mut wide) = (&mut narrow[..], &mut wide[..]);
        let work = group.clone().zip(parts.by_ref()).map(|(b, sums)| {
            let [of_narrow, of_wide] = rooms.forward::<F>(b);
            let values = part(&mut values, 2 * batch.lattices().range(b).len());
            let (narrow, wide) = (part(&mut narrow, of_narrow), part(&mut wide, of_wide));
            let spare = if own { spares.next() } else { None }.unwrap_or_else(Row::none);
            Work { values, sums, narrow, wide, spare }
        });
        let work: Vec<_> = work.collect();
        let common = unigrams.first().filter(|_| !own);
        let found: Vec<Result<Option<Row<F>>>> = (work.into_par_iter().enumerate())
            .map(|(i, Work { values, mut sums, mut narrow, wide, spare })| {
                let b = group.start + i;
                let row = match own {
                    true => Some(average(batch.rows(Side::Labels, b), (spare, wide))?),
                    false => None,
                };
                let utterance = Utterance::new(source, batch, b, row.as_ref().or(common));
                let mut picks = Picks::new(&mut narrow, rooms.sizes[b]);
                let into = (&mut sums, &mut picks);
                normaliser::sums(&utterance, plan.classes, into, (narrow, &mut *values), scratches)?;
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
    scratches: &Scratches<F>,
) -> Error {
    let owner = (0..batch.len()).find(|&b| batch.rows(Side::Labels, b).contains(&row));
    let Some(utterance) = owner else { return Error::Padding { row } };
    let position = row - batch.rows(Side::Labels, utterance).start;
    let odd = rare::find_odd(&Utterance::new(source, batch, utterance, None), plan.classes, scratches);
    odd.err().unwrap_or(Error::AllMasked { utterance, frame: 0, position })
}
