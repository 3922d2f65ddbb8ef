//! Columns of a lattice out of the answers of several heads, and the adjoints back.
//!
//! | heads | emissions |
//! |---|---|
//! | tokens | `r_c` |
//! | tokens, durations | `r_c`, `r_d` |
//! | tokens, blank | `log σ(z_∅)`; `log σ(-z_∅) + r_c` |
//!
//! with `r` a log-probability of the head's own softmax (a factored blank: Variani et al., arXiv 2003.07705, equations 8-10).
use std::borrow::Cow;

use kernels::Real;

use crate::{
    heads::{Answer, Role},
    smoothing::log_z,
};

/// Adjoints of a head's log-probabilities and log-sums.
pub(crate) struct HeadAdjoints {
    pub emissions: Vec<f64>,
    pub log_z: Option<Vec<f64>>,
}

fn of<F>(answers: &[Answer<F>], role: Role) -> Option<&Answer<F>> {
    answers.iter().find(|answer| answer.role == role)
}

/// Emissions *N x S*.
pub(crate) fn emissions<F: Real>(answers: &[Answer<F>]) -> Cow<'_, [f64]> {
    let [first, ..] = answers else { return Cow::Borrowed(&[]) };
    let tokens = &first.normalized.emissions;
    if let Some(durations) = of(answers, Role::Durations) {
        let rows = tokens.chunks_exact(first.selection.per_site());
        let rows = rows.zip(durations.normalized.emissions.chunks_exact(durations.selection.per_site()));
        return interleave(rows, tokens.len() + durations.normalized.emissions.len());
    }
    if let Some(blank) = of(answers, Role::Blank) {
        let mut out = Vec::with_capacity(2 * tokens.len());
        for (r, z) in tokens.iter().zip(log_z(&blank.normalized)) {
            out.extend([log_sigmoid(z), log_sigmoid(-z) + r]);
        }
        return Cow::Owned(out);
    }
    Cow::Borrowed(tokens)
}

fn interleave<'a, 'b>(rows: impl Iterator<Item = (&'a [f64], &'a [f64])>, len: usize) -> Cow<'b, [f64]> {
    let mut out = Vec::with_capacity(len);
    for (tokens, durations) in rows {
        out.extend_from_slice(tokens);
        out.extend_from_slice(durations);
    }
    Cow::Owned(out)
}

/// Adjoints of the answers, but the mean's, from those of the emissions.
pub(crate) fn adjoints<F: Real>(answers: &[Answer<F>], adjoints: Vec<f64>) -> Vec<HeadAdjoints> {
    let plain = |emissions| HeadAdjoints { emissions, log_z: None };
    if let Some(durations) = of(answers, Role::Durations) {
        let tokens = answers[0].selection.per_site();
        let rows = || adjoints.chunks_exact(tokens + durations.selection.per_site());
        let part = |of: fn(&[f64], usize) -> &[f64], len: usize| {
            let mut out = Vec::with_capacity(len);
            rows().for_each(|row| out.extend_from_slice(of(row, tokens)));
            out
        };
        let of_tokens = part(|row, tokens| &row[..tokens], answers[0].normalized.emissions.len());
        let of_durations = part(|row, tokens| &row[tokens..], durations.normalized.emissions.len());
        return vec![plain(of_tokens), plain(of_durations)];
    }
    if let Some(blank) = of(answers, Role::Blank) {
        let labels = adjoints.chunks_exact(2).map(|row| row[1]).collect();
        let rows = adjoints.chunks_exact(2).zip(log_z(&blank.normalized));
        // d log σ(z) = σ(-z), d log σ(-z) = -σ(z)
        let slope = |(row, z): (&[f64], f64)| row[0] * log_sigmoid(-z).exp() - row[1] * log_sigmoid(z).exp();
        let log_z = Some(rows.map(slope).collect());
        return vec![plain(labels), HeadAdjoints { emissions: Vec::new(), log_z }];
    }
    vec![plain(adjoints)]
}

/// By how much the gradients of a site's scores, in all heads together, can exceed the sum of its adjoints: each head
/// that normalises has twice those of its own; a blank alone has at most one of them.
pub(crate) fn reach<F>(answers: &[Answer<F>]) -> f64 {
    let of = |answer: &Answer<F>| match answer.role {
        Role::Tokens | Role::Durations => 2.0,
        Role::Blank => 1.0,
        Role::Mean => 0.0,
    };
    answers.iter().map(of).sum()
}

/// `log(1 / (1 + exp(-z)))`, exact at either end.
fn log_sigmoid(z: f64) -> f64 {
    z.min(0.0) - (-z.abs()).exp().ln_1p()
}
