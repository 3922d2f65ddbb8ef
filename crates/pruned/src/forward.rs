//! The forward half of the first pass: sums, unigrams and emissions of a batch.
use std::ops::Range;

use kernels::Real;
use rayon::prelude::*;

use crate::{
    Batch, Error, Options, Plan, Result, Scratches, Side, Source, Unigram, emissions, moves::Moves,
    normaliser, plan::groups, rare, sums::Sums, tiles::cut, unigram::Row, utterance::Utterance,
};

/// Sums, and the unigram if an utterance has its own.
type OfUtterance<F> = (Sums<F>, Option<Row<F>>);
/// Sums and unigrams of all utterances.
type OfBatch<F> = (Vec<Sums<F>>, Vec<Row<F>>);

/// Sums of all utterances and their unigrams, group after group; writes the emissions of all sites.
pub(crate) fn emit<F: Real, S: Source<F>>(
    source: &S,
    batch: &Batch,
    (options, moves): (&Options, Moves),
    plan: Plan,
    mut values: &mut [f64],
) -> Result<OfBatch<F>> {
    let scratches = Scratches::new(plan.tasks);
    let (mut sums, mut unigrams) = (Vec::with_capacity(batch.len()), Vec::new());
    let smooths = options.am_only_scale != 0.0;
    let average = |rows: Range<usize>| {
        let average = Row::average(source, rows, plan.classes, &scratches);
        average.map_err(|row| refuse(source, batch, plan, row, &scratches))
    };
    if smooths && options.unigram == Unigram::AllRows {
        unigrams.push(average(0..source.rows(Side::Labels))?);
    }
    let own = smooths && options.unigram == Unigram::Utterance;
    unigrams.reserve_exact(if own { batch.len() } else { 0 });
    for group in groups(batch, plan.forward_rows()) {
        let counts = group.clone().map(|b| 2 * batch.lattices().range(b).len());
        let (part, rest) = std::mem::take(&mut values).split_at_mut(counts.clone().sum());
        values = rest;
        let shared = unigrams.first().filter(|_| !own);
        let found: Vec<Result<OfUtterance<F>>> = (cut(part, counts).into_par_iter().enumerate())
            .map(|(i, values)| {
                let b = group.start + i;
                let row = if own { Some(average(batch.rows(Side::Labels, b))?) } else { None };
                let utterance = Utterance::new(source, batch, b, row.as_ref().or(shared));
                let (sums, picks) = normaliser::sums(&utterance, plan.classes, &scratches)?;
                emissions::write(&utterance, &sums, &picks, options, moves.forced, values);
                Ok((sums, row))
            })
            .collect();
        // The earliest error, so that the same mistake always gives the same message.
        for found in found {
            let (of_utterance, row) = found?;
            sums.push(of_utterance);
            unigrams.extend(row);
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
