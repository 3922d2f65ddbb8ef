//! Random streams that are found by name, not by order: a run can start anywhere and see the same numbers.
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// What a stream of random numbers is for; streams of different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// First weights; the counter is a hash of the parameter's name.
    Weights = 1,
    /// Order of the batches of an epoch.
    Order = 2,
    /// Augmentation of an utterance in an epoch.
    Augment = 3,
    /// Dropout masks of an utterance in an epoch.
    Dropout = 4,
    /// Which utterances are joined.
    Join = 5,
    /// Changes to the sound of an utterance in an epoch.
    Wave = 6,
    /// Dither of an utterance in an epoch.
    Dither = 7,
    /// Seeds of dropout in the joint in an epoch.
    Joint = 8,
}

/// The stream of `(seed, purpose, a, b)`; each quadruple has its own.
pub fn stream(seed: u64, purpose: Purpose, a: u64, b: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip([seed, purpose as u64, a, b]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// FNV-1a over the bytes of a name: stable over platforms and versions.
pub fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
