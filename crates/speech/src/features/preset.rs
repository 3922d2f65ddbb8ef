//! `Preset`: published log-mel front ends (MLPerf, Kaldi, NeMo) as configurations.

use super::config::Preset;
use super::{FeatureConfig, Framing, InitialSample, Normalization, Window};
use crate::MelKind;

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
