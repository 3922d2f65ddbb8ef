//! Pre-emphasis: what a sample is beside the one before it.

use serde::{Deserialize, Serialize};

use crate::real::Real;

/// What stands before the first sample in `y[n] = x[n] - a x[n-1]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Before {
    /// Nothing: `y[0] = x[0]`.
    #[default]
    Silence,
    /// The first sample itself: `y[0] = (1 - a) x[0]`.
    First,
    /// The first sample of each frame, which is emphasised by itself, as in Kaldi.
    Frame,
}

/// Emphasis of a signal, a gain included.
pub(super) struct Emphasis<F> {
    a: F,
    before: Before,
    gain: f64,
}

impl<F: Real> Emphasis<F> {
    /// Where frames are emphasised by themselves, this is only a gain.
    pub fn new(a: f32, before: Before, gain: f64) -> Self {
        let a = if before == Before::Frame { F::zero() } else { F::setting(a) };
        Self { a, before, gain }
    }

    /// What stands before sample `i`.
    pub fn before(&self, samples: &[f32], i: usize) -> f32 {
        match self.before {
            _ if i > 0 => samples[i - 1],
            Before::Silence => 0.0,
            Before::First | Before::Frame => samples.first().copied().unwrap_or(0.0),
        }
    }

    /// A sample and the one before it.
    pub fn of(&self, x: f32, before: f32) -> F {
        let [x, before] = [x, before].map(|x| F::of(f64::from(x)));
        F::of((x - self.a * before).wide() * self.gain)
    }
}

/// Emphasises a frame by itself.
pub(super) fn within<F: Real>(a: F, frame: &mut [F]) {
    for i in (1..frame.len()).rev() {
        frame[i] = frame[i] - a * frame[i - 1];
    }
    if let Some(first) = frame.first_mut() {
        *first = *first - a * *first;
    }
}
