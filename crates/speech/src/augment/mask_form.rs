//! SpecAugment: random widths and positions of the masks over features.

use std::ops::Range;

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use crate::feature_float::exact_decimal;

/// The distribution of masks.
///
/// D is the number of bins, T the frames of an utterance, P those of its padded batch; u is uniform
/// in [0, 1).
///
/// | | `floor` | `reference` | `nvidia` |
/// |---|---|---|---|
/// | largest bin width F | `freq_width` | the same | the same |
/// | bin width w | integer in `0..=min(F, D)` | the same | the same |
/// | first bin | integer in `0..=D-w` | the same | `round(u (D - w))` |
/// | frame width w | integer in `0..=floor(time_width T)` | integer in `0..=round(time_width T)`, ties to even | `floor(u (time_width T + 1))` |
/// | first frame | integer in `0..=P-w` | the same, 0 where w > P | `floor(u (P - w + 1))` |
/// | masked | w | w | w + 1, cut at the end |
///
/// `nemo` has the widths of `floor`, but at least one frame, with the first bin in
/// `0..=max(D - F, 0)` and the first frame in `0..=max(T - W, 1)`, W the largest frame width.
///
/// Source: mlcommons/training (retired benchmark RNN-T) and NVIDIA's submission to v3.1; `floor` is
/// specific to this crate, and `nemo` follows NeMo's `SpecAugment` with a fraction as `time_width`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaskForm {
    /// Widths are rounded down.
    #[default]
    Floor,
    /// MLPerf's reference.
    Reference,
    /// NVIDIA's submissions: inclusive at both ends, so that a width of 0 masks one.
    Nvidia,
    /// NeMo: positions do not depend on the width, so that masks at the end are shorter or rarer.
    Nemo,
}

impl MaskForm {
    /// Returns the masked range of a mask, clipped to `length`.
    pub fn masked_range(self, start: usize, width: usize, length: usize) -> Range<usize> {
        let width = match self {
            MaskForm::Floor | MaskForm::Reference | MaskForm::Nemo => width,
            MaskForm::Nvidia => width.saturating_add(1),
        };
        let end = start.saturating_add(width).min(length);
        start.min(end)..end
    }

    /// Returns the largest width of a time mask.
    pub(super) fn max_time_width(self, fraction: f32, frames: usize) -> usize {
        let frames = frames as f64;
        let max_width = match self {
            MaskForm::Floor => (f64::from(fraction) * frames).floor(),
            MaskForm::Reference => (exact_decimal(fraction) * frames).round_ties_even(),
            // The largest integer below fraction T + 1.
            MaskForm::Nvidia => (exact_decimal(fraction) * frames).ceil(),
            MaskForm::Nemo => (exact_decimal(fraction) * frames).floor().max(1.0),
        };
        max_width.max(0.0) as usize
    }

    /// Draws a mask over bins.
    pub(super) fn draw_bins(
        self,
        bins: usize,
        max_width: usize,
        rng: &mut (impl Rng + ?Sized),
    ) -> Range<usize> {
        let width = rng.random_range(0..=max_width.min(bins));
        let start = match self {
            MaskForm::Floor | MaskForm::Reference => rng.random_range(0..=bins - width),
            MaskForm::Nvidia => (rng.random::<f64>() * (bins - width) as f64).round() as usize,
            MaskForm::Nemo => rng.random_range(0..=bins.saturating_sub(max_width)),
        };
        self.masked_range(start, width, bins)
    }

    /// Draws a mask over the `padded` frames of a batch.
    ///
    /// The utterance has `frames` frames.
    pub(super) fn draw_frames(
        self,
        frames: usize,
        padded: usize,
        fraction: f32,
        rng: &mut (impl Rng + ?Sized),
    ) -> Range<usize> {
        let (width, start) = match self {
            MaskForm::Floor | MaskForm::Reference => {
                let width = rng.random_range(0..=self.max_time_width(fraction, frames).min(padded));
                (width, rng.random_range(0..=padded - width))
            }
            MaskForm::Nemo => {
                let max_width = self.max_time_width(fraction, frames);
                let start = rng.random_range(0..=frames.saturating_sub(max_width).max(1));
                (rng.random_range(0..=max_width), start)
            }
            MaskForm::Nvidia => {
                let width = (rng.random::<f64>() * (exact_decimal(fraction) * frames as f64 + 1.0)) as usize;
                let width = width.min(padded);
                (width, (rng.random::<f64>() * (padded - width + 1) as f64) as usize)
            }
        };
        self.masked_range(start, width, padded)
    }
}
