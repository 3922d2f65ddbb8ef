//! Arc log-probabilities of the pruned first pass, with smoothing, and their derivatives.
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
    Options, ScoreSource,
    normalizer::SelectedScores,
    sums::{self, UtteranceSizes, UtteranceSums},
    tiles::take_front,
    utterance::UtteranceScores,
};

/// Returns `scale · value`, and 0 for a scale of 0.
fn scale_or_zero(scale: f64, value: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { scale * value }
}

/// Writes the emissions of blank and next label, *T x (U+1) x 2*.
///
/// The label at u = U is 0. If `forces_blank`, the label includes the blank that must follow in the
/// same frame.
pub(crate) fn write_emissions<F: Real, S: ScoreSource<F>>(
    utterance: &UtteranceScores<F, S>,
    sums: &UtteranceSums<F>,
    selected: &SelectedScores<F>,
    options: &Options,
    forces_blank: bool,
    out: &mut [f64],
) {
    let (positions, contexts) = (utterance.labels.len(), utterance.contexts());
    let (joint_scale, lm_only_scale, am_only_scale) =
        (options.joint_scale(), options.lm_only_scale, options.am_only_scale);
    let relative_score = |score: F, max: F| score.to_f64() - max.to_f64();
    // Terms of a label position: the score minus the row's largest score, and the lm-only term.
    let label_terms = |scores: &[F]| -> Vec<[f64; 2]> {
        let rows = scores.iter().zip(sums.label_max).zip(sums.label_sums);
        rows.map(|((&score, &max), sum)| {
            let score = relative_score(score, max);
            [score, scale_or_zero(lm_only_scale, score - sum.ln())]
        })
        .collect()
    };
    let (blank_terms, next_terms) = (label_terms(selected.label_blank), label_terms(selected.label_next));
    let log_unigram = |class: usize| {
        utterance.unigram.map_or(0.0, |distribution| distribution.relative[class].to_f64().ln())
    };
    let blank_log_unigram = log_unigram(utterance.blank);
    let next_log_unigrams: Vec<f64> =
        utterance.next_labels.iter().map(|&class| log_unigram(class as usize)).collect();

    // Emissions, frame by frame.
    let mut log_sums = vec![0.0; contexts];
    let rows = out.chunks_exact_mut(2 * positions).zip(sums.pair_sums.chunks_exact(contexts));
    for (t, (row, pair_sums)) in rows.enumerate() {
        log_sums
            .iter_mut()
            .zip(pair_sums)
            .for_each(|(log_sum, &pair_sum)| *log_sum = sums::log_pair_sum(pair_sum));
        let frame_max = sums.frame_max[t];
        let am_only_term = |score: f64, log_unigram: f64| {
            scale_or_zero(am_only_scale, score + log_unigram - log_sums[contexts - 1])
        };
        let blank_score = relative_score(selected.frame_blank[t], frame_max);
        let blank_am_only = am_only_term(blank_score, blank_log_unigram);
        let delay_term = delay_shift(options.delay_penalty, t, utterance.frames.len());
        for (u, out) in row.chunks_exact_mut(2).enumerate() {
            let [score, lm_only_term] = blank_terms[u];
            out[0] =
                scale_or_zero(joint_scale, blank_score + score - log_sums[u]) + lm_only_term + blank_am_only;
            out[1] = 0.0;
            if u + 1 < positions {
                let next_score = relative_score(selected.frame_next[t * positions + u], frame_max);
                let [score, lm_only_term] = next_terms[u];
                let next_am_only = am_only_term(next_score, next_log_unigrams[u]);
                out[1] = scale_or_zero(joint_scale, next_score + score - log_sums[u])
                    + lm_only_term
                    + next_am_only
                    + delay_term;
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
fn flush_tiny<F: Real>(derivative: f64) -> F {
    if derivative.abs() < F::FLUSH_THRESHOLD.to_f64() { F::ZERO } else { F::from_f64(derivative) }
}

/// Arc occupancies of an utterance, and the weight of its loss.
pub(crate) struct WeightedOccupancies<'a> {
    /// *T x (U+1) x 2*: blank, next label.
    pub occupancies: &'a [f64],
    pub weight: f64,
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
    pub(crate) fn buffer_len(sizes: UtteranceSizes) -> usize {
        let UtteranceSizes { frames, positions, .. } = sizes;
        sizes.pairs() + frames + frames * positions + 3 * positions
    }

    /// Counts the underflowed pairs.
    pub(crate) fn count_underflow(sums: &UtteranceSums<F>) -> usize {
        sums.pair_sums.iter().filter(|&&pair_sum| sums::is_underflow(pair_sum)).count()
    }

    /// Computes the derivatives from arc occupancies and the weight of the loss.
    pub(crate) fn new<S: ScoreSource<F>>(
        utterance: &UtteranceScores<F, S>,
        sums: &UtteranceSums<F>,
        options: &Options,
        forces_blank: bool,
        WeightedOccupancies { occupancies, weight }: WeightedOccupancies,
        buffer: &mut &'a mut [F],
        underflow_buffer: &'a mut [f64],
    ) -> Self {
        let (frames, positions, contexts) =
            (utterance.frames.len(), utterance.labels.len(), utterance.contexts());
        let (joint_scale, lm_only_scale, am_only_scale) =
            (options.joint_scale(), options.lm_only_scale, options.am_only_scale);
        let token_weights = utterance.token_weights;
        let label_weights: Vec<f64> = (0..positions)
            .map(|u| -weight * (1.0 + options.fastemit) * token_weights.get(u).unwrap_or(&1.0))
            .collect();
        let mut zeros = |count| {
            let values = take_front(buffer, count);
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
        let mut underflow_index = 0;
        // Derivatives by the emissions of blank and next label, summed over all frames.
        let mut totals = vec![[0.0; 2]; positions];
        // Derivatives by the log-normalizers of a frame.
        let mut derivatives = vec![0.0; contexts];
        for (t, row) in occupancies.chunks_exact(2 * positions).enumerate() {
            let mut blank_sum = 0.0;
            for u in 0..positions {
                let label = label_weights[u] * row[2 * u + 1];
                let mut blank = -weight * row[2 * u];
                if forces_blank && u > 0 {
                    blank -= weight * row[2 * u - 1];
                }
                blank_sum += blank;
                totals[u][0] += blank;
                totals[u][1] += label;
                derivatives[u] = -joint_scale * (blank + label);
                out.frame_next[t * positions + u] = flush_tiny((joint_scale + am_only_scale) * label);
            }
            out.frame_blank[t] = flush_tiny((joint_scale + am_only_scale) * blank_sum);
            if contexts > positions {
                let label_sum: f64 =
                    label_weights.iter().zip(row.chunks_exact(2)).map(|(weight, o)| weight * o[1]).sum();
                derivatives[positions] = -am_only_scale * (blank_sum + label_sum);
                out.unigram_blank += am_only_scale * blank_sum;
            }
            let pairs = out.pairs[t * contexts..].iter_mut().zip(&sums.pair_sums[t * contexts..]);
            for ((out_pair, &pair_sum), &derivative) in pairs.zip(&derivatives) {
                match sums::is_underflow(pair_sum) {
                    true => {
                        out.underflow[underflow_index] = derivative;
                        underflow_index += 1;
                    }
                    false => *out_pair = flush_tiny(derivative / pair_sum),
                }
            }
        }
        for (u, [blank, label]) in totals.into_iter().enumerate() {
            out.label_blank[u] = flush_tiny((joint_scale + lm_only_scale) * blank);
            out.label_next[u] = flush_tiny((joint_scale + lm_only_scale) * label);
            out.label_sums[u] = flush_tiny(-lm_only_scale * (blank + label) / sums.label_sums[u]);
            out.unigram_next[u] = am_only_scale * label;
        }
        out
    }
}
