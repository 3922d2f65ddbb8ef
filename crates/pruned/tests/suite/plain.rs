//! Reference of the pruned first pass for its tests: plain `f64` loops over all sites.

use oracle::{noise, paths::PathArc};
use pruned::{Batch, Options, Unigram};
use rnnt_dp::{Topology, TopologyKind};

/// A batch with padded scores.
///
/// `am` is *B x T x C*, `lm` *B x (U+1) x C*.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub frames: Vec<usize>,
    pub labels: Vec<Vec<u32>>,
    pub blank: u32,
    pub classes: usize,
    pub max_frames: usize,
    pub positions: usize,
    pub am: Vec<f64>,
    pub lm: Vec<f64>,
    pub options: Options,
}

fn log_sum(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let max = values.clone().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY { max } else { max + values.map(|v| (v - max).exp()).sum::<f64>().ln() }
}

fn scale_or_zero(scale: f64, value: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { scale * value }
}

impl Problem {
    /// Creates normally distributed scores, with additional padding on both sides.
    pub(crate) fn random(
        seed: u64,
        shapes: &[(usize, usize)],
        classes: usize,
        scale: f64,
        options: Options,
    ) -> Self {
        let blank = (seed % classes as u64) as u32;
        let max_frames = shapes.iter().map(|&(frames, _)| frames).max().unwrap() + 1;
        let positions = shapes.iter().map(|&(_, labels)| labels).max().unwrap() + 2;
        let labels = shapes
            .iter()
            .enumerate()
            .map(|(b, &(_, labels))| noise::labels(seed, 10 + b as u64, labels, classes as u32, blank));
        let single = |v: Vec<f64>| v.into_iter().map(|v| f64::from(v as f32)).collect();
        Self {
            frames: shapes.iter().map(|&(frames, _)| frames).collect(),
            labels: labels.collect(),
            blank,
            classes,
            max_frames,
            positions,
            am: single(noise::normal(seed, 1, shapes.len() * max_frames * classes, scale)),
            lm: single(noise::normal(seed, 2, shapes.len() * positions * classes, scale)),
            options,
        }
    }

    /// Returns the labels and shapes.
    pub(crate) fn batch(&self) -> Batch {
        let (frames, labels) = (self.frames.clone(), self.labels.clone());
        Batch::padded(self.blank, frames, labels, self.max_frames, self.positions).unwrap()
    }

    /// Returns the indices of the scores of a frame.
    pub(crate) fn frame(&self, am: &[f64], b: usize, t: usize) -> std::ops::Range<usize> {
        let row = b * self.max_frames + t;
        assert!(row * self.classes < am.len());
        row * self.classes..(row + 1) * self.classes
    }

    /// Returns the scores of a row of `lm`.
    fn label_row<'a>(&self, lm: &'a [f64], row: usize) -> &'a [f64] {
        &lm[row * self.classes..][..self.classes]
    }

    /// Returns the emissions `[T, U+1, 2]` of an utterance.
    pub(crate) fn emissions(&self, am: &[f64], lm: &[f64], b: usize) -> Vec<f64> {
        let (frames, labels, options) = (self.frames[b], &self.labels[b], &self.options);
        let first_row = b * self.positions;
        let unigram_rows: Vec<usize> = match options.unigram {
            Unigram::Utterance => (first_row..first_row + labels.len() + 1).collect(),
            Unigram::AllRows => (0..lm.len() / self.classes).collect(),
        };
        let mut unigram = vec![f64::MIN_POSITIVE; self.classes];
        if options.am_only_scale > 0.0 {
            for &row in &unigram_rows {
                let scores = self.label_row(lm, row);
                let total = log_sum(scores.iter().copied());
                unigram
                    .iter_mut()
                    .zip(scores)
                    .for_each(|(u, s)| *u += (s - total).exp() / unigram_rows.len() as f64);
            }
        }
        let joint_scale = 1.0 - options.lm_only_scale - options.am_only_scale;
        let mut emissions = Vec::new();
        for t in 0..frames {
            let frame_scores = &am[self.frame(am, b, t)];
            let am_only_norm = log_sum(frame_scores.iter().zip(&unigram).map(|(a, u)| a + u.ln()));
            for u in 0..=labels.len() {
                let label_scores = self.label_row(lm, first_row + u);
                let joint_norm = log_sum(frame_scores.iter().zip(label_scores).map(|(a, l)| a + l));
                let lm_only_norm = log_sum(label_scores.iter().copied());
                let emission = |class: u32| {
                    let c = class as usize;
                    scale_or_zero(joint_scale, frame_scores[c] + label_scores[c] - joint_norm)
                        + scale_or_zero(options.lm_only_scale, label_scores[c] - lm_only_norm)
                        + scale_or_zero(
                            options.am_only_scale,
                            frame_scores[c] + unigram[c].ln() - am_only_norm,
                        )
                };
                emissions.push(emission(self.blank));
                let delay = rnnt_dp::delay_shift(options.delay_penalty, t, frames);
                emissions.push(labels.get(u).map_or(0.0, |&label| emission(label) + delay));
            }
        }
        if options.topology == Topology::constrained() {
            for row in emissions.chunks_exact_mut(2 * (labels.len() + 1)) {
                (0..labels.len()).for_each(|u| row[2 * u + 1] += row[2 * u + 2]);
            }
        }
        emissions
    }

    /// Returns the arcs of a site, with one emission each.
    pub(crate) fn arcs(&self) -> [PathArc; 2] {
        match self.options.topology.kind() {
            TopologyKind::Regular => oracle::paths::REGULAR_ARCS,
            _ => [
                PathArc { frames: 1, labels: 0, column: 0, may_end: true },
                PathArc { frames: 1, labels: 1, column: 1, may_end: true },
            ],
        }
    }

    /// Returns the loss of an utterance by the textbook recursion.
    pub(crate) fn loss(&self, am: &[f64], lm: &[f64], b: usize) -> f64 {
        let emissions = self.emissions(am, lm, b);
        let (frames, labels) = (self.frames[b], self.labels[b].len());
        let regular = self.options.topology == Topology::rnnt();
        // alpha[t][u], with an additional frame for the end.
        let mut alpha = vec![f64::NEG_INFINITY; (frames + 1) * (labels + 1)];
        alpha[0] = 0.0;
        let site = |t: usize, u: usize| t * (labels + 1) + u;
        for t in 0..frames {
            for u in 0..=labels {
                let weight = alpha[site(t, u)];
                let [blank, label] = [0, 1].map(|column| weight + emissions[2 * site(t, u) + column]);
                let mut add_to = |target: usize, score: f64| {
                    alpha[target] = oracle::reference::log_add(alpha[target], score);
                };
                add_to(site(t + 1, u), blank);
                if u < labels {
                    add_to(if regular { site(t, u + 1) } else { site(t + 1, u + 1) }, label);
                }
            }
        }
        -alpha[site(frames, labels)]
    }

    /// Returns `Σ_arcs adjoint · emission`, which has the gradient of the loss.
    pub(crate) fn surrogate(&self, am: &[f64], lm: &[f64], b: usize, adjoints: &[f64]) -> f64 {
        let emissions = self.emissions(am, lm, b);
        let used = adjoints.iter().zip(&emissions).filter(|(a, _)| **a != 0.0);
        used.map(|(a, e)| a * e).sum()
    }
}
