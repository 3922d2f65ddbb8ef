//! NeMo's features in `f64`, with the constants of a model.
//!
//! NeMo's answers in `f64` use these constants, which it computes in `f32`.
use std::collections::BTreeMap;
use std::f64::consts::TAU;

use crate::case::StoredTensor;

const FFT_LEN: usize = 512;
const BINS: usize = FFT_LEN / 2 + 1;
const HOP_LEN: usize = 160;
const PREEMPHASIS: f64 = 0.97;
/// Added to each mel power before the logarithm, 2^-24.
const LOG_GUARD: f64 = 1.0 / 16_777_216.0;
/// Added to each deviation.
const DEVIATION_GUARD: f64 = 1e-5;
/// Values of 16-bit samples per unit of amplitude.
const INT16_SCALE: f64 = 32_768.0;

/// The constants of a model's front end.
pub(super) struct ExactFrontEnd<'a> {
    window: &'a [f64],
    /// `[F, BINS]`
    filters: &'a [f64],
    is_normalized: bool,
    /// Sine and cosine of `2 π i / FFT_LEN`.
    angles: Vec<(f64, f64)>,
}

impl<'a> ExactFrontEnd<'a> {
    /// Takes window and filters from the weights of a case.
    pub(super) fn new(weights: &'a BTreeMap<String, StoredTensor>, is_normalized: bool) -> Option<Self> {
        let window = &weights.get("preprocessor.featurizer.window")?.values;
        let filters = &weights.get("preprocessor.featurizer.fb")?.values;
        let angles = (0..FFT_LEN).map(|i| (TAU * i as f64 / FFT_LEN as f64).sin_cos()).collect();
        Some(ExactFrontEnd { window, filters, is_normalized, angles })
    }

    /// Computes the features of 16-bit samples, `[T, F]`.
    pub(super) fn features(&self, samples: &[f64]) -> Vec<f64> {
        let emphasized: Vec<f64> = (0..samples.len())
            .map(|i| {
                let previous = if i == 0 { 0.0 } else { samples[i - 1] };
                (samples[i] - PREEMPHASIS * previous) / INT16_SCALE
            })
            .collect();
        let mut features: Vec<f64> =
            (0..samples.len() / HOP_LEN).flat_map(|frame| self.log_mel(&emphasized, frame)).collect();
        if self.is_normalized {
            self.normalize(&mut features);
        }
        features
    }

    /// Computes the logarithms of one frame, centered on its hop.
    fn log_mel(&self, emphasized: &[f64], frame: usize) -> Vec<f64> {
        let windowed: Vec<f64> = (0..self.window.len())
            .map(|i| {
                let position = (frame * HOP_LEN + i).checked_sub(self.window.len() / 2);
                let sample = position.and_then(|position| emphasized.get(position)).copied();
                sample.unwrap_or(0.0) * self.window[i]
            })
            .collect();
        let power: Vec<f64> = (0..BINS)
            .map(|bin| {
                let (mut real, mut imaginary) = (0.0, 0.0);
                for (i, x) in windowed.iter().enumerate() {
                    let (sin, cos) = self.angles[(bin * i) % FFT_LEN];
                    (real, imaginary) = (real + x * cos, imaginary - x * sin);
                }
                real * real + imaginary * imaginary
            })
            .collect();
        let mel_power =
            |filter: &[f64]| filter.iter().zip(&power).map(|(filter, power)| filter * power).sum::<f64>();
        self.filters.chunks_exact(BINS).map(|filter| (mel_power(filter) + LOG_GUARD).ln()).collect()
    }

    /// Normalizes each band by its mean and deviation.
    fn normalize(&self, features: &mut [f64]) {
        let bands = self.filters.len() / BINS;
        let frames = features.len() / bands;
        for band in 0..bands {
            let values = || features.iter().skip(band).step_by(bands);
            let mean = values().sum::<f64>() / frames as f64;
            let squares: f64 = values().map(|x| (x - mean) * (x - mean)).sum();
            let deviation = if frames > 1 { (squares / (frames - 1) as f64).sqrt() } else { 0.0 };
            for x in features.iter_mut().skip(band).step_by(bands) {
                *x = (*x - mean) / (deviation + DEVIATION_GUARD);
            }
        }
    }
}
