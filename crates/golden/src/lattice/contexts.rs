//! Golden test of context automata: next states, walks, and sums over arcs.
//!
//! A context state is what a path remembers of its labels. `p`: state, `y`: label,
//! 0 for the blank.
//!
//! Semirings compute in f64; their results are rounded to the type of the run.
use lattice::context::{backward_broadcast, forward_reduce, forward_reduce_backward, walk_states};
use lattice::{Context, FullNGram, NextStateTable};
use rnnt_dp::semiring::{Differentiable, Log, Probability, Semiring, Tropical};
use rnnt_loss::Element;

use super::check::{LatticeCheck, Quantity};
use super::component_files::{configuration_keys, key_number, round_to_type};
use crate::error::RunError;

/// Returns true if a tensor is a result.
pub(super) fn is_result(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    !["walk_labels", "weights", "backward_broadcast_in"].contains(&name) && !name.ends_with("_cotangent")
}

/// Checks contexts that remember the last n labels (`FullNGram`).
pub(super) fn compare_full_ngrams<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    for key in configuration_keys(check.file) {
        let context = FullNGram::new(key_number(check.file, &key, "v")?, key_number(check.file, &key, "n")?)?;
        let vocabulary = context.vocabulary();
        let next_states = |p: usize| (0..=vocabulary).map(move |y| context.next_state(p, y));
        check.compare_integers(&format!("{key}/next_state"), (0..context.states()).flat_map(next_states))?;
        compare_context::<F>(check, &key, &context)?;
        compare_reduce_gradient::<F, Probability>(check, &key, "real", &context)?;
        compare_reduce_gradient::<F, Log>(check, &key, "log", &context)?;
        compare_reduce_gradient::<F, Tropical>(check, &key, "tropical", &context)?;
    }
    Ok(())
}

/// Checks contexts given as a table of next states (`NextStateTable`).
pub(super) fn compare_state_tables<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    for key in configuration_keys(check.file) {
        let name = format!("{key}/next_state_table");
        let [states, vocabulary] = check.file.shape(&name)?;
        let table: Vec<i64> = check.file.integers(&name)?.into_iter().map(|state| state as i64).collect();
        compare_context::<F>(check, &key, &NextStateTable::new(&table, states, vocabulary)?)?;
    }
    Ok(())
}

/// Checks transitions, state sequences of label strings, and reductions of a context.
fn compare_context<F: Element>(
    check: &mut LatticeCheck,
    key: &str,
    context: &dyn Context,
) -> Result<(), RunError> {
    let (states, vocabulary) = (context.states(), context.vocabulary());
    let next_states = |p: usize| (1..=vocabulary).map(move |y| context.next_state(p, y));
    check.compare_integers(&format!("{key}/next_state_table"), (0..states).flat_map(next_states))?;
    let [_, width] = check.file.shape(&format!("{key}/walk_labels"))?;
    let mut walks = Vec::new();
    for string in check.file.rows(&format!("{key}/walk_labels"), width)? {
        let string: Vec<u32> = string.iter().map(|&y| y as u32).collect();
        walks.extend(walk_states(context, &string)?);
    }
    check.compare_integers(&format!("{key}/walk_states"), walks)?;
    compare_forward_reduce::<F, Probability>(check, key, "real", context)?;
    compare_forward_reduce::<F, Log>(check, key, "log", context)?;
    compare_forward_reduce::<F, Tropical>(check, key, "tropical", context)?;
    let values = check.file.values::<F>(&format!("{key}/backward_broadcast_in"))?;
    let mut broadcast = vec![F::ZERO; values.len() * vocabulary];
    for (row, out) in values.chunks_exact(states).zip(broadcast.chunks_exact_mut(states * vocabulary)) {
        backward_broadcast(context, row, out);
    }
    Ok(check.compare_values(&format!("{key}/backward_broadcast_out"), &broadcast)?)
}

/// Checks the sum of arc weights into each next state.
fn compare_forward_reduce<F: Element, S: Semiring<Weight = f64>>(
    check: &mut LatticeCheck,
    key: &str,
    semiring: &str,
    context: &dyn Context,
) -> Result<(), RunError> {
    let (states, vocabulary) = (context.states(), context.vocabulary());
    let mut sums = Vec::new();
    for weights in check.file.rows(&format!("{key}/weights"), states * vocabulary)? {
        let mut out = vec![S::ZERO; states];
        forward_reduce::<S>(context, weights, &mut out);
        sums.extend(out);
    }
    Ok(check.compare(
        Quantity::Value,
        &format!("{key}/forward_reduce_{semiring}"),
        &round_to_type::<F>(sums),
    )?)
}

/// Checks the gradient of `forward_reduce` for given cotangents.
fn compare_reduce_gradient<F: Element, S: Differentiable>(
    check: &mut LatticeCheck,
    key: &str,
    semiring: &str,
    context: &dyn Context,
) -> Result<(), RunError> {
    let (states, vocabulary) = (context.states(), context.vocabulary());
    let name = format!("{key}/forward_reduce_{semiring}");
    let weights = check.file.rows(&format!("{key}/weights"), states * vocabulary)?;
    let cotangents = check.file.rows(&format!("{name}_cotangent"), states)?;
    let mut gradients = Vec::new();
    for (weights, cotangents) in weights.zip(cotangents) {
        let mut gradient = vec![0.0; states * vocabulary];
        forward_reduce_backward::<S>(context, weights, cotangents, &mut gradient);
        gradients.extend(gradient);
    }
    Ok(check.compare(Quantity::Gradient, &format!("{name}_grad"), &round_to_type::<F>(gradients))?)
}
