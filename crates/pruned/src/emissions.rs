//! Log-probabilities of the arcs, and the way back from their adjoints.
//!
//! With λ = `lm_only_scale`, μ = `am_only_scale`, w = 1 - λ - μ, for a class c,
//!
//! ```text
//! e(t,u,c) = w (am[t,c] + lm[u,c] - logZ[t,u])
//!          + λ (lm[u,c] - log Σ_c' exp lm[u,c'])
//!          + μ (am[t,c] + log q[c] - log Σ_c' q[c'] exp am[t,c'])      with q the unigram
//! ```
use kernels::Real;
use rnnt_dp::delay;

use crate::{
    Options, Source,
    normaliser::Picks,
    sums::{self, UtteranceSums},
    tiles::part,
    utterance::UtteranceScores,
};

/// `scale · value`, and 0 rather than NaN for nothing of -inf.
fn share(scale: f64, value: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { scale * value }
}

/// Writes blank and next label of each site, *T x (U+1) x 2*; the label at u = U is 0. With the blank of its own frame, which
/// follows a label, where it is `forced`.
pub(crate) fn write<F: Real, S: Source<F>>(
    utterance: &UtteranceScores<F, S>,
    sums: &UtteranceSums<F>,
    picks: &Picks<F>,
    options: &Options,
    forced: bool,
    out: &mut [f64],
) {
    let (positions, contexts) = (utterance.labels.len(), utterance.contexts());
    let (joint, lm_only, am_only) = (options.joint_scale(), options.lm_only_scale, options.am_only_scale);
    let relative = |score: F, max: F| score.to_f64() - max.to_f64();
    // What depends on the position alone: [score less largest, share of the label scores alone], and of the unigram.
    let alone = |scores: &[F]| -> Vec<[f64; 2]> {
        let rows = scores.iter().zip(sums.label_max).zip(sums.label_sums);
        rows.map(|((&score, &max), sum)| {
            let score = relative(score, max);
            [score, share(lm_only, score - sum.ln())]
        })
        .collect()
    };
    let (blanks, nexts) = (alone(picks.label_blank), alone(picks.label_next));
    let unigram = |class: usize| utterance.unigram.map_or(0.0, |row| row.mass[class].to_f64().ln());
    let blank_unigram = unigram(utterance.blank);
    let next_unigram: Vec<f64> = utterance.next.iter().map(|&class| unigram(class as usize)).collect();

    let mut logs = vec![0.0; contexts];
    let rows = out.chunks_exact_mut(2 * positions).zip(sums.pairs.chunks_exact(contexts));
    for (t, (row, pairs)) in rows.enumerate() {
        logs.iter_mut().zip(pairs).for_each(|(log, &pair)| *log = sums::log(pair));
        let max = sums.frame_max[t];
        let alone = |score: f64, unigram: f64| share(am_only, score + unigram - logs[contexts - 1]);
        let blank = relative(picks.frame_blank[t], max);
        let blank_alone = alone(blank, blank_unigram);
        let early = delay(options.delay_penalty, t, utterance.frames.len());
        for (u, out) in row.chunks_exact_mut(2).enumerate() {
            let [score, alone_here] = blanks[u];
            out[0] = share(joint, blank + score - logs[u]) + alone_here + blank_alone;
            out[1] = 0.0;
            if u + 1 < positions {
                let next = relative(picks.frame_next[t * positions + u], max);
                let [score, alone_here] = nexts[u];
                let next_alone = alone(next, next_unigram[u]);
                out[1] = share(joint, next + score - logs[u]) + alone_here + next_alone + early;
            }
        }
        if forced {
            (0..positions - 1).for_each(|u| row[2 * u + 1] += row[2 * u + 2]);
        }
    }
}

/// Slopes so small that products with them would be denormal numbers, which take a hundred times as long, are 0.
fn narrow<F: Real>(slope: f64) -> F {
    if slope.abs() < F::TINY.to_f64() { F::ZERO } else { F::from_f64(slope) }
}

