//! A little noise, so that digital silence is no special case.

use std::borrow::Cow;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::random::gaussians;

/// Seed of the noise that utterances get in evaluation, each the same.
const EVALUATION: u64 = 0x6469_7468_6572;

/// The generator of noise for whoever has none of his own.
pub(super) fn evaluation() -> ChaCha8Rng {
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
