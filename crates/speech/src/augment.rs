//! Masks over a log-mel plane (SpecAugment, Park et al. 2019, without the time warp), as wide as a share of the utterance.
//!
//! ```
//! use rand::SeedableRng;
//! use rand_chacha::ChaCha8Rng;
//! use speech::{Features, MaskForm, SpecAugment};
//!
//! // MLPerf's, of which about 14 % of the frames are masked.
//! let masks = SpecAugment {
//!     freq_masks: 2,
//!     freq_width: 20,
//!     time_masks: 10,
//!     time_width: 0.03,
//!     form: MaskForm::Reference,
//!     ..SpecAugment::default()
//! };
//! assert_eq!(masks.max_time_width(500), 15);
//! let mut plane = Features { frames: 500, dim: 80, data: vec![1.0; 500 * 80] };
//! masks.apply(&mut plane, &mut ChaCha8Rng::seed_from_u64(1));
//! assert!(plane.data.contains(&0.0) && plane.data.contains(&1.0));
//! ```

mod mask_form;

use std::ops::Range;

use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::features::setting;
use crate::{Features, Result};

pub use mask_form::MaskForm;

/// Most masks of a kind.
const MOST: usize = 1000;

/// Random masks; the default masks nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpecAugment {
    /// Number of masks over neighbouring bins.
    pub freq_masks: usize,
    /// Widest such mask, in bins; a width is uniform in `0..=freq_width`.
    pub freq_width: usize,
    /// Number of masks over neighbouring frames.
    pub time_masks: usize,
    /// Widest such mask, as a part of the utterance's own frames: see [`MaskForm`].
    pub time_width: f32,
    /// How widths and places are drawn.
    #[serde(skip_serializing_if = "is_default")]
    pub form: MaskForm,
    /// What masked values become.
    #[serde(skip_serializing_if = "is_default")]
    pub fill: MaskFill,
}

/// What masked values become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaskFill {
    /// 0, the mean of a normalised plane.
    #[default]
    Zero,
    /// The mean of all values of the plane before: for planes that are not normalised.
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

    /// The largest width of a time mask that is drawn in an utterance of so many frames.
    pub fn max_time_width(&self, frames: usize) -> usize {
        self.form.max_time_width(self.time_width, frames)
    }

    /// Masks a plane `[T, D]` in place; the same generator state gives the same masks.
    ///
    /// Masks begin anywhere within the utterance's own frames, so that they are a function of the generator and of the utterance, not
    /// of its batch. (MLPerf's programs draw over the padded batch: see [`SpecAugment::masks`].)
    ///
    /// Widths are cut to the plane. Cost: O(masked values), and O(T D) for a mean.
    pub fn apply(&self, features: &mut Features, rng: &mut (impl Rng + ?Sized)) {
        let masks = self.masks((features.frames, features.dim), features.frames, rng);
        let value = match self.fill {
            MaskFill::Zero => 0.0,
            MaskFill::Mean => mean(&features.data),
        };
        masks.apply(features, value);
    }

    /// The masks of an utterance of `(frames, bins)` in a batch that is padded to `padded` frames, over which time masks begin; all of
    /// them are drawn before any is applied.
    pub fn masks(&self, plane: (usize, usize), padded: usize, rng: &mut (impl Rng + ?Sized)) -> Masks {
        let (frames, bins) = plane;
        let bin = |_| self.form.bins(bins, self.freq_width, rng);
        let bins = (0..self.freq_masks).map(bin).collect();
        let frame = |_| self.form.frames((frames, padded), self.time_width, rng);
        Masks { bins, frames: (0..self.time_masks).map(frame).collect() }
    }
}

fn mean(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|&x| f64::from(x)).sum();
    (sum / values.len().max(1) as f64) as f32
}

/// Which bins and frames of a plane are masked; they may overlap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Masks {
    /// Stretches of bins.
    pub bins: Vec<Range<usize>>,
    /// Stretches of frames, which may lie beyond the utterance's own.
    pub frames: Vec<Range<usize>>,
}

impl Masks {
    /// Overwrites what is masked; stretches beyond the plane are cut.
    ///
    /// Cost: O(masked values).
    pub fn apply(&self, features: &mut Features, value: f32) {
        let (frames, dim) = (features.frames, features.dim);
        let cut = |stretch: &Range<usize>, most: usize| {
            let end = stretch.end.min(most);
            stretch.start.min(end)..end
        };
        for stretch in self.bins.iter().map(|stretch| cut(stretch, dim)) {
            for row in features.data.chunks_exact_mut(dim.max(1)) {
                row[stretch.clone()].fill(value);
            }
        }
        for stretch in self.frames.iter().map(|stretch| cut(stretch, frames)) {
            features.data[stretch.start * dim..stretch.end * dim].fill(value);
        }
    }
}
