//! Logarithm of mel powers, with a reference level and a floor.
//!
//! Automatic gain control (AGC) is a reference level that follows the loudness of the signal.

use super::FeatureConfig;
use crate::fft_float::FftFloat;

/// The logarithm of mel powers.
#[derive(Clone, Copy)]
pub(super) enum LogCompression<F> {
    /// `ln(p / full + floor)`
    ///
    /// `full` is the largest power of the utterance, or that of a sine of amplitude 1.
    Relative { full: F, floor: F },
    /// `ln max(p, floor)`
    Absolute { floor: F },
}

/// The power that corresponds to 0 before the floor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ReferenceLevel {
    /// The largest power of the utterance.
    Loudest,
    /// The power of a sine of amplitude 1.
    Sine,
    /// 1
    One,
}

impl ReferenceLevel {
    pub fn new(config: &FeatureConfig) -> Self {
        match (config.floor_power > 0.0, config.normalize.needs_whole_utterance()) {
            (true, _) => ReferenceLevel::One,
            (false, true) => ReferenceLevel::Loudest,
            (false, false) => ReferenceLevel::Sine,
        }
    }
}

/// Largest gain of the automatic gain control in decibels: silence stays quiet.
const MAX_AGC_GAIN_DB: f64 = 30.0;

/// Returns the reference level of each frame.
///
/// It is the largest power within `radius` frames, but at most [`MAX_AGC_GAIN_DB`] below the
/// maximum.
pub(super) fn local_maxima<F: FftFloat>(data: &[F], dim: usize, radius: usize) -> Vec<F> {
    let loudest = |powers: &[F]| powers.iter().fold(F::zero(), |a, &p| if p > a { p } else { a });
    let frames: Vec<F> = data.chunks_exact(dim).map(loudest).collect();
    let minimum = loudest(&frames) * F::cast(10f64.powf(-MAX_AGC_GAIN_DB / 10.0));
    let window = |t: usize| &frames[t.saturating_sub(radius)..frames.len().min(t + radius + 1)];
    (0..frames.len())
        .map(|t| loudest(window(t)))
        .map(|full| if full > minimum { full } else { minimum })
        .collect()
}

impl<F: FftFloat> LogCompression<F> {
    /// A compression relative to `full`; `None` if that is 0, as for silence.
    pub fn relative(full: F, floor_db: f32) -> Option<Self> {
        let floor = 10f32.powf(-floor_db / 10.0);
        (full > F::zero()).then(|| Self::Relative { full, floor: F::cast(f64::from(floor)) })
    }

    /// Replaces powers by logarithms.
    pub fn apply(self, powers: &mut [F]) {
        match self {
            // Dividing first keeps very quiet signals away from f32's smallest numbers.
            LogCompression::Relative { full, floor } => {
                powers.iter_mut().for_each(|p| *p = (*p / full + floor).ln())
            }
            LogCompression::Absolute { floor } => powers.iter_mut().for_each(|p| {
                *p = if *p > floor { *p } else { floor }.ln();
            }),
        }
    }
}
