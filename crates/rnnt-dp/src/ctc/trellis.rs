//! The states of an utterance at each of its frames, and both recursions over them.
use std::ops::Range;

use crate::{Error, Regularisers, Result, delay, log_add};

pub(super) struct Trellis<'a> {
    labels: &'a [u32],
    emissions: &'a [f64],
    regularisers: Regularisers,
    pub frames: usize,
}

impl<'a> Trellis<'a> {
    pub fn new(labels: &'a [u32], emissions: &'a [f64], regularisers: Regularisers) -> Result<Self> {
        let width = labels.len() + 1;
        let frames = emissions.len() / width;
        if frames * width != emissions.len() {
            let (expected, found) = (frames * width, emissions.len());
            return Err(Error::Length { argument: "emissions", expected, found });
        }
        if frames == 0 {
            return Err(Error::NoFrames { utterance: 0 });
        }
        if let Some(at) = emissions.iter().position(|e| e.is_nan() || *e == f64::INFINITY) {
            let (frame, label) = (at / width, at % width);
            return Err(Error::Emission { utterance: 0, frame, label, arc: 0, value: emissions[at] });
        }
        Ok(Self { labels, emissions, regularisers, frames })
    }

    pub fn states(&self) -> usize {
        2 * self.labels.len() + 1
    }

    /// The states in which an utterance may begin.
    pub fn first(&self) -> Range<usize> {
        0..self.states().min(2)
    }

    /// The states in which it may end.
    pub fn last(&self) -> Range<usize> {
        self.states().saturating_sub(2)..self.states()
    }

    /// Column of a state: 0 for blank, `j` for the `j`-th label.
    pub fn column(state: usize) -> usize {
        if state.is_multiple_of(2) { 0 } else { state.div_ceil(2) }
    }

    /// Whether a state may be entered from the second before it.
    fn skips(&self, s: usize) -> bool {
        s % 2 == 1 && s >= 3 && self.labels[s / 2] != self.labels[s / 2 - 1]
    }

    /// The states that may follow.
    pub fn next(&self, s: usize) -> impl Iterator<Item = usize> {
        let end = self.states();
        [Some(s), Some(s + 1), (s + 2 < end && self.skips(s + 2)).then_some(s + 2)]
            .into_iter()
            .flatten()
            .filter(move |&next| next < end)
    }

    /// The states that may come before, itself excepted.
    pub fn others_before(&self, s: usize) -> impl Iterator<Item = usize> {
        [s.checked_sub(1), self.skips(s).then(|| s - 2)].into_iter().flatten()
    }

    /// Emission of a state.
    pub fn at(&self, t: usize, s: usize) -> f64 {
        self.emissions[t * (self.labels.len() + 1) + Self::column(s)]
    }

    /// Emission of a state that was there before.
    fn stay(&self, t: usize, s: usize) -> f64 {
        self.at(t, s) - self.regularisers.sigma
    }

    /// Emission of a state that comes from another, or begins the utterance.
    pub fn enter(&self, t: usize, s: usize) -> f64 {
        match Self::column(s) {
            0 => self.stay(t, s),
            _ => self.stay(t, s) + delay(self.regularisers.delay_penalty, t, self.frames),
        }
    }

    /// Log-sums over what leads to a state, its own emission included, *T x states*.
    pub fn log_alpha(&self) -> Vec<f64> {
        let states = self.states();
        let mut alpha = vec![f64::NEG_INFINITY; self.frames * states];
        self.first().for_each(|s| alpha[s] = self.enter(0, s));
        for t in 1..self.frames {
            let (before, now) = alpha.split_at_mut(t * states);
            let before = &before[(t - 1) * states..];
            for (s, now) in now[..states].iter_mut().enumerate() {
                let others = self.others_before(s).fold(f64::NEG_INFINITY, |sum, s| log_add(sum, before[s]));
                *now = log_add(before[s] + self.stay(t, s), others + self.enter(t, s));
            }
        }
        alpha
    }

    /// Log-sums over what follows a state, its own emission left out, *T x states*.
    pub fn log_beta(&self) -> Vec<f64> {
        let states = self.states();
        let mut beta = vec![f64::NEG_INFINITY; self.frames * states];
        let end = (self.frames - 1) * states;
        self.last().for_each(|s| beta[end + s] = 0.0);
        for t in (0..self.frames - 1).rev() {
            let (now, after) = beta.split_at_mut((t + 1) * states);
            for (s, now) in now[t * states..].iter_mut().enumerate() {
                *now = self.next(s).fold(f64::NEG_INFINITY, |sum, next| {
                    let emission = if next == s { self.stay(t + 1, s) } else { self.enter(t + 1, next) };
                    log_add(sum, after[next] + emission)
                });
            }
        }
        beta
    }

    /// Log-probability of the labels.
    pub fn log_p(&self, alpha: &[f64]) -> Result<f64> {
        let end = (self.frames - 1) * self.states();
        let log_p = self.last().fold(f64::NEG_INFINITY, |sum, s| log_add(sum, alpha[end + s]));
        match log_p.is_nan() || log_p == f64::INFINITY {
            true => Err(Error::Overflow { utterance: 0, loss: -log_p }),
            false => Ok(log_p),
        }
    }
}
