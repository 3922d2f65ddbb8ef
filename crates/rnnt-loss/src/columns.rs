//! Combines the outputs of several heads into emissions of a transducer.
//!
//! Emissions are the log-probabilities that each lattice node (site) needs, one column per class.
//! In the backward pass, their adjoints (derivatives of the loss with respect to them) are split by
//! head again.
//!
//! | heads | emissions |
//! |---|---|
//! | tokens | `r_c` |
//! | tokens, durations | `r_c`, `r_d` |
//! | tokens, blank | `log σ(z_∅)`; `log σ(-z_∅) + r_c` |
//!
//! where `r_c` and `r_d` are log-probabilities of a token c and a duration d under the softmax of
//! their head, and `z_∅` is the score of the blank (factored blank: Variani et al., arXiv
//! 2003.07705, equations 8-10).
use std::{borrow::Cow, ops::Range};

use panda_core::Normalized;
use panda_core::Real;

use crate::{
    Options,
    column_counts::RNNT_COLUMNS,
    heads::{HeadOutput, HeadRole},
    site_buffers::take_front,
    smoothing::{self, log_z},
};

/// Adjoints of a head's log-probabilities and log-sums.
pub(crate) struct HeadAdjoints<'a> {
    pub emissions: &'a [f64],
    pub log_z: Option<&'a mut [f64]>,
}

/// Returns the output of the head with a role.
fn find_role<F>(outputs: &[HeadOutput<F>], role: HeadRole) -> Option<&HeadOutput<F>> {
    outputs.iter().find(|output| output.role == role)
}

/// Returns whether the columns combine several heads.
pub(crate) fn is_combined<F>(outputs: &[HeadOutput<F>]) -> bool {
    find_role(outputs, HeadRole::Durations).or(find_role(outputs, HeadRole::Blank)).is_some()
}

/// Number of `f64` values per site for a number of columns.
///
/// The adjoints, and scratch memory that forward and backward passes share.
pub(crate) fn values_per_site(columns: usize, options: &Options) -> usize {
    let loss = &options.loss;
    let (has_durations, is_factored, has_smoothing) =
        (loss.num_durations() > 0, loss.factors_blank(), options.has_label_smoothing());
    // Forward: combined emissions; for a TDT mixture, emissions and adjoints of the RNN-T loss.
    let combined_emissions = if has_durations || is_factored || has_smoothing { columns } else { 0 };
    let rnnt_values = if loss.omega() > 0.0 { 2 * RNNT_COLUMNS } else { 0 };
    let forward = combined_emissions + rnnt_values;
    // Backward: adjoints by head (factored blank: of the label and of the blank's score), the
    // weight of a clamp, adjoints of the mean score and of logZ.
    let adjoints_by_head = if has_durations { columns } else { 2 * usize::from(is_factored) };
    let clamp_weights = usize::from(options.clamp.is_some());
    let smoothing_adjoints = 2 * usize::from(has_smoothing);
    let z_loss_adjoints = usize::from(options.z_loss > 0.0);
    let backward = adjoints_by_head + clamp_weights + smoothing_adjoints + z_loss_adjoints;
    columns + forward.max(backward)
}

/// Returns the emissions *N x S*.
pub(crate) fn emissions<F: Real>(outputs: &[HeadOutput<F>]) -> Cow<'_, [f64]> {
    let tokens = &outputs[0].normalized.emissions;
    if !is_combined(outputs) {
        return Cow::Borrowed(tokens);
    }
    let num_durations =
        find_role(outputs, HeadRole::Durations).map(|output| output.normalized.emissions.len());
    let mut out = vec![0.0; tokens.len() + num_durations.unwrap_or(tokens.len())];
    write_emissions(outputs, &mut out);
    Cow::Owned(out)
}

/// Writes the emissions *N x S*.
pub(crate) fn write_emissions<F: Real>(outputs: &[HeadOutput<F>], out: &mut [f64]) {
    let HeadOutput { selection, normalized: Normalized { emissions: tokens, .. }, .. } = &outputs[0];
    if let Some(durations) = find_role(outputs, HeadRole::Durations) {
        let (token_columns, duration_columns) = (selection.per_site(), durations.selection.per_site());
        let rows = tokens
            .chunks_exact(token_columns)
            .zip(durations.normalized.emissions.chunks_exact(duration_columns));
        for (row, (tokens, durations)) in out.chunks_exact_mut(token_columns + duration_columns).zip(rows) {
            row[..token_columns].copy_from_slice(tokens);
            row[token_columns..].copy_from_slice(durations);
        }
    } else if let Some(blank) = find_role(outputs, HeadRole::Blank) {
        let scores = tokens.iter().zip(log_z(&blank.normalized));
        for (row, (r, z)) in out.chunks_exact_mut(RNNT_COLUMNS).zip(scores) {
            row.copy_from_slice(&[log_sigmoid(z), log_sigmoid(-z) + r]);
        }
    } else {
        out.copy_from_slice(tokens);
    }
}

/// Computes adjoints of the outputs, except the mean, from those of emissions.
pub(crate) fn head_adjoints<'a, F: Real>(
    outputs: &[HeadOutput<F>],
    emission_adjoints: &'a [f64],
    scratch: &mut &'a mut [f64],
) -> Vec<HeadAdjoints<'a>> {
    let without_log_z = |emissions| HeadAdjoints { emissions, log_z: None };
    if let Some(durations) = find_role(outputs, HeadRole::Durations) {
        let tokens = outputs[0].selection.per_site();
        let width = tokens + durations.selection.per_site();
        let mut copy_columns = |columns: Range<usize>| {
            let out = take_front(scratch, emission_adjoints.len() / width * columns.len());
            let rows = out.chunks_exact_mut(columns.len()).zip(emission_adjoints.chunks_exact(width));
            rows.for_each(|(out, row)| out.copy_from_slice(&row[columns.clone()]));
            without_log_z(out)
        };
        return vec![copy_columns(0..tokens), copy_columns(tokens..width)];
    }
    if let Some(blank) = find_role(outputs, HeadRole::Blank) {
        let sites = emission_adjoints.len() / RNNT_COLUMNS;
        let (labels, log_z) = (take_front(scratch, sites), take_front(scratch, sites));
        let out = labels.iter_mut().zip(&mut *log_z);
        let rows = emission_adjoints.chunks_exact(RNNT_COLUMNS).zip(smoothing::log_z(&blank.normalized));
        for ((label, log_z), (row, z)) in out.zip(rows) {
            *label = row[1];
            // d log σ(z) = σ(-z), d log σ(-z) = -σ(z)
            *log_z = row[0] * log_sigmoid(-z).exp() - row[1] * log_sigmoid(z).exp();
        }
        return vec![without_log_z(labels), HeadAdjoints { emissions: &[], log_z: Some(log_z) }];
    }
    vec![without_log_z(emission_adjoints)]
}

/// Bound on the score gradients of a site over all heads.
///
/// It is relative to the sum of the absolute adjoints: at most twice this sum for a softmax head,
/// at most once for a factored blank.
pub(crate) fn gradient_bound<F>(outputs: &[HeadOutput<F>]) -> f64 {
    let bound = |output: &HeadOutput<F>| match output.role {
        HeadRole::Tokens | HeadRole::Durations => 2.0,
        HeadRole::Blank => 1.0,
        HeadRole::Mean => 0.0,
    };
    outputs.iter().map(bound).sum()
}

/// `log(1 / (1 + exp(-z)))`, stable for large |z|.
fn log_sigmoid(z: f64) -> f64 {
    z.min(0.0) - (-z.abs()).exp().ln_1p()
}
