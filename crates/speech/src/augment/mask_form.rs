//! How wide a mask is and where it begins.

use std::ops::Range;

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use crate::fft_float::written;

/// How masks are drawn: in D bins, in T frames of an utterance, P of its padded batch; u is uniform in [0, 1).
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
/// Source: mlcommons/training (retired benchmark RNN-T) and NVIDIA's submission to v3.1; `floor` is this crate's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaskForm {
    /// Widths rounded down.
    #[default]
    Floor,
    /// That of MLPerf's reference.
    Reference,
    /// That of NVIDIA's submissions: inclusive at both ends, so that a width of 0 masks one.
    Nvidia,
}

impl MaskForm {
    /// What a mask of this form covers of `length` places.
    pub fn covered(self, start: usize, width: usize, length: usize) -> Range<usize> {
        let width = match self {
            MaskForm::Floor | MaskForm::Reference => width,
            MaskForm::Nvidia => width.saturating_add(1),
        };
        let end = start.saturating_add(width).min(length);
        start.min(end)..end
    }

    /// The largest width that is drawn.
    pub(super) fn max_time_width(self, share: f32, frames: usize) -> usize {
        let frames = frames as f64;
        let widest = match self {
            MaskForm::Floor => (f64::from(share) * frames).floor(),
            MaskForm::Reference => (written(share) * frames).round_ties_even(),
            // The largest integer below share T + 1.
            MaskForm::Nvidia => (written(share) * frames).ceil(),
        };
        widest.max(0.0) as usize
    }

    /// A mask over bins.
    pub(super) fn bins(self, bins: usize, widest: usize, rng: &mut (impl Rng + ?Sized)) -> Range<usize> {
        let width = rng.random_range(0..=widest.min(bins));
        let start = match self {
            MaskForm::Floor | MaskForm::Reference => rng.random_range(0..=bins - width),
            MaskForm::Nvidia => (rng.random::<f64>() * (bins - width) as f64).round() as usize,
        };
        self.covered(start, width, bins)
    }

    /// A mask over frames, given those of the utterance and those of its padded batch.
    pub(super) fn frames(
        self,
        (own, padded): (usize, usize),
        share: f32,
        rng: &mut (impl Rng + ?Sized),
    ) -> Range<usize> {
        let (width, start) = match self {
            MaskForm::Floor | MaskForm::Reference => {
                let width = rng.random_range(0..=self.max_time_width(share, own).min(padded));
                (width, rng.random_range(0..=padded - width))
            }
            MaskForm::Nvidia => {
                let width = (rng.random::<f64>() * (written(share) * own as f64 + 1.0)) as usize;
                let width = width.min(padded);
                (width, (rng.random::<f64>() * (padded - width + 1) as f64) as usize)
            }
        };
        self.covered(start, width, padded)
    }
}
