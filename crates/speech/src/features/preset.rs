//! `Preset`: published log-mel front ends (MLPerf, Kaldi, NeMo) as configurations.

use serde::{Deserialize, Serialize};

use super::{FeatureConfig, Framing, InitialSample, Normalization, Window};
use crate::MelKind;

/// A published front end.
///
/// `preset = "mlperf"` in a table of settings provides the settings that the table does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// The front end of MLPerf Training's RNN-T.
    ///
    /// Windows of 20 ms centered on multiples of 10 ms, 80 Slaney mels up to 8 kHz, `ln max(p,
    /// 1e-20)`, mean and deviation of each utterance, which is first trimmed, dithered and
    /// pre-emphasized. Its frames are stacked by three.
    ///
    /// Source: the data-loading path of the reference, mlcommons/training (retired benchmark
    /// RNN-T).
    Mlperf,
    /// Kaldi's filter bank as in icefall and sherpa.
    ///
    /// Povey windows of 25 ms around the middles of 10 ms, 80 mels from 20 Hz to 400 Hz below half
    /// the sample rate, `ln max(p, ε)` with the ε of f32, no normalization, no dither. Samples are
    /// within ±1.
    ///
    /// Source: kaldi-native-fbank and lhotse (`FbankConfig`).
    Kaldi,
    /// The front end of NeMo 2.5 and later, and of Hugging Face's Parakeet.
    ///
    /// Symmetric Hann windows of 25 ms centered on multiples of 10 ms, zeros beyond the ends, 80
    /// Slaney mels up to half the sample rate, `ln(p + 2^-24)`, mean and sample deviation of each
    /// utterance. Its dither is for training only, so the preset has none. Cache-aware streaming
    /// models have `normalize = "none"`.
    ///
    /// Source: `AudioToMelSpectrogramPreprocessor`. Releases up to 2.4 reflect the signal at its
    /// ends and have one more frame.
    Nemo,
}

impl Preset {
    /// Returns all settings.
    pub fn config(self) -> FeatureConfig {
        match self {
            Preset::Mlperf => FeatureConfig {
                window_ms: 20.0,
                framing: Framing::Centered,
                window: Window::HannMidpoint,
                mel_scale: MelKind::Slaney,
                preemphasis_before: InitialSample::First,
                trim_db: 60.0,
                dither: 1e-5,
                floor_power: 1e-20,
                normalize: Normalization::Standard,
                ..FeatureConfig::default()
            },
            Preset::Kaldi => FeatureConfig {
                framing: Framing::Middle,
                window: Window::Povey,
                low_hz: 20.0,
                high_hz: -400.0,
                remove_mean: true,
                preemphasis_before: InitialSample::Frame,
                floor_power: f64::from(f32::EPSILON),
                normalize: Normalization::None,
                ..FeatureConfig::default()
            },
            Preset::Nemo => FeatureConfig {
                framing: Framing::ZeroPadded,
                window: Window::HannSymmetric,
                mel_scale: MelKind::Slaney,
                log_guard: 2f64.powi(-24),
                normalize: Normalization::Sample,
                ..FeatureConfig::default()
            },
        }
    }
}
