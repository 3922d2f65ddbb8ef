//! Dither and pre-emphasis of audio, the first steps of log-mel features.

use std::borrow::Cow;
use std::f64::consts::TAU;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::feature_float::FeatureFloat;

/// The sample before the first one in `y[n] = x[n] - a x[n-1]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitialSample {
    /// Zero: `y[0] = x[0]`.
    #[default]
    Silence,
    /// The first sample: `y[0] = (1 - a) x[0]`.
    First,
    /// The first sample of each frame, emphasized separately, as in Kaldi.
    Frame,
}

/// Pre-emphasis and gain of a signal.
pub(super) struct Preemphasis<F> {
    /// Coefficient of `y[n] = x[n] - a x[n-1]`.
    a: F,
    initial: InitialSample,
    gain: f64,
}

impl<F: FeatureFloat> Preemphasis<F> {
    /// If each frame is emphasized separately, this is only a gain.
    pub(super) fn new(a: f32, initial: InitialSample, gain: f64) -> Self {
        let a = if initial == InitialSample::Frame { F::zero() } else { F::from_setting(a) };
        Self { a, initial, gain }
    }

    /// Returns the sample before sample `i`.
    pub(super) fn predecessor(&self, samples: &[f32], i: usize) -> f32 {
        match self.initial {
            _ if i > 0 => samples[i - 1],
            InitialSample::Silence => 0.0,
            InitialSample::First | InitialSample::Frame => samples.first().copied().unwrap_or(0.0),
        }
    }

    /// Emphasizes a sample, given the one before it.
    pub(super) fn apply(&self, x: f32, predecessor: f32) -> F {
        let [x, predecessor] = [x, predecessor].map(|x| F::cast(f64::from(x)));
        F::cast((x - self.a * predecessor).to_f64() * self.gain)
    }

    /// Emphasizes consecutive samples, given the one before them.
    pub(super) fn apply_to_slice(&self, samples: &[f32], predecessor: f32) -> impl Iterator<Item = F> {
        let predecessors = std::iter::once(predecessor).chain(samples.iter().copied());
        samples.iter().zip(predecessors).map(|(&x, predecessor)| self.apply(x, predecessor))
    }
}

/// Pre-emphasizes a frame separately, as in Kaldi.
pub(super) fn preemphasize_frame<F: FeatureFloat>(a: F, frame: &mut [F]) {
    for i in (1..frame.len()).rev() {
        frame[i] = frame[i] - a * frame[i - 1];
    }
    if let Some(first) = frame.first_mut() {
        *first = *first - a * *first;
    }
}

/// Seed of the dither in evaluation, the same for each utterance.
const EVALUATION_SEED: u64 = 0x6469_7468_6572;

/// Returns the generator of the dither in evaluation.
pub(super) fn evaluation_rng() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(EVALUATION_SEED)
}

/// Adds noise: `x[n] + amount g[n]`, g independent and standard normal.
pub(super) fn dither<'a>(samples: &'a [f32], amount: f32, rng: &mut (impl Rng + ?Sized)) -> Cow<'a, [f32]> {
    if amount == 0.0 {
        return Cow::Borrowed(samples);
    }
    let mut noisy = samples.to_vec();
    for pair in noisy.chunks_mut(2) {
        for (x, noise) in pair.iter_mut().zip(gaussians(rng)) {
            *x = (f64::from(*x) + f64::from(amount) * noise) as f32;
        }
    }
    Cow::Owned(noisy)
}

/// Draws two independent standard normal numbers (Box and Muller 1958).
pub(crate) fn gaussians(rng: &mut (impl Rng + ?Sized)) -> [f64; 2] {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    let (sin, cos) = (TAU * rng.random::<f64>()).sin_cos();
    [radius * cos, radius * sin]
}
