//! Reproducible random streams of a training run; initial weights.
//!
//! A stream is selected by seed, purpose and two counters. It does not depend on the numbers drawn
//! before, so that a resumed run has the same numbers. Initial weights and dropout masks use the
//! streams here; crate `training` uses them for the order and the augmentation of utterances. Each
//! parameter has a separate stream, so that a new parameter does not change the others.
use candle_core::Shape;
use candle_nn::Init;
use candle_nn::init::NormalOrUniform;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The purpose of a random stream; streams of different purposes are independent.
///
/// The numbers select the streams: another number would change the results of a seed. New purposes
/// take the next number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Initial weights; the counter is a hash of the parameter's name.
    Weights = 1,
    /// Order of the batches of an epoch.
    BatchOrder = 2,
    /// Augmentation of an utterance in an epoch.
    Augment = 3,
    /// Dropout masks of an utterance in an epoch.
    Dropout = 4,
    /// Selection of the utterances that are concatenated.
    Concatenation = 5,
    /// Augmentation of the audio of an utterance in an epoch.
    AudioAugmentation = 6,
    /// Dither of an utterance in an epoch.
    Dither = 7,
    /// Seeds of dropout in the joint network in an epoch.
    Joint = 8,
}

/// Returns the random stream of a purpose and two counters.
///
/// The counters are, for example, epoch and utterance; unused ones are 0.
pub fn stream(seed: u64, purpose: Purpose, counter1: u64, counter2: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    let words = [seed, purpose as u64, counter1, counter2];
    for (bytes, word) in key.chunks_exact_mut(size_of::<u64>()).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Initial value of the 64-bit FNV-1a hash.
const FNV_OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
/// Factor of the 64-bit FNV-1a hash.
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// Returns the FNV-1a hash of a name, the same on all platforms.
pub fn hash_name(name: &str) -> u64 {
    name.bytes().fold(FNV_OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

/// Returns the uniform distribution within ±1/√inputs.
///
/// This is the usual one for a linear layer and, with the state width, for an LSTM.
pub fn uniform(inputs: usize) -> Init {
    let limit = 1.0 / (inputs as f64).sqrt();
    Init::Uniform { lo: -limit, up: limit }
}

/// Returns the initial values of the parameter `name` with this shape.
pub fn initial_values(init: Init, seed: u64, name: &str, shape: &Shape) -> Vec<f32> {
    let mut rng = stream(seed, Purpose::Weights, hash_name(name), 0);
    let count = shape.elem_count();
    let mut uniform = |lo: f64, up: f64| -> Vec<f32> {
        (0..count).map(|_| (lo + (up - lo) * f64::from(rng.random::<f32>())) as f32).collect()
    };
    match init {
        Init::Const(value) => vec![value as f32; count],
        Init::Uniform { lo, up } => uniform(lo, up),
        Init::Randn { mean, stdev } => (0..count).map(|_| (mean + stdev * normal(&mut rng)) as f32).collect(),
        Init::Kaiming { dist, fan, non_linearity } => {
            let stdev = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            match dist {
                NormalOrUniform::Normal => (0..count).map(|_| (stdev * normal(&mut rng)) as f32).collect(),
                NormalOrUniform::Uniform => uniform(-3f64.sqrt() * stdev, 3f64.sqrt() * stdev),
            }
        }
    }
}

/// Returns one standard normal number, by Box and Muller's transform.
fn normal(rng: &mut impl rand::Rng) -> f64 {
    let (radius_draw, angle_draw) = (rng.random::<f64>(), rng.random::<f64>());
    (-2.0 * (1.0 - radius_draw).ln()).sqrt() * (std::f64::consts::TAU * angle_draw).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_distribution_and_separate_streams() {
        let shape = Shape::from((100, 100));
        let draw = |init, name: &str| initial_values(init, 7, name, &shape);
        let moments = |values: &[f32]| {
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
            let square = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / values.len() as f64;
            (mean, (square - mean * mean).sqrt())
        };
        // Deviations: (up - lo)/√12, as given, gain/√fan twice.
        for (init, mean, deviation) in [
            (Init::Uniform { lo: 1.0, up: 3.0 }, 2.0, 2.0 / 12f64.sqrt()),
            (Init::Randn { mean: -1.0, stdev: 0.5 }, -1.0, 0.5),
            (candle_nn::init::DEFAULT_KAIMING_UNIFORM, 0.0, 2f64.sqrt() / 10.0),
            (candle_nn::init::DEFAULT_KAIMING_NORMAL, 0.0, 2f64.sqrt() / 10.0),
            (uniform(100), 0.0, 0.2 / 12f64.sqrt()),
        ] {
            let (found_mean, found_deviation) = moments(&draw(init, "w"));
            assert!((found_mean - mean).abs() < 0.03 * (1.0 + mean.abs()), "{init:?}: {found_mean}");
            assert!((found_deviation / deviation - 1.0).abs() < 0.03, "{init:?}: {found_deviation}");
            assert_eq!(draw(init, "w"), draw(init, "w"));
            assert_ne!(draw(init, "w"), draw(init, "v"));
        }
        assert!(draw(Init::Const(1.5), "b").iter().all(|&x| x == 1.5));
    }
}
