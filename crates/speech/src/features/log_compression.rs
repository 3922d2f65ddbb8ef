//! From powers to logarithms: what they are compared with, and where their floor is.

use super::FeatureConfig;
use crate::fft_float::FftFloat;

/// The logarithm of a plane's powers.
#[derive(Clone, Copy)]
pub(super) enum LogCompression<F> {
    /// `ln(p / full + floor)`, full being the loudest power of the utterance, or that of a sine of amplitude 1.
    Relative { full: F, floor: F },
    /// `ln max(p, floor)`
    Absolute { floor: F },
}

/// What powers are compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ReferenceLevel {
    /// The loudest of the utterance.
    Loudest,
    /// A sine of amplitude 1.
    Sine,
    /// 1
    One,
}

impl ReferenceLevel {
    pub fn new(config: &FeatureConfig) -> Self {
        match (config.floor_power > 0.0, config.normalise.is_whole()) {
            (true, _) => ReferenceLevel::One,
            (false, true) => ReferenceLevel::Loudest,
            (false, false) => ReferenceLevel::Sine,
        }
    }
}

/// How far below the loudest power of the utterance that of a stretch may be that takes its place, in decibels: silence stays quiet.
const QUIETEST_DB: f64 = 30.0;

/// What each frame is compared with: the loudest of the frames within `reach` of it, and at least [`QUIETEST_DB`] below all of them.
pub(super) fn near<F: FftFloat>(data: &[F], dim: usize, reach: usize) -> Vec<F> {
    let loudest = |powers: &[F]| powers.iter().fold(F::zero(), |a, &p| if p > a { p } else { a });
    let frames: Vec<F> = data.chunks_exact(dim).map(loudest).collect();
    let least = loudest(&frames) * F::of(10f64.powf(-QUIETEST_DB / 10.0));
    let window = |t: usize| &frames[t.saturating_sub(reach)..frames.len().min(t + reach + 1)];
    (0..frames.len())
        .map(|t| loudest(window(t)))
        .map(|full| if full > least { full } else { least })
        .collect()
}

impl<F: FftFloat> LogCompression<F> {
    /// Powers are compared with `full`; none if that is 0, as in a silent utterance.
    pub fn relative(full: F, floor_db: f32) -> Option<Self> {
        let floor = 10f32.powf(-floor_db / 10.0);
        (full > F::zero()).then(|| Self::Relative { full, floor: F::of(f64::from(floor)) })
    }

    /// Powers become logarithms.
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
