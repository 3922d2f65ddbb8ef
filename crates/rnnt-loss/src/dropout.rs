//! Dropout after the joint's activation, with a mask that is never kept.
//!
//! ```text
//! key(b, t, u) = mix(mix(mix(seed) + b) + t 2^32 + u)      word(k / 8) = mix(key + k / 8)
//! unit k is dropped if byte k % 8 of its word is below 256 rate; the others are multiplied by 1 / (1 - rate)
//! ```
//!
//! A counter names each bit, so that forward and backward make the same mask again from (seed, site, unit), in any order and
//! for any cut of the work. `mix` is SplitMix64's (Steele, Lea and Flood 2014).
use panda_core::Real;
use rnnt_dp::Site;

use crate::{Error, Result};

/// Dropout of the joint's hidden units in one step of training (MLPerf's place for it).
///
/// Memory: none; a site's mask depends on the seed, its utterance's place in the batch or its name ([`Targets::with_ids`](crate::Targets::with_ids)),
/// its frame and its label position alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Share of units that become 0, from 0 to below 1; rounded to a multiple of 1/256.
    pub rate: f64,
    /// Names the mask; another one for each step.
    pub seed: u64,
}

/// Words of the mask that are made at once.
const WORDS: usize = 8;

/// A rate, ready to be applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DropoutMask {
    seed: u64,
    threshold: u8,
    scale: f64,
}

impl Dropout {
    /// None if nothing is dropped.
    pub(crate) fn mask(self) -> Result<Option<DropoutMask>> {
        if !(0.0..1.0).contains(&self.rate) {
            return Err(Error::Dropout { found: self.rate });
        }
        let threshold = (self.rate * 256.0).round().min(255.0) as u8;
        let scale = 256.0 / f64::from(256 - u16::from(threshold));
        Ok((threshold > 0).then_some(DropoutMask { seed: self.seed, threshold, scale }))
    }
}

impl DropoutMask {
    /// By how much what is left grows.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// What names the mask of a site.
    pub fn key(&self, utterance: u64, site: Site) -> u64 {
        // Mixed before the utterance comes in: seeds that follow each other must not share masks.
        let utterance = mix(mix(self.seed).wrapping_add(utterance));
        mix(utterance.wrapping_add((site.frame as u64) << 32).wrapping_add(site.label as u64))
    }

    /// Drops or scales the values of units.
    pub fn apply<F: Real>(&self, key: u64, values: &mut [F]) {
        let scale = F::from_f64(self.scale);
        // Bytes first: comparisons and products of many values then share instructions.
        let mut bytes = [0; 8 * WORDS];
        for (block, values) in values.chunks_mut(8 * WORDS).enumerate() {
            for (word, bytes) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
                *bytes = mix(key.wrapping_add((WORDS * block + word) as u64)).to_le_bytes();
            }
            for (value, &byte) in values.iter_mut().zip(&bytes) {
                *value *= if byte >= self.threshold { scale } else { F::ZERO };
            }
        }
    }
}

fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_dropped_as_asked_for_and_the_mean_stays() {
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
            let want = (rate * 256.0).round() / 256.0;
            // Five standard deviations.
            let bar = 5.0 * (want * (1.0 - want) / f64::from(count)).sqrt();
            assert!((share - want).abs() < bar, "{rate}: {share}");
            assert!((sum / f64::from(count) - 1.0).abs() < bar / (1.0 - want));
        }
    }

    #[test]
    fn sites_utterances_and_seeds_have_masks_of_their_own() {
        let row = |seed, utterance, frame, label| {
            let mask = Dropout { rate: 0.5, seed }.mask().unwrap().unwrap();
            let mut row = [1.0f32; 64];
            mask.apply(mask.key(utterance, Site { frame, label }), &mut row);
            row
        };
        let one = row(1, 0, 5, 2);
        assert_eq!(one, row(1, 0, 5, 2));
        for other in [row(2, 0, 5, 2), row(1, 1, 5, 2), row(1, 0, 2, 5), row(1, 0, 5, 3), row(0, 1, 5, 2)] {
            let same = one.iter().zip(other).filter(|(a, b)| **a == *b).count();
            assert!((12..52).contains(&same), "{same} of 64 alike");
        }
    }

    #[test]
    fn every_unit_has_the_byte_that_its_number_names() {
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
    fn rates_that_are_none_are_named() {
        for rate in [-0.1, 1.0, f64::NAN] {
            assert!(matches!(Dropout { rate, seed: 0 }.mask(), Err(Error::Dropout { .. })));
        }
        assert!(Dropout { rate: 0.0, seed: 0 }.mask().unwrap().is_none());
        assert!(Dropout { rate: 0.001, seed: 0 }.mask().unwrap().is_none());
    }
}
