//! Arc log-probabilities of the first pass, with smoothing, and their derivatives.
//!
//! With λ = `lm_only_scale`, μ = `am_only_scale`, w = 1 - λ - μ, for a class c,
//!
//! ```text
//! e(t,u,c) = w (am[t,c] + lm[u,c] - logZ[t,u])
//!          + λ (lm[u,c] - log Σ_c' exp lm[u,c'])
//!          + μ (am[t,c] + log q[c] - log Σ_c' q[c'] exp am[t,c'])
//! ```
//! am: encoder scores; lm: predictor scores; logZ: normalizer; q: unigram. A context is a label
//! position or the unigram (K of them); a pair is a frame and a context.
use kernels::Real;
use rnnt_dp::delay_shift;

use crate::{
    Options, Source,
    normalizer::SelectedScores,
    sums::{self, UtteranceSums},
    tiles::split_front,
    utterance::UtteranceScores,
};

/// Returns `scale · value`, and 0 for a scale of 0.
fn scale_or_zero(scale: f64, value: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { scale * value }
}

/// Writes the emissions of blank and next label, *T x (U+1) x 2*.
///
/// The label at u = U is 0. If `forces_blank`, the label includes the blank that follows in its
/// frame.
pub(crate) fn write_emissions<F: Real, S: Source<F>>(
    utterance: &UtteranceScores<F, S>,
    sums: &UtteranceSums<F>,
    selected: &SelectedScores<F>,
    options: &Options,
    forces_blank: bool,
    out: &mut [f64],
) {
    let (positions, contexts) = (utterance.labels.len(), utterance.contexts());
    let (joint, lm_only, am_only) = (options.joint_scale(), options.lm_only_scale, options.am_only_scale);
    let relative = |score: F, max: F| score.to_f64() - max.to_f64();
    // Terms of a label position: the score minus the row's largest score, and the lm-only term.
    let label_terms = |scores: &[F]| -> Vec<[f64; 2]> {
        let rows = scores.iter().zip(sums.label_max).zip(sums.label_sums);
        rows.map(|((&score, &max), sum)| {
            let score = relative(score, max);
            [score, scale_or_zero(lm_only, score - sum.ln())]
        })
        .collect()
    };
    let (blanks, nexts) = (label_terms(selected.label_blank), label_terms(selected.label_next));
    let unigram = |class: usize| utterance.unigram.map_or(0.0, |row| row.mass[class].to_f64().ln());
    let blank_unigram = unigram(utterance.blank);
    let next_unigram: Vec<f64> = utterance.next.iter().map(|&class| unigram(class as usize)).collect();

    let mut logs = vec![0.0; contexts];
    let rows = out.chunks_exact_mut(2 * positions).zip(sums.pairs.chunks_exact(contexts));
    for (t, (row, pairs)) in rows.enumerate() {
        logs.iter_mut().zip(pairs).for_each(|(log, &pair)| *log = sums::log(pair));
        let max = sums.frame_max[t];
        let am_only_term =
            |score: f64, unigram: f64| scale_or_zero(am_only, score + unigram - logs[contexts - 1]);
        let blank = relative(selected.frame_blank[t], max);
        let blank_am_only = am_only_term(blank, blank_unigram);
        let delay_term = delay_shift(options.delay_penalty, t, utterance.frames.len());
        for (u, out) in row.chunks_exact_mut(2).enumerate() {
            let [score, lm_only_term] = blanks[u];
            out[0] = scale_or_zero(joint, blank + score - logs[u]) + lm_only_term + blank_am_only;
            out[1] = 0.0;
            if u + 1 < positions {
                let next = relative(selected.frame_next[t * positions + u], max);
                let [score, lm_only_term] = nexts[u];
                let next_am_only = am_only_term(next, next_unigram[u]);
                out[1] =
                    scale_or_zero(joint, next + score - logs[u]) + lm_only_term + next_am_only + delay_term;
            }
        }
        if forces_blank {
            (0..positions - 1).for_each(|u| row[2 * u + 1] += row[2 * u + 2]);
        }
    }
}

/// Flushes tiny derivatives to 0.
///
/// Their products would be denormal numbers, which take about 100 times as long.
fn flush<F: Real>(derivative: f64) -> F {
    if derivative.abs() < F::FLUSH_THRESHOLD.to_f64() { F::ZERO } else { F::from_f64(derivative) }
}

