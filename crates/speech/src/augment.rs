//! Random masks over log-mel features (SpecAugment, Park et al. 2019).
//!
//! There is no time warp; the width of time masks is a fraction of the utterance.
//!
//! ```
//! use rand::SeedableRng;
//! use rand_chacha::ChaCha8Rng;
//! use speech::{Features, MaskForm, SpecAugment};
//!
//! // MLPerf's settings, which mask about 14 % of the frames.
//! let masks = SpecAugment {
//!     freq_masks: 2,
//!     freq_width: 20,
//!     time_masks: 10,
//!     time_width: 0.03,
//!     form: MaskForm::Reference,
//!     ..SpecAugment::default()
//! };
//! assert_eq!(masks.max_time_width(500), 15);
//! let mut features = Features { frames: 500, dim: 80, data: vec![1.0; 500 * 80] };
//! masks.apply(&mut features, &mut ChaCha8Rng::seed_from_u64(1));
//! assert!(features.data.contains(&0.0) && features.data.contains(&1.0));
//! ```

mod mask_form;

use std::ops::Range;

use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::features::setting_error;
use crate::{Features, Result};

pub use mask_form::MaskForm;

/// Largest number of masks of a kind.
const MAX_MASKS: usize = 1000;

/// Settings of random masks; the default masks nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpecAugment {
    /// Number of masks over consecutive bins.
    pub freq_masks: usize,
    /// Largest width of such a mask, in bins; a width is uniform in `0..=freq_width`.
    pub freq_width: usize,
    /// Number of masks over consecutive frames.
    pub time_masks: usize,
    /// Largest width of such a mask, as a fraction of the utterance; see [`MaskForm`].
    pub time_width: f32,
    /// The distribution of widths and positions.
    #[serde(skip_serializing_if = "is_default")]
    pub form: MaskForm,
    /// The value of masked features.
    #[serde(skip_serializing_if = "is_default")]
    pub fill: MaskFill,
}

/// The value of masked features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaskFill {
    /// 0, the mean of normalized features.
    #[default]
    Zero,
    /// The mean of all features before masking, if they are not normalized.
    Mean,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl SpecAugment {
    /// Checks the settings.
    ///
    /// # Errors
    /// `time_width` outside 0 to 1, more than 1000 masks.
    pub fn check(&self) -> Result<()> {
        for (field, masks) in [("freq_masks", self.freq_masks), ("time_masks", self.time_masks)] {
            if masks > MAX_MASKS {
                return Err(setting_error(field, "0 to 1000", masks));
            }
        }
        if (0.0..=1.0).contains(&self.time_width) {
            Ok(())
        } else {
            Err(setting_error("time_width", "0 to 1", self.time_width))
        }
    }

    /// Returns the largest width of a time mask in an utterance.
    pub fn max_time_width(&self, frames: usize) -> usize {
        self.form.max_time_width(self.time_width, frames)
    }

    /// Masks features `[T, D]` in place; deterministic for a generator state.
    ///
    /// Masks begin within the frames of the utterance, so that they depend on the generator and the
    /// utterance only, not on its batch. (MLPerf's programs draw over the padded batch: see
    /// [`SpecAugment::draw_masks`].) Widths are clipped to the features.
    ///
    /// Cost: O(masked values), and O(T D) for a mean.
    pub fn apply(&self, features: &mut Features, rng: &mut (impl Rng + ?Sized)) {
        let masks = self.draw_masks((features.frames, features.dim), features.frames, rng);
        let value = match self.fill {
            MaskFill::Zero => 0.0,
            MaskFill::Mean => mean(&features.data),
        };
        masks.apply(features, value);
    }

    /// Draws the masks of an utterance of `(frames, bins)`.
    ///
    /// Time masks begin within the `padded` frames of its batch. All masks are drawn before any is
    /// applied.
    pub fn draw_masks(&self, shape: (usize, usize), padded: usize, rng: &mut (impl Rng + ?Sized)) -> Masks {
        let (frames, bins) = shape;
        let draw_bins = |_| self.form.draw_bins(bins, self.freq_width, rng);
        let bins = (0..self.freq_masks).map(draw_bins).collect();
        let draw_frames = |_| self.form.draw_frames(frames, padded, self.time_width, rng);
        Masks { bins, frames: (0..self.time_masks).map(draw_frames).collect() }
    }
}

fn mean(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|&x| f64::from(x)).sum();
    (sum / values.len().max(1) as f64) as f32
}

/// The masked bins and frames; ranges may overlap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Masks {
    /// Ranges of bins.
    pub bins: Vec<Range<usize>>,
    /// Ranges of frames, which may exceed the utterance.
    pub frames: Vec<Range<usize>>,
}

impl Masks {
    /// Sets masked features to `value`; ranges are clipped to the features.
    ///
    /// Cost: O(masked values).
    pub fn apply(&self, features: &mut Features, value: f32) {
        let (frames, dim) = (features.frames, features.dim);
        let clip_to = |range: &Range<usize>, length: usize| {
            let end = range.end.min(length);
            range.start.min(end)..end
        };
        for range in self.bins.iter().map(|range| clip_to(range, dim)) {
            for row in features.data.chunks_exact_mut(dim.max(1)) {
                row[range.clone()].fill(value);
            }
        }
        for range in self.frames.iter().map(|range| clip_to(range, frames)) {
            features.data[range.start * dim..range.end * dim].fill(value);
        }
    }
}