/// Slopes of the loss of an utterance by what emissions are made of.
pub(crate) struct Slopes<'a, F> {
    /// By the log-normalisers, divided by their sums of products, *T x K*; 0 where it is rare.
    pub pairs: &'a mut [F],
    /// By the log-normalisers of rare pairs, in their order.
    pub rare: &'a mut [f64],
    /// By `am[t, blank]`, *T*.
    pub frame_blank: &'a mut [F],
    /// By `am[t, next(u)]`, *T x (U+1)*.
    pub frame_next: &'a mut [F],
    /// By `lm[u, blank]`, *U+1*.
    pub label_blank: &'a mut [F],
    /// By `lm[u, next(u)]`, *U+1*.
    pub label_next: &'a mut [F],
    /// By `Σ_c L[u,c]` of the label scores alone, *U+1*.
    pub label_sums: &'a mut [F],
    /// By `log unigram[blank]`.
    pub unigram_blank: f64,
    /// By `log unigram[next(u)]`, *U+1*.
    pub unigram_next: Vec<f64>,
}

impl<'a, F: Real> Slopes<'a, F> {
    /// Numbers of an utterance, rare pairs left out.
    pub fn count([t, p, k]: [usize; 3]) -> usize {
        t * k + t + t * p + 3 * p
    }

    /// Rare pairs.
    pub fn rare(sums: &UtteranceSums<F>) -> usize {
        sums.pairs.iter().filter(|&&pair| sums::rare(pair)).count()
    }

    /// From the occupancies of the arcs, *T x (U+1) x 2*, of a loss with this weight.
    pub fn new<S: Source<F>>(
        utterance: &UtteranceScores<F, S>,
        sums: &UtteranceSums<F>,
        (options, forced): (&Options, bool),
        (occupancies, weight): (&[f64], f64),
        (room, of_rare): (&mut &'a mut [F], &'a mut [f64]),
    ) -> Self {
        let (frames, positions, contexts) =
            (utterance.frames.len(), utterance.labels.len(), utterance.contexts());
        let (joint, lm_only, am_only) = (options.joint_scale(), options.lm_only_scale, options.am_only_scale);
        let own = utterance.token_weights;
        let label_weights: Vec<f64> =
            (0..positions).map(|u| -weight * (1.0 + options.fastemit) * own.get(u).unwrap_or(&1.0)).collect();
        let mut zeros = |count| {
            let part = part(room, count);
            part.fill(F::ZERO);
            part
        };
        let mut out = Self {
            pairs: zeros(frames * contexts),
            rare: of_rare,
            frame_blank: zeros(frames),
            frame_next: zeros(frames * positions),
            label_blank: zeros(positions),
            label_next: zeros(positions),
            label_sums: zeros(positions),
            unigram_blank: 0.0,
            unigram_next: vec![0.0; positions],
        };
        let mut rare = 0;
        // Of blank and next label, over all frames.
        let mut totals = vec![[0.0; 2]; positions];
        let mut slopes = vec![0.0; contexts];
        for (t, row) in occupancies.chunks_exact(2 * positions).enumerate() {
            let mut blanks = 0.0;
            for u in 0..positions {
                let label = label_weights[u] * row[2 * u + 1];
                let mut blank = -weight * row[2 * u];
                if forced && u > 0 {
                    blank -= weight * row[2 * u - 1];
                }
                blanks += blank;
                totals[u][0] += blank;
                totals[u][1] += label;
                slopes[u] = -joint * (blank + label);
                out.frame_next[t * positions + u] = narrow((joint + am_only) * label);
            }
            out.frame_blank[t] = narrow((joint + am_only) * blanks);
            if contexts > positions {
                let labels: f64 =
                    label_weights.iter().zip(row.chunks_exact(2)).map(|(weight, o)| weight * o[1]).sum();
                slopes[positions] = -am_only * (blanks + labels);
                out.unigram_blank += am_only * blanks;
            }
            let pairs = out.pairs[t * contexts..].iter_mut().zip(&sums.pairs[t * contexts..]);
            for ((into, &sum), &slope) in pairs.zip(&slopes) {
                match sums::rare(sum) {
                    true => {
                        out.rare[rare] = slope;
                        rare += 1;
                    }
                    false => *into = narrow(slope / sum),
                }
            }
        }
        for (u, [blank, label]) in totals.into_iter().enumerate() {
            out.label_blank[u] = narrow((joint + lm_only) * blank);
            out.label_next[u] = narrow((joint + lm_only) * label);
            out.label_sums[u] = narrow(-lm_only * (blank + label) / sums.label_sums[u]);
            out.unigram_next[u] = am_only * label;
        }
        out
    }
}