/// Derivatives of an utterance's loss with respect to the terms of emissions.
pub(crate) struct Derivatives<'a, F> {
    /// By log-normalizers, *T x K*; 0 for underflowed pairs.
    ///
    /// They are divided by the pairs' sums of products: G of `backward.rs`.
    pub pairs: &'a mut [F],
    /// By log-normalizers of underflowed pairs, in their order.
    pub underflow: &'a mut [f64],
    /// By `am[t, blank]`, *T*.
    pub frame_blank: &'a mut [F],
    /// By `am[t, next(u)]`, *T x (U+1)*.
    pub frame_next: &'a mut [F],
    /// By `lm[u, blank]`, *U+1*.
    pub label_blank: &'a mut [F],
    /// By `lm[u, next(u)]`, *U+1*.
    pub label_next: &'a mut [F],
    /// By `Σ_c L[u,c]` of the lm-only term, *U+1*.
    pub label_sums: &'a mut [F],
    /// By `log unigram[blank]`.
    pub unigram_blank: f64,
    /// By `log unigram[next(u)]`, *U+1*.
    pub unigram_next: Vec<f64>,
}

impl<'a, F: Real> Derivatives<'a, F> {
    /// Returns the buffer elements of an utterance, without underflowed pairs.
    pub fn count([t, p, k]: [usize; 3]) -> usize {
        t * k + t + t * p + 3 * p
    }

    /// Counts the underflowed pairs.
    pub fn underflow_count(sums: &UtteranceSums<F>) -> usize {
        sums.pairs.iter().filter(|&&pair| sums::is_underflow(pair)).count()
    }

    /// Computes the derivatives from arc occupancies and a loss weight.
    ///
    /// Occupancies are *T x (U+1) x 2*.
    pub fn new<S: Source<F>>(
        utterance: &UtteranceScores<F, S>,
        sums: &UtteranceSums<F>,
        (options, forces_blank): (&Options, bool),
        (occupancies, weight): (&[f64], f64),
        (buffer, underflow_buffer): (&mut &'a mut [F], &'a mut [f64]),
    ) -> Self {
        let (frames, positions, contexts) =
            (utterance.frames.len(), utterance.labels.len(), utterance.contexts());
        let (joint, lm_only, am_only) = (options.joint_scale(), options.lm_only_scale, options.am_only_scale);
        let token_weights = utterance.token_weights;
        let label_weights: Vec<f64> = (0..positions)
            .map(|u| -weight * (1.0 + options.fastemit) * token_weights.get(u).unwrap_or(&1.0))
            .collect();
        let mut zeros = |count| {
            let values = split_front(buffer, count);
            values.fill(F::ZERO);
            values
        };
        let mut out = Self {
            pairs: zeros(frames * contexts),
            underflow: underflow_buffer,
            frame_blank: zeros(frames),
            frame_next: zeros(frames * positions),
            label_blank: zeros(positions),
            label_next: zeros(positions),
            label_sums: zeros(positions),
            unigram_blank: 0.0,
            unigram_next: vec![0.0; positions],
        };
        let mut underflow_count = 0;
        // Sums of blank and next label over all frames.
        let mut totals = vec![[0.0; 2]; positions];
        let mut derivatives = vec![0.0; contexts];
        for (t, row) in occupancies.chunks_exact(2 * positions).enumerate() {
            let mut blanks = 0.0;
            for u in 0..positions {
                let label = label_weights[u] * row[2 * u + 1];
                let mut blank = -weight * row[2 * u];
                if forces_blank && u > 0 {
                    blank -= weight * row[2 * u - 1];
                }
                blanks += blank;
                totals[u][0] += blank;
                totals[u][1] += label;
                derivatives[u] = -joint * (blank + label);
                out.frame_next[t * positions + u] = flush((joint + am_only) * label);
            }
            out.frame_blank[t] = flush((joint + am_only) * blanks);
            if contexts > positions {
                let labels: f64 =
                    label_weights.iter().zip(row.chunks_exact(2)).map(|(weight, o)| weight * o[1]).sum();
                derivatives[positions] = -am_only * (blanks + labels);
                out.unigram_blank += am_only * blanks;
            }
            let pairs = out.pairs[t * contexts..].iter_mut().zip(&sums.pairs[t * contexts..]);
            for ((into, &sum), &derivative) in pairs.zip(&derivatives) {
                match sums::is_underflow(sum) {
                    true => {
                        out.underflow[underflow_count] = derivative;
                        underflow_count += 1;
                    }
                    false => *into = flush(derivative / sum),
                }
            }
        }
        for (u, [blank, label]) in totals.into_iter().enumerate() {
            out.label_blank[u] = flush((joint + lm_only) * blank);
            out.label_next[u] = flush((joint + lm_only) * label);
            out.label_sums[u] = flush(-lm_only * (blank + label) / sums.label_sums[u]);
            out.unigram_next[u] = am_only * label;
        }
        out
    }
}
