//! Golden test of one frame of the lattice recursion, in f64.
//!
//! The files call label arcs *lexical*. Unlike in a whole lattice, the arc weights differ per
//! alignment state: the number of labels already emitted on the frame.
use lattice::distance::{arc_sums_step, forward_step, string_forward_step};
use lattice::{AlignmentLattice, ArcEnd, Arcs, FullNGram};
use rnnt_dp::semiring::{Log, Probability, Semiring, Tropical};
use rnnt_loss::Element;

use super::check::{LatticeCheck, Quantity};
use super::component_files::{configuration_keys, key_number, round_to_type};
use super::file::LatticeFile;
use crate::error::RunError;

/// Returns true if a tensor is a result of a step.
pub(super) fn is_result(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    const INPUTS: [&str; 8] =
        ["alpha", "beta", "blank", "lexical", "log_z", "string_alpha", "string_blank", "string_lexical"];
    !INPUTS.contains(&name)
}

/// Checks the transitions of alignment states, and forward and backward steps.
pub(super) fn compare_steps<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    for key in configuration_keys(check.file) {
        let context = FullNGram::new(key_number(check.file, &key, "v")?, key_number(check.file, &key, "n")?)?;
        let alignment = match key_number(check.file, &key, "fld") {
            Ok(expansions) => AlignmentLattice::frame_label_dependent(expansions)?,
            Err(_) => AlignmentLattice::FrameDependent,
        };
        let end_code = |end: Option<ArcEnd>| match end {
            None => -1.0,
            Some(ArcEnd::Frame) => 0.0,
            Some(ArcEnd::State(state)) => state as f64,
        };
        let alignment_states = || alignment.topological_visit();
        let blank: Vec<f64> = alignment_states().map(|a| end_code(Some(alignment.blank_next(a)))).collect();
        let label_ends: Vec<f64> = alignment_states().map(|a| end_code(alignment.label_next(a))).collect();
        check.compare(Quantity::Exact, &format!("{key}/blank_next"), &blank)?;
        check.compare(Quantity::Exact, &format!("{key}/lexical_next"), &label_ends)?;
        compare_forward::<F, Probability>(check, &key, "real", &context, alignment)?;
        compare_forward::<F, Log>(check, &key, "log", &context, alignment)?;
        compare_forward::<F, Tropical>(check, &key, "tropical", &context, alignment)?;
        compare_backward::<F>(check, &key, &context, alignment)?;
    }
    Ok(())
}

/// Returns the values of an utterance (the second axis).
fn utterance_values(file: &LatticeFile, name: &str, utterance: usize) -> Result<Vec<f64>, RunError> {
    let stored = file.get(name)?;
    let [states, batch, ..] = stored.shape[..] else {
        return Err(file.error(name, "at least 2 axes", &format!("{:?}", stored.shape)).into());
    };
    if utterance >= batch {
        return Err(file.error(name, &format!("an utterance {utterance}"), &batch.to_string()).into());
    }
    let size = stored.values.len() / (states * batch).max(1);
    let rows = (0..states).map(|state| state * batch + utterance);
    Ok(rows.flat_map(|row| stored.values[row * size..][..size].iter().copied()).collect())
}

/// Compares α after a frame, for all labels and for given ones.
fn compare_forward<F: Element, S: Semiring<Weight = f64>>(
    check: &mut LatticeCheck,
    key: &str,
    semiring: &str,
    context: &FullNGram,
    alignment: AlignmentLattice,
) -> Result<(), RunError> {
    // Tensors of given labels have the prefix `string_`.
    for prefix in ["", "string_"] {
        let name = |tensor: &str| format!("{key}/{prefix}{tensor}");
        let [_, width] = check.file.shape(&name("alpha"))?;
        let mut alphas = Vec::new();
        for (b, alpha) in check.file.rows(&name("alpha"), width)?.enumerate() {
            let (blank, label_arcs) = (
                utterance_values(check.file, &name("blank"), b)?,
                utterance_values(check.file, &name("lexical"), b)?,
            );
            let arcs = Arcs { blank: &blank[..], labels: &label_arcs };
            alphas.extend(if prefix.is_empty() {
                forward_step::<S>(context, alignment, arcs, alpha)?
            } else {
                string_forward_step::<S>(alignment, arcs, alpha)?
            });
        }
        check.compare(Quantity::Value, &name(&format!("forward_{semiring}")), &round_to_type::<F>(alphas))?;
    }
    Ok(())
}

/// Compares β before a frame, and the marginals of its arcs.
fn compare_backward<F: Element>(
    check: &mut LatticeCheck,
    key: &str,
    context: &FullNGram,
    alignment: AlignmentLattice,
) -> Result<(), RunError> {
    let name = |tensor: &str| format!("{key}/{tensor}");
    let [_, states] = check.file.shape(&name("alpha"))?;
    let utterance_row = |tensor: &str, b: usize| -> Result<&[f64], RunError> {
        Ok(check.file.rows(&name(tensor), states)?.nth(b).unwrap_or_default())
    };
    // β and marginals of each utterance.
    let totals = &check.file.get(&name("log_z"))?.values;
    let (mut betas, mut blank_marginals, mut label_marginals) = (Vec::new(), Vec::new(), Vec::new());
    for (b, &total) in totals.iter().enumerate() {
        let (blank, label_arcs) = (
            utterance_values(check.file, &name("blank"), b)?,
            utterance_values(check.file, &name("lexical"), b)?,
        );
        let arcs = Arcs { blank: &blank[..], labels: &label_arcs };
        let sums = arc_sums_step::<Log>(
            context,
            alignment,
            arcs,
            utterance_row("alpha", b)?,
            utterance_row("beta", b)?,
        )?;
        let (blank, label_arcs) = sums.marginals(total);
        betas.extend(sums.beta);
        blank_marginals.push(blank);
        label_marginals.push(label_arcs);
    }
    // The alignment state is the first axis in the file.
    let transpose = |rows: &[Vec<f64>]| {
        let state_size = |row: &[f64]| row.len() / alignment.num_states();
        let values = (0..alignment.num_states()).flat_map(|a| {
            rows.iter().flat_map(move |row| row[a * state_size(row)..][..state_size(row)].iter().copied())
        });
        round_to_type::<F>(values.collect::<Vec<_>>())
    };
    check.compare(Quantity::Value, &name("backward_next_beta"), &round_to_type::<F>(betas))?;
    check.compare(Quantity::Gradient, &name("backward_blank_marginal"), &transpose(&blank_marginals))?;
    Ok(check.compare(Quantity::Gradient, &name("backward_lexical_marginal"), &transpose(&label_marginals))?)
}
