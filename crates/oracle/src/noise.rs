//! Seeded random numbers for tests: equal (seed, purpose) pairs give equal values.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Returns `count` standard normal numbers times `scale`.
pub fn normal(seed: u64, purpose: u64, count: usize, scale: f64) -> Vec<f64> {
    let mut rng = generator(seed, purpose);
    (0..count)
        .map(|_| {
            // The transform of Box and Muller; 1 - x keeps the logarithm away from zero.
            let (a, b) = (uniform(&mut rng), uniform(&mut rng));
            scale * (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()
        })
        .collect()
}

/// Returns `count` integers below `below`.
///
/// # Panics
/// If `below` is zero.
pub fn integers(seed: u64, purpose: u64, count: usize, below: u32) -> Vec<u32> {
    assert!(below > 0, "`below`: expected at least 1, found 0");
    let mut rng = generator(seed, purpose);
    (0..count).map(|_| (rng.next_u64() % u64::from(below)) as u32).collect()
}

/// Returns `count` label ids below `classes` other than the blank.
///
/// # Panics
/// If the blank is the only class.
pub fn labels(seed: u64, purpose: u64, count: usize, classes: u32, blank: u32) -> Vec<u32> {
    integers(seed, purpose, count, classes - 1).into_iter().map(|id| id + u32::from(id >= blank)).collect()
}

/// Generator of the numbers for a purpose.
fn generator(seed: u64, purpose: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(purpose);
    rng
}

/// A uniform number in [0, 1) with 53 random bits.
fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
