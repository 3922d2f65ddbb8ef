//! Dropout after the activation of a transducer's joint network, without stored masks.
//!
//! ```text
//! key(b, t, u) = mix(mix(mix(seed) + b) + t 2^32 + u)
//! word(k / 8)  = mix(key + k / 8)
//! unit k is dropped if byte k % 8 of its word is below 256 rate
//! other units are multiplied by 1 / (1 - rate)
//! ```
//!
//! b, t, u: utterance, frame, label position; k: hidden unit. The mask is a function of (seed,
//! site, unit), so that forward and backward compute the same mask in any order and for any
//! blocking. `mix` is that of SplitMix64 (Steele, Lea and Flood 2014).
use panda_core::Real;
use rnnt_dp::Site;

use crate::{Error, Result};

/// Dropout of the hidden units of the joint network, as in MLPerf.
///
/// It takes no memory. The mask of a site depends on the seed, the id of its utterance
/// ([`Targets::with_ids`](crate::Targets::with_ids); default: the index in the batch), its frame
/// and its label position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Share of dropped units, from 0 to below 1; rounded to a multiple of 1/256.
    pub rate: f64,
    /// Seed of the masks; use a different one for each step.
    pub seed: u64,
}

/// Values of a unit's random byte; a rate is a multiple of the inverse.
const BYTE_VALUES: u16 = 256;
/// Units whose mask is in one word: one byte each.
const UNITS_PER_WORD: usize = 8;
/// Words of the mask that are computed together.
const WORDS_PER_BLOCK: usize = 8;
/// Units whose mask is computed together.
const UNITS_PER_BLOCK: usize = UNITS_PER_WORD * WORDS_PER_BLOCK;

/// Parameters of the masks of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DropoutMask {
    seed: u64,
    /// Units with a byte below it are dropped.
    threshold: u8,
    /// Factor of the other units.
    scale: f64,
}

impl Dropout {
    /// Parameters of the masks; none if no unit is dropped.
    pub(crate) fn mask(self) -> Result<Option<DropoutMask>> {
        if !(0.0..1.0).contains(&self.rate) {
            return Err(Error::Dropout { found: self.rate });
        }
        let threshold = (self.rate * f64::from(BYTE_VALUES)).round().min(255.0) as u8;
        let scale = f64::from(BYTE_VALUES) / f64::from(BYTE_VALUES - u16::from(threshold));
        Ok((threshold > 0).then_some(DropoutMask { seed: self.seed, threshold, scale }))
    }
}

impl DropoutMask {
    /// Factor of the remaining units.
    pub(crate) fn scale(&self) -> f64 {
        self.scale
    }

    /// Key of the mask of a site.
    pub(crate) fn key(&self, utterance: u64, site: Site) -> u64 {
        // The seed is mixed first, so that consecutive seeds do not share masks.
        let utterance_key = mix(mix(self.seed).wrapping_add(utterance));
        mix(utterance_key.wrapping_add((site.frame as u64) << 32).wrapping_add(site.label as u64))
    }

    /// Drops or scales the values of a site's units.
    pub(crate) fn apply<F: Real>(&self, key: u64, values: &mut [F]) {
        let scale = F::from_f64(self.scale);
        // Bytes first, so that comparisons and products are vectorized.
        let mut bytes = [0; UNITS_PER_BLOCK];
        for (block, values) in values.chunks_mut(UNITS_PER_BLOCK).enumerate() {
            for (word, bytes) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
                *bytes = mix(key.wrapping_add((WORDS_PER_BLOCK * block + word) as u64)).to_le_bytes();
            }
            for (value, &byte) in values.iter_mut().zip(&bytes) {
                *value *= if byte >= self.threshold { scale } else { F::ZERO };
            }
        }
    }
}

/// Mixes a state into a random number (SplitMix64).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropout_has_its_rate_and_preserves_the_mean() {
        for rate in [0.1, 0.25, 0.5, 0.9] {
            let mask = Dropout { rate, seed: 3 }.mask().unwrap().unwrap();
            let (mut dropped, mut sum, count) = (0, 0.0, 500 * 203);
            for site in 0..500 {
                let mut row = [1.0f64; 203];
                mask.apply(mask.key(1, Site { frame: site, label: site % 7 }), &mut row);
                assert!(row.iter().all(|&x| x == 0.0 || x == mask.scale()));
                dropped += row.iter().filter(|x| **x == 0.0).count();
                sum += row.iter().sum::<f64>();
            }
            let share = dropped as f64 / f64::from(count);
            let expected = (rate * 256.0).round() / 256.0;
            // Five standard deviations.
            let tolerance = 5.0 * (expected * (1.0 - expected) / f64::from(count)).sqrt();
            assert!((share - expected).abs() < tolerance, "{rate}: {share}");
            assert!((sum / f64::from(count) - 1.0).abs() < tolerance / (1.0 - expected));
        }
    }

    #[test]
    fn masks_differ_between_sites_utterances_and_seeds() {
        let row = |seed, utterance, frame, label| {
            let mask = Dropout { rate: 0.5, seed }.mask().unwrap().unwrap();
            let mut row = [1.0f32; 64];
            mask.apply(mask.key(utterance, Site { frame, label }), &mut row);
            row
        };
        let reference = row(1, 0, 5, 2);
        assert_eq!(reference, row(1, 0, 5, 2));
        for other in [row(2, 0, 5, 2), row(1, 1, 5, 2), row(1, 0, 2, 5), row(1, 0, 5, 3), row(0, 1, 5, 2)] {
            let same = reference.iter().zip(other).filter(|(a, b)| **a == *b).count();
            assert!((12..52).contains(&same), "{same} of 64 alike");
        }
    }

    #[test]
    fn units_use_the_byte_of_their_index() {
        let mask = Dropout { rate: 0.3, seed: 11 }.mask().unwrap().unwrap();
        for count in [1, 8, 63, 64, 65, 517] {
            let mut row = vec![1.0f64; count];
            mask.apply(77, &mut row);
            for (k, value) in row.into_iter().enumerate() {
                let byte = mix(77 + k as u64 / 8).to_le_bytes()[k % 8];
                assert_eq!(value, if byte >= mask.threshold { mask.scale() } else { 0.0 }, "{k} of {count}");
            }
        }
    }

    #[test]
    fn invalid_rates_are_errors() {
        for rate in [-0.1, 1.0, f64::NAN] {
            assert!(matches!(Dropout { rate, seed: 0 }.mask(), Err(Error::Dropout { .. })));
        }
        assert!(Dropout { rate: 0.0, seed: 0 }.mask().unwrap().is_none());
        assert!(Dropout { rate: 0.001, seed: 0 }.mask().unwrap().is_none());
    }
}
