//! Logarithms of mel powers, relative to a reference level, with a floor.
//!
//! Automatic gain control (AGC) is a reference level that follows the loudness of the signal.

use super::FeatureConfig;
use crate::feature_float::FeatureFloat;

/// The logarithm of mel powers.
#[derive(Clone, Copy)]
pub(super) enum LogCompression<F> {
    /// `ln(p / reference + floor)`
    ///
    /// `reference` is the largest power of the utterance, or that of a sine of amplitude 1.
    RelativeToReference { reference: F, floor: F },
    /// `ln max(p, floor)`
    WithMinimum { floor: F },
    /// `ln(p + guard)`
    WithGuard { guard: F },
}

/// The power that corresponds to 0 before the floor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ReferenceLevel {
    /// The largest power of the utterance.
    LargestPower,
    /// The power of a sine of amplitude 1.
    FullScaleSine,
    /// 1
    One,
}

impl ReferenceLevel {
    pub(super) fn new(config: &FeatureConfig) -> Self {
        match (config.is_floor_absolute(), config.normalize.needs_whole_utterance()) {
            (true, _) => ReferenceLevel::One,
            (false, true) => ReferenceLevel::LargestPower,
            (false, false) => ReferenceLevel::FullScaleSine,
        }
    }
}

/// Largest gain of the automatic gain control in decibels: silence stays quiet.
const MAX_AGC_GAIN_DB: f64 = 30.0;

/// Returns the reference level of each frame.
///
/// It is the largest power within `radius` frames, but at most [`MAX_AGC_GAIN_DB`] below the
/// maximum.
pub(super) fn local_reference_levels<F: FeatureFloat>(data: &[F], dim: usize, radius: usize) -> Vec<F> {
    let loudest =
        |powers: &[F]| powers.iter().fold(F::zero(), |maximum, &p| if p > maximum { p } else { maximum });
    let frame_maxima: Vec<F> = data.chunks_exact(dim).map(loudest).collect();
    let minimum = loudest(&frame_maxima) * F::cast(10f64.powf(-MAX_AGC_GAIN_DB / 10.0));
    let powers_around =
        |t: usize| &frame_maxima[t.saturating_sub(radius)..frame_maxima.len().min(t + radius + 1)];
    (0..frame_maxima.len())
        .map(|t| loudest(powers_around(t)))
        .map(|maximum| if maximum > minimum { maximum } else { minimum })
        .collect()
}

impl<F: FeatureFloat> LogCompression<F> {
    /// A compression relative to `reference`; `None` if that is 0, as for silence.
    pub(super) fn relative(reference: F, floor_db: f32) -> Option<Self> {
        let floor = 10f32.powf(-floor_db / 10.0);
        (reference > F::zero())
            .then(|| Self::RelativeToReference { reference, floor: F::cast(f64::from(floor)) })
    }

    /// Replaces powers by logarithms.
    pub(super) fn apply(self, powers: &mut [F]) {
        match self {
            // Dividing first keeps very quiet signals away from f32's smallest numbers.
            LogCompression::RelativeToReference { reference, floor } => {
                powers.iter_mut().for_each(|p| *p = (*p / reference + floor).ln())
            }
            LogCompression::WithMinimum { floor } => powers.iter_mut().for_each(|p| {
                *p = if *p > floor { *p } else { floor }.ln();
            }),
            LogCompression::WithGuard { guard } => powers.iter_mut().for_each(|p| *p = (*p + guard).ln()),
        }
    }
}
