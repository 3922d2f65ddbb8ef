//! Reference of the first pass: plain `f64` loops over classes and sites.

use oracle::{noise, paths::PathArc};
use pruned::{Batch, Options, Unigram};
use rnnt_dp::{Topology, TopologyKind};

/// A batch with padded scores.
///
/// `am` is *B x T x C*, `lm` *B x (U+1) x C*.
#[derive(Clone, Debug)]
pub struct Problem {
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
    let top = values.clone().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY { top } else { top + values.map(|v| (v - top).exp()).sum::<f64>().ln() }
}

fn scale_or_zero(scale: f64, value: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { scale * value }
}

impl Problem {
    /// Creates normally distributed scores, with additional padding on both sides.
    pub fn random(
        seed: u64,
        shapes: &[(usize, usize)],
        classes: usize,
        scale: f64,
        options: Options,
    ) -> Self {
        let blank = (seed % classes as u64) as u32;
        let max_frames = shapes.iter().map(|s| s.0).max().unwrap() + 1;
        let positions = shapes.iter().map(|s| s.1).max().unwrap() + 2;
        let labels = shapes.iter().enumerate();
        let labels = labels.map(|(b, s)| noise::labels(seed, 10 + b as u64, s.1, classes as u32, blank));
        let single = |v: Vec<f64>| v.into_iter().map(|v| f64::from(v as f32)).collect();
        Self {
            frames: shapes.iter().map(|s| s.0).collect(),
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

    pub fn batch(&self) -> Batch {
        let (frames, labels) = (self.frames.clone(), self.labels.clone());
        Batch::padded(self.blank, frames, labels, self.max_frames, self.positions).unwrap()
    }

    pub fn frame(&self, am: &[f64], b: usize, t: usize) -> std::ops::Range<usize> {
        let row = b * self.max_frames + t;
        assert!(row * self.classes < am.len());
        row * self.classes..(row + 1) * self.classes
    }

    fn label_row<'a>(&self, lm: &'a [f64], row: usize) -> &'a [f64] {
        &lm[row * self.classes..][..self.classes]
    }

    /// Returns the emissions `[T, U+1, 2]` of an utterance.
    pub fn emissions(&self, am: &[f64], lm: &[f64], b: usize) -> Vec<f64> {
        let (frames, labels, options) = (self.frames[b], &self.labels[b], &self.options);
        let first = b * self.positions;
        let rows: Vec<usize> = match options.unigram {
            Unigram::Utterance => (first..first + labels.len() + 1).collect(),
            Unigram::AllRows => (0..lm.len() / self.classes).collect(),
        };
        let mut unigram = vec![f64::MIN_POSITIVE; self.classes];
        if options.am_only_scale > 0.0 {
            for &row in &rows {
                let scores = self.label_row(lm, row);
                let total = log_sum(scores.iter().copied());
                unigram.iter_mut().zip(scores).for_each(|(u, s)| *u += (s - total).exp() / rows.len() as f64);
            }
        }
        let joint_scale = 1.0 - options.lm_only_scale - options.am_only_scale;
        let mut out = Vec::new();
        for t in 0..frames {
            let a = &am[self.frame(am, b, t)];
            let am_only = log_sum(a.iter().zip(&unigram).map(|(a, u)| a + u.ln()));
            for u in 0..=labels.len() {
                let l = self.label_row(lm, first + u);
                let joint = log_sum(a.iter().zip(l).map(|(a, l)| a + l));
                let lm_only = log_sum(l.iter().copied());
                let emission = |class: u32| {
                    let c = class as usize;
                    scale_or_zero(joint_scale, a[c] + l[c] - joint)
                        + scale_or_zero(options.lm_only_scale, l[c] - lm_only)
                        + scale_or_zero(options.am_only_scale, a[c] + unigram[c].ln() - am_only)
                };
                out.push(emission(self.blank));
                let delay = rnnt_dp::delay_shift(options.delay_penalty, t, frames);
                out.push(labels.get(u).map_or(0.0, |&label| emission(label) + delay));
            }
        }
        if options.topology == Topology::constrained() {
            for row in out.chunks_exact_mut(2 * (labels.len() + 1)) {
                (0..labels.len()).for_each(|u| row[2 * u + 1] += row[2 * u + 2]);
            }
        }
        out
    }

    pub fn arcs(&self) -> [PathArc; 2] {
        match self.options.topology.kind() {
            TopologyKind::Regular => oracle::paths::REGULAR_ARCS,
            _ => [
                PathArc { frames: 1, labels: 0, column: 0, may_end: true },
                PathArc { frames: 1, labels: 1, column: 1, may_end: true },
            ],
        }
    }

    /// Returns the loss of an utterance by the textbook recursion.
    pub fn loss(&self, am: &[f64], lm: &[f64], b: usize) -> f64 {
        let emissions = self.emissions(am, lm, b);
        let (frames, labels) = (self.frames[b], self.labels[b].len());
        let regular = self.options.topology == Topology::rnnt();
        // alpha[t][u], with an additional frame for the end.
        let mut alpha = vec![f64::NEG_INFINITY; (frames + 1) * (labels + 1)];
        alpha[0] = 0.0;
        let at = |t: usize, u: usize| t * (labels + 1) + u;
        for t in 0..frames {
            for u in 0..=labels {
                let from = alpha[at(t, u)];
                let [blank, label] = [0, 1].map(|column| from + emissions[2 * at(t, u) + column]);
                let mut add = |to: usize, score: f64| {
                    alpha[to] = oracle::reference::log_add(alpha[to], score);
                };
                add(at(t + 1, u), blank);
                if u < labels {
                    add(if regular { at(t, u + 1) } else { at(t + 1, u + 1) }, label);
                }
            }
        }
        -alpha[at(frames, labels)]
    }

    /// Returns `Σ_arcs adjoint · emission`, which has the gradient of the loss.
    pub fn surrogate(&self, am: &[f64], lm: &[f64], b: usize, adjoints: &[f64]) -> f64 {
        let emissions = self.emissions(am, lm, b);
        let used = adjoints.iter().zip(&emissions).filter(|(a, _)| **a != 0.0);
        used.map(|(a, e)| a * e).sum()
    }
}
