//! One frame of each alignment, with weights of their own for each of its states; in f64 whatever the type of a run.
use lattice::distance::{arc_sums_step, forward_step, string_forward_step};
use lattice::{AlignmentLattice, ArcEnd, Arcs, FullNGram};
use rnnt_dp::semiring::{Log, Probability, Semiring, Tropical};
use rnnt_loss::Element;

use super::check::{Check, Quantity};
use super::file::File;
use super::parts::{keys, number, rounded};
use crate::error::Stop;

/// Whether a tensor is what a step answers.
pub fn is_answer(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    const GIVEN: [&str; 8] =
        ["alpha", "beta", "blank", "lexical", "log_z", "string_alpha", "string_blank", "string_lexical"];
    !GIVEN.contains(&name)
}

pub fn steps<F: Element>(check: &mut Check) -> Result<(), Stop> {
    for key in keys(check.file) {
        let context = FullNGram::new(number(check.file, &key, "v")?, number(check.file, &key, "n")?)?;
        let alignment = match number(check.file, &key, "fld") {
            Ok(expansions) => AlignmentLattice::frame_label_dependent(expansions)?,
            Err(_) => AlignmentLattice::FrameDependent,
        };
        let next = |next: Option<ArcEnd>| match next {
            None => -1.0,
            Some(ArcEnd::Frame) => 0.0,
            Some(ArcEnd::State(state)) => state as f64,
        };
        let visit = || alignment.topological_visit();
        let blank: Vec<f64> = visit().map(|a| next(Some(alignment.blank_next(a)))).collect();
        let lexical: Vec<f64> = visit().map(|a| next(alignment.lexical_next(a))).collect();
        check.compare(Quantity::Same, &format!("{key}/blank_next"), &blank)?;
        check.compare(Quantity::Same, &format!("{key}/lexical_next"), &lexical)?;
        forward::<F, Probability>(check, &key, "real", (&context, alignment))?;
        forward::<F, Log>(check, &key, "log", (&context, alignment))?;
        forward::<F, Tropical>(check, &key, "tropical", (&context, alignment))?;
        backward::<F>(check, &key, (&context, alignment))?;
    }
    Ok(())
}

/// Values of an utterance, whose axis is the second one, behind the state of the alignment.
fn of(file: &File, name: &str, utterance: usize) -> Result<Vec<f64>, Stop> {
    let stored = file.get(name)?;
    let [states, batch, ..] = stored.shape[..] else {
        return Err(file.wrong(name, "at least 2 axes", &format!("{:?}", stored.shape)).into());
    };
    if utterance >= batch {
        return Err(file.wrong(name, &format!("an utterance {utterance}"), &batch.to_string()).into());
    }
    let size = stored.values.len() / (states * batch).max(1);
    let rows = (0..states).map(|state| state * batch + utterance);
    Ok(rows.flat_map(|row| stored.values[row * size..][..size].iter().copied()).collect())
}

fn forward<F: Element, S: Semiring<Weight = f64>>(
    check: &mut Check,
    key: &str,
    semiring: &str,
    (context, alignment): (&FullNGram, AlignmentLattice),
) -> Result<(), Stop> {
    for string in ["", "string_"] {
        let name = |what: &str| format!("{key}/{string}{what}");
        let [_, width] = check.file.shape(&name("alpha"))?;
        let mut all = Vec::new();
        for (b, alpha) in check.file.rows(&name("alpha"), width)?.enumerate() {
            let (blank, lexical) = (of(check.file, &name("blank"), b)?, of(check.file, &name("lexical"), b)?);
            let arcs = Arcs { blank: &blank[..], lexical: &lexical };
            all.extend(if string.is_empty() {
                forward_step::<S>(context, alignment, arcs, alpha)?
            } else {
                string_forward_step::<S>(alignment, arcs, alpha)?
            });
        }
        check.compare(Quantity::Value, &name(&format!("forward_{semiring}")), &rounded::<F>(all))?;
    }
    Ok(())
}

fn backward<F: Element>(
    check: &mut Check,
    key: &str,
    (context, alignment): (&FullNGram, AlignmentLattice),
) -> Result<(), Stop> {
    let name = |what: &str| format!("{key}/{what}");
    let [_, states] = check.file.shape(&name("alpha"))?;
    let row = |what: &str, b: usize| -> Result<&[f64], Stop> {
        Ok(check.file.rows(&name(what), states)?.nth(b).unwrap_or_default())
    };
    let totals = &check.file.get(&name("log_z"))?.values;
    let (mut betas, mut of_blank, mut of_lexical) = (Vec::new(), Vec::new(), Vec::new());
    for (b, &total) in totals.iter().enumerate() {
        let (blank, lexical) = (of(check.file, &name("blank"), b)?, of(check.file, &name("lexical"), b)?);
        let arcs = Arcs { blank: &blank[..], lexical: &lexical };
        let found = arc_sums_step::<Log>(context, alignment, arcs, row("alpha", b)?, row("beta", b)?)?;
        let (blank, lexical) = found.marginals(total);
        betas.extend(found.beta);
        of_blank.push(blank);
        of_lexical.push(lexical);
    }
    // States of the alignment come first in the file.
    let turned = |rows: &[Vec<f64>]| {
        let size = |row: &[f64]| row.len() / alignment.num_states();
        let all = (0..alignment.num_states())
            .flat_map(|a| rows.iter().flat_map(move |row| row[a * size(row)..][..size(row)].iter().copied()));
        rounded::<F>(all.collect::<Vec<_>>())
    };
    check.compare(Quantity::Value, &name("backward_next_beta"), &rounded::<F>(betas))?;
    check.compare(Quantity::Gradient, &name("backward_blank_marginal"), &turned(&of_blank))?;
    Ok(check.compare(Quantity::Gradient, &name("backward_lexical_marginal"), &turned(&of_lexical))?)
}
