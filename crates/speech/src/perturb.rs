//! Speaker and speed perturbation (augmentation) by resampling log-mel features.

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use crate::features::preemphasis::gaussians;
use crate::features::setting_error;
use crate::{Features, MelScale, Normalization, Result};

/// Random resampling of features in time and frequency; disabled by default.
///
/// Each factor is drawn uniformly from `1 ± setting`, once per call:
/// * speed `r`: tempo and pitch together, as of a faster tape: `T / r` frames, and `f` hertz moves
///   to `r f`;
/// * tempo `r`: `T / r` frames, frequencies unchanged;
/// * warp `r`: as of a shorter vocal tract: `f` moves to `r f`, with a bend at the top so that the
///   axis keeps its ends; time unchanged.
///
/// The frequency map is computed in hertz with the mel scale of the features. Level changes are not
/// included because normalization would remove them (running normalization after a delay).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Perturbation {
    /// Range of the speed factor, such as 0.1.
    pub speed: f32,
    /// Range of the tempo factor.
    pub tempo: f32,
    /// Range of the warp factor.
    pub warp: f32,
    /// Standard deviation of Gaussian noise added to the normalized values.
    pub noise: f32,
}

/// Fraction of the axis below which a warp is linear.
const BEND_FRACTION: f64 = 0.85;

impl Perturbation {
    /// Checks the settings.
    ///
    /// # Errors
    /// `speed`, `tempo` or `warp` outside 0 to 0.5; `noise` outside 0 to 10.
    pub fn check(&self) -> Result<()> {
        for (field, value) in [("speed", self.speed), ("tempo", self.tempo), ("warp", self.warp)] {
            if !(0.0..=0.5).contains(&value) {
                return Err(setting_error(field, "0 to 0.5", value));
            }
        }
        if (0.0..=10.0).contains(&self.noise) {
            Ok(())
        } else {
            Err(setting_error("noise", "0 to 10", self.noise))
        }
    }

    /// Returns a resampled copy of features; deterministic for a generator state.
    ///
    /// `scale` is [`crate::FrontEnd::mel_scale`] of the front end, and `normalization` its setting:
    /// normalization by whole utterances is repeated; running statistics are resampled with the
    /// values. Values are interpolated linearly; beyond the ends the last value is repeated.
    ///
    /// # Shapes
    /// `[T, D]` to `[max(1, round(T / r)), D]`, r the product of the speed and tempo factors.
    ///
    /// # Panics
    /// If the features and the scale differ in the number of bins: frames must be stacked after
    /// this.
    ///
    /// Cost: O(T D).
    pub fn apply(
        &self,
        features: &Features,
        scale: &MelScale,
        normalization: Normalization,
        rng: &mut (impl Rng + ?Sized),
    ) -> Features {
        assert_eq!(
            features.dim,
            scale.bins(),
            "Perturbation::apply: features must have the bins of the scale and not be stacked"
        );
        let mut draw_factor = |range: f32| {
            let range = f64::from(range).clamp(0.0, 0.5);
            if range > 0.0 { rng.random_range(1.0 - range..=1.0 + range) } else { 1.0 }
        };
        let (speed, tempo, warp) = (draw_factor(self.speed), draw_factor(self.tempo), draw_factor(self.warp));
        let mut perturbed = if (speed, tempo, warp) == (1.0, 1.0, 1.0) {
            features.clone()
        } else {
            // The source bin of each bin.
            let columns: Vec<Interpolation> = (0..features.dim)
                .map(|m| {
                    let hz = unwarp(scale.hz(m as f64) / speed, warp, scale.high_hz());
                    Interpolation::new(scale.bin(hz), features.dim)
                })
                .collect();
            let mut perturbed = interpolate(features, speed * tempo, &columns);
            normalization.reapply(&mut perturbed);
            perturbed
        };
        if self.noise > 0.0 {
            perturbed.data.iter_mut().for_each(|x| *x += self.noise * gaussians(rng)[0] as f32);
        }
        perturbed
    }
}

/// Inverts a warp: returns the source frequency of `hz`.
///
/// It is `hz / warp` up to the bend, then linear to the upper end of the axis.
fn unwarp(hz: f64, warp: f64, high_hz: f64) -> f64 {
    // The bend before and after the warp, both within the axis.
    let source_bend = BEND_FRACTION * high_hz * warp.recip().min(1.0);
    let bend = source_bend * warp;
    if hz <= bend {
        hz / warp
    } else {
        source_bend + (hz - bend) * (high_hz - source_bend) / (high_hz - bend)
    }
}

/// A position between two grid points: `(1 - fraction) x[low] + fraction x[low + 1]`.
struct Interpolation {
    low: usize,
    fraction: f32,
}

impl Interpolation {
    fn new(position: f64, points: usize) -> Self {
        let position = position.clamp(0.0, (points - 1) as f64);
        let low = (position as usize).min(points.saturating_sub(2));
        Self { low, fraction: (position - low as f64) as f32 }
    }

    fn apply(&self, row: &[f32]) -> f32 {
        let high = row[(self.low + 1).min(row.len() - 1)];
        row[self.low] + self.fraction * (high - row[self.low])
    }
}

/// Interpolates bilinearly: `T / rate` frames, each at the given columns.
fn interpolate(features: &Features, rate: f64, columns: &[Interpolation]) -> Features {
    let (old_frames, dim) = (features.frames, features.dim);
    if old_frames == 0 {
        return features.clone();
    }
    let frames = ((old_frames as f64 / rate).round() as usize).max(1);
    let mut data = Vec::with_capacity(frames * dim);
    let mut row = vec![0f32; dim];
    for t in 0..frames {
        // Frame centers map to frame centers.
        let position =
            Interpolation::new((t as f64 + 0.5) * old_frames as f64 / frames as f64 - 0.5, old_frames);
        let (low_frame, high_frame) =
            (features.frame(position.low), features.frame((position.low + 1).min(old_frames - 1)));
        row.iter_mut()
            .zip(low_frame.iter().zip(high_frame))
            .for_each(|(x, (low, high))| *x = low + position.fraction * (high - low));
        data.extend(columns.iter().map(|column| column.apply(&row)));
    }
    Features { frames, dim, data }
}
