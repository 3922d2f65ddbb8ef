//! Masks over a normalised log-mel plane (SpecAugment, Park et al. 2019, without the time warp).

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use crate::features::setting;
use crate::{Features, Result};

/// Most masks of a kind.
const MOST: usize = 1000;

/// Random masks; the default masks nothing.
///
/// A masked value becomes 0, the mean of a normalised plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpecAugment {
    /// Number of masks over neighbouring bins.
    pub freq_masks: usize,
    /// Widest such mask, in bins; a width is uniform in `0..=freq_width`.
    pub freq_width: usize,
    /// Number of masks over neighbouring frames.
    pub time_masks: usize,
    /// Widest such mask, as a part of the utterance's frames; a width is uniform in `0..=floor(time_width T)`.
    pub time_width: f32,
}

impl SpecAugment {
    /// Checks the settings.
    ///
    /// # Errors
    /// `time_width` outside 0 to 1, more than 1000 masks.
    pub fn check(&self) -> Result<()> {
        for (field, masks) in [("freq_masks", self.freq_masks), ("time_masks", self.time_masks)] {
            if masks > MOST {
                return Err(setting(field, "0 to 1000", masks));
            }
        }
        if (0.0..=1.0).contains(&self.time_width) {
            Ok(())
        } else {
            Err(setting("time_width", "0 to 1", self.time_width))
        }
    }

    /// Masks a plane `[T, D]` in place; the same generator state gives the same masks.
    ///
    /// Widths are cut to the plane. Cost: O(masked values).
    pub fn apply(&self, features: &mut Features, rng: &mut (impl Rng + ?Sized)) {
        let (frames, dim) = (features.frames, features.dim);
        for _ in 0..self.freq_masks {
            let (first, last) = stretch(dim, self.freq_width, rng);
            for row in features.data.chunks_exact_mut(dim.max(1)) {
                row[first..last].fill(0.0);
            }
        }
        let widest = (f64::from(self.time_width) * frames as f64).floor().max(0.0) as usize;
        for _ in 0..self.time_masks {
            let (first, last) = stretch(frames, widest, rng);
            features.data[first * dim..last * dim].fill(0.0);
        }
    }
}

/// A random stretch of at most `widest` places within `0..length`.
fn stretch(length: usize, widest: usize, rng: &mut (impl Rng + ?Sized)) -> (usize, usize) {
    let width = rng.random_range(0..=widest.min(length));
    let first = rng.random_range(0..=length - width);
    (first, first + width)
}
