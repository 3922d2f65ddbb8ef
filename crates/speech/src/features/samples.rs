//! Operations on samples before they are framed: dither and pre-emphasis.

use std::borrow::Cow;
use std::f64::consts::TAU;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::fft_float::FftFloat;

/// What stands before the first sample in `y[n] = x[n] - a x[n-1]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitialSample {
    /// Nothing: `y[0] = x[0]`.
    #[default]
    Silence,
    /// The first sample itself: `y[0] = (1 - a) x[0]`.
    First,
    /// The first sample of each frame, which is emphasized by itself, as in Kaldi.
    Frame,
}

/// Emphasis of a signal, a gain included.
pub(super) struct Emphasis<F> {
    a: F,
    before: InitialSample,
    gain: f64,
}

impl<F: FftFloat> Emphasis<F> {
    /// Where frames are emphasized by themselves, this is only a gain.
    pub fn new(a: f32, before: InitialSample, gain: f64) -> Self {
        let a = if before == InitialSample::Frame { F::zero() } else { F::setting(a) };
        Self { a, before, gain }
    }

    /// What stands before sample `i`.
    pub fn before(&self, samples: &[f32], i: usize) -> f32 {
        match self.before {
            _ if i > 0 => samples[i - 1],
            InitialSample::Silence => 0.0,
            InitialSample::First | InitialSample::Frame => samples.first().copied().unwrap_or(0.0),
        }
    }

    /// A sample and the one before it.
    pub fn of(&self, x: f32, before: f32) -> F {
        let [x, before] = [x, before].map(|x| F::of(f64::from(x)));
        F::of((x - self.a * before).wide() * self.gain)
    }
}

/// Emphasises a frame by itself.
pub(super) fn within<F: FftFloat>(a: F, frame: &mut [F]) {
    for i in (1..frame.len()).rev() {
        frame[i] = frame[i] - a * frame[i - 1];
    }
    if let Some(first) = frame.first_mut() {
        *first = *first - a * *first;
    }
}

/// Seed of the noise that utterances get in evaluation, each the same.
const EVALUATION: u64 = 0x6469_7468_6572;

/// The generator of the noise of evaluation.
pub(super) fn evaluation_rng() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(EVALUATION)
}

/// `x[n] + amount g[n]`, g independent and standard normal.
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

/// Two independent standard normal numbers (Box and Muller 1958).
pub(crate) fn gaussians(rng: &mut (impl Rng + ?Sized)) -> [f64; 2] {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    let (sin, cos) = (TAU * rng.random::<f64>()).sin_cos();
    [radius * cos, radius * sin]
}
