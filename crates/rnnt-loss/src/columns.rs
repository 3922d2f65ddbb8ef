//! Columns of a lattice out of the outputs of several heads, and the adjoints back.
//!
//! | heads | emissions |
//! |---|---|
//! | tokens | `r_c` |
//! | tokens, durations | `r_c`, `r_d` |
//! | tokens, blank | `log σ(z_∅)`; `log σ(-z_∅) + r_c` |
//!
//! with `r` a log-probability of the head's own softmax (a factored blank: Variani et al., arXiv 2003.07705, equations 8-10).
use std::{borrow::Cow, ops::Range};

use panda_core::Normalized;
use panda_core::Real;

use crate::{
    Options,
    heads::{HeadOutput, Role},
    site_buffers::split_front,
    smoothing::{self, log_z},
};

/// Adjoints of a head's log-probabilities and log-sums.
pub(crate) struct HeadAdjoints<'a> {
    pub emissions: &'a [f64],
    pub log_z: Option<&'a mut [f64]>,
}

fn of<F>(outputs: &[HeadOutput<F>], role: Role) -> Option<&HeadOutput<F>> {
    outputs.iter().find(|output| output.role == role)
}

/// Whether the columns are not simply those of the tokens.
pub(crate) fn mixes<F>(outputs: &[HeadOutput<F>]) -> bool {
    of(outputs, Role::Durations).or(of(outputs, Role::Blank)).is_some()
}

/// Numbers of a site for so many columns; both directions use the same memory in addition to the adjoints.
pub(crate) fn numbers_per_site(columns: usize, options: &Options) -> usize {
    let (loss, one) = (&options.loss, usize::from);
    let (durations, factored, smooths) = (loss.durations() > 0, loss.factors_blank(), options.smooths());
    let mixed = if durations || factored || smooths { columns } else { 0 };
    let forward = mixed + if loss.omega() > 0.0 { 4 } else { 0 };
    let apart = if durations { columns } else { 2 * one(factored) };
    let backward = one(options.clamp.is_some()) + 2 * one(smooths) + one(options.z_loss > 0.0) + apart;
    columns + forward.max(backward)
}

/// Emissions *N x S*.
pub(crate) fn emissions<F: Real>(outputs: &[HeadOutput<F>]) -> Cow<'_, [f64]> {
    let tokens = &outputs[0].normalized.emissions;
    if !mixes(outputs) {
        return Cow::Borrowed(tokens);
    }
    let durations = of(outputs, Role::Durations).map(|output| output.normalized.emissions.len());
    let mut out = vec![0.0; tokens.len() + durations.unwrap_or(tokens.len())];
    write(outputs, &mut out);
    Cow::Owned(out)
}

/// Writes them.
pub(crate) fn write<F: Real>(outputs: &[HeadOutput<F>], out: &mut [f64]) {
    let HeadOutput { selection, normalized: Normalized { emissions: tokens, .. }, .. } = &outputs[0];
    if let Some(durations) = of(outputs, Role::Durations) {
        let (own, theirs) = (selection.per_site(), durations.selection.per_site());
        let rows = tokens.chunks_exact(own).zip(durations.normalized.emissions.chunks_exact(theirs));
        for (out, (tokens, durations)) in out.chunks_exact_mut(own + theirs).zip(rows) {
            out[..own].copy_from_slice(tokens);
            out[own..].copy_from_slice(durations);
        }
    } else if let Some(blank) = of(outputs, Role::Blank) {
        for (out, (r, z)) in out.chunks_exact_mut(2).zip(tokens.iter().zip(log_z(&blank.normalized))) {
            out.copy_from_slice(&[log_sigmoid(z), log_sigmoid(-z) + r]);
        }
    } else {
        out.copy_from_slice(tokens);
    }
}

/// Adjoints of the outputs, but the mean's, from those of the emissions.
pub(crate) fn adjoints<'a, F: Real>(
    outputs: &[HeadOutput<F>],
    adjoints: &'a [f64],
    scratch: &mut &'a mut [f64],
) -> Vec<HeadAdjoints<'a>> {
    let plain = |emissions| HeadAdjoints { emissions, log_z: None };
    if let Some(durations) = of(outputs, Role::Durations) {
        let tokens = outputs[0].selection.per_site();
        let width = tokens + durations.selection.per_site();
        let mut part = |columns: Range<usize>| {
            let out = split_front(scratch, adjoints.len() / width * columns.len());
            let rows = out.chunks_exact_mut(columns.len()).zip(adjoints.chunks_exact(width));
            rows.for_each(|(out, row)| out.copy_from_slice(&row[columns.clone()]));
            plain(out)
        };
        return vec![part(0..tokens), part(tokens..width)];
    }
    if let Some(blank) = of(outputs, Role::Blank) {
        let sites = adjoints.len() / 2;
        let (labels, log_z) = (split_front(scratch, sites), split_front(scratch, sites));
        let out = labels.iter_mut().zip(&mut *log_z);
        let rows = adjoints.chunks_exact(2).zip(smoothing::log_z(&blank.normalized));
        for ((label, log_z), (row, z)) in out.zip(rows) {
            *label = row[1];
            // d log σ(z) = σ(-z), d log σ(-z) = -σ(z)
            *log_z = row[0] * log_sigmoid(-z).exp() - row[1] * log_sigmoid(z).exp();
        }
        return vec![plain(labels), HeadAdjoints { emissions: &[], log_z: Some(log_z) }];
    }
    vec![plain(adjoints)]
}

/// By how much the gradients of a site's scores, in all heads together, can exceed the sum of its adjoints: each head
/// that normalises has twice those of its own; a blank alone has at most one of them.
pub(crate) fn gradient_bound<F>(outputs: &[HeadOutput<F>]) -> f64 {
    let of = |output: &HeadOutput<F>| match output.role {
        Role::Tokens | Role::Durations => 2.0,
        Role::Blank => 1.0,
        Role::Mean => 0.0,
    };
    outputs.iter().map(of).sum()
}

/// `log(1 / (1 + exp(-z)))`, exact at either end.
fn log_sigmoid(z: f64) -> f64 {
    z.min(0.0) - (-z.abs()).exp().ln_1p()
}
