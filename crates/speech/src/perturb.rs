//! Other speakers and speeds from the same recording, by resampling its log-mel plane.

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use crate::features::samples::gaussians;
use crate::features::setting;
use crate::{Features, MelScale, Normalization, Result};

/// Random resampling of a plane in time and frequency; the default changes nothing.
///
/// Each factor is drawn uniformly from `1 ± setting`, once per call:
/// * speed `r`: tempo and pitch together, as a tape that runs faster: `T / r` frames, and what was at `f` hertz goes to `r f`;
/// * tempo `r`: `T / r` frames, frequencies kept;
/// * warp `r`: as a shorter vocal tract: `f` goes to `r f`, bending at the top so that the axis keeps its ends; time kept.
///
/// The frequency map is drawn in hertz through the true mel scale. Level changes would be undone by the normalisation (where it is
/// running, the sooner the longer the sound is) and are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Perturbation {
    /// Range of the speed factor, such as 0.1.
    pub speed: f32,
    /// Range of the tempo factor.
    pub tempo: f32,
    /// Range of the warp factor.
    pub warp: f32,
    /// Deviation of Gaussian noise added to the normalised values.
    pub noise: f32,
}

/// Part of the axis below which a warp is a plain stretch.
const BEND: f64 = 0.85;

impl Perturbation {
    /// Checks the settings.
    ///
    /// # Errors
    /// `speed`, `tempo` or `warp` outside 0 to 0.5; `noise` outside 0 to 10.
    pub fn check(&self) -> Result<()> {
        for (field, value) in [("speed", self.speed), ("tempo", self.tempo), ("warp", self.warp)] {
            if !(0.0..=0.5).contains(&value) {
                return Err(setting(field, "0 to 0.5", value));
            }
        }
        if (0.0..=10.0).contains(&self.noise) { Ok(()) } else { Err(setting("noise", "0 to 10", self.noise)) }
    }

    /// A resampled copy of a plane; the same generator state gives the same copy.
    ///
    /// `scale` is [`crate::FrontEnd::mel_scale`] of the front end that made the plane, and `normalise` its setting: what is normalised
    /// by whole utterances is so again; running means and deviations move with what they belong to. Values between the grid points
    /// are interpolated linearly; beyond the ends the last value is held.
    ///
    /// # Shapes
    /// `[T, D]` to `[max(1, round(T / r)), D]`, r the product of the speed and tempo factors.
    ///
    /// # Panics
    /// If the plane has another number of bins than the scale: frames are stacked after this, not before.
    ///
    /// Cost: O(T D).
    pub fn apply(
        &self,
        features: &Features,
        scale: &MelScale,
        normalise: Normalization,
        rng: &mut (impl Rng + ?Sized),
    ) -> Features {
        assert_eq!(
            features.dim,
            scale.bins(),
            "Perturbation::apply: a plane of the scale's bins, not a stacked one"
        );
        let mut factor = |range: f32| {
            let range = f64::from(range).clamp(0.0, 0.5);
            if range > 0.0 { rng.random_range(1.0 - range..=1.0 + range) } else { 1.0 }
        };
        let (speed, tempo, warp) = (factor(self.speed), factor(self.tempo), factor(self.warp));
        let mut plane = if (speed, tempo, warp) == (1.0, 1.0, 1.0) {
            features.clone()
        } else {
            let columns: Vec<Interpolation> = (0..features.dim)
                .map(|m| {
                    let hz = unbend(scale.hz(m as f64) / speed, warp, scale.high_hz());
                    Interpolation::new(scale.bin(hz), features.dim)
                })
                .collect();
            let mut plane = resample(features, speed * tempo, &columns);
            normalise.again(&mut plane);
            plane
        };
        if self.noise > 0.0 {
            plane.data.iter_mut().for_each(|x| *x += self.noise * gaussians(rng)[0] as f32);
        }
        plane
    }
}

/// Where the content at `hz` comes from under a warp: `hz / warp` up to the bend, then a line to the upper end of the axis.
fn unbend(hz: f64, warp: f64, high: f64) -> f64 {
    // The bend lies at `source` before the warp and at `bend` after it, both within the axis.
    let source = BEND * high * warp.recip().min(1.0);
    let bend = source * warp;
    if hz <= bend { hz / warp } else { source + (hz - bend) * (high - source) / (high - bend) }
}

/// A place between two grid points: `(1 - part) x[low] + part x[low + 1]`.
struct Interpolation {
    low: usize,
    part: f32,
}

impl Interpolation {
    fn new(place: f64, points: usize) -> Self {
        let place = place.clamp(0.0, (points - 1) as f64);
        let low = (place as usize).min(points.saturating_sub(2));
        Self { low, part: (place - low as f64) as f32 }
    }

    fn of(&self, row: &[f32]) -> f32 {
        let high = row[(self.low + 1).min(row.len() - 1)];
        row[self.low] + self.part * (high - row[self.low])
    }
}

/// Bilinear interpolation: `T / rate` frames, the given places in each.
fn resample(features: &Features, rate: f64, columns: &[Interpolation]) -> Features {
    let (before, dim) = (features.frames, features.dim);
    if before == 0 {
        return features.clone();
    }
    let frames = ((before as f64 / rate).round() as usize).max(1);
    let mut data = Vec::with_capacity(frames * dim);
    let mut row = vec![0f32; dim];
    for t in 0..frames {
        // Frame centres map to frame centres.
        let place = Interpolation::new((t as f64 + 0.5) * before as f64 / frames as f64 - 0.5, before);
        let (a, b) = (features.frame(place.low), features.frame((place.low + 1).min(before - 1)));
        row.iter_mut().zip(a.iter().zip(b)).for_each(|(x, (a, b))| *x = a + place.part * (b - a));
        data.extend(columns.iter().map(|c| c.of(&row)));
    }
    Features { frames, dim, data }
}
