//! `FeatureConfig`: the settings of the log-mel front end in a recipe.

use serde::{Deserialize, Serialize};

use super::{Framing, InitialSample, Normalization, Window, setting_error};
use crate::audio::SAMPLE_RATES;
use crate::{MelKind, Result};

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

/// Declares [`FeatureConfig`] and its serialized table.
///
/// Each line is a rule of serialization, a key, its type and its default. Keys that were added
/// later are written only if changed, so that older tables stay valid.
macro_rules! settings {
    ($($(#[$doc:meta])* $rule:ident $name:ident: $kind:ty = $default:expr,)*) => {
        /// Settings of a [`FrontEnd`](super::FrontEnd).
        ///
        /// In a recipe, `preset` selects all settings of a [`Preset`]; other keys override it.
        /// Serialized tables contain the settings, without the name of the preset.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(from = "Table", into = "Table")]
        pub struct FeatureConfig {
            $($(#[$doc])* pub $name: $kind,)*
        }

        impl Default for FeatureConfig {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        /// The serialized keys.
        #[derive(Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            #[serde(skip_serializing_if = "Option::is_none")]
            preset: Option<Preset>,
            $(#[serde(skip_serializing_if = "Option::is_none")] $name: Option<$kind>,)*
        }

        impl From<Table> for FeatureConfig {
            fn from(table: Table) -> Self {
                let base = table.preset.map_or_else(Self::default, Preset::config);
                Self { $($name: table.$name.unwrap_or(base.$name),)* }
            }
        }

        impl From<FeatureConfig> for Table {
            fn from(config: FeatureConfig) -> Self {
                let base = FeatureConfig::default();
                Self { preset: None, $($name: $rule(config.$name, base.$name),)* }
            }
        }
    };
}

/// Rule of a key that is always written.
fn serialize_always<T>(value: T, _: T) -> Option<T> {
    Some(value)
}

/// Rule of a key that is written only if changed.
fn serialize_if_changed<T: PartialEq>(value: T, default: T) -> Option<T> {
    (value != default).then_some(value)
}

settings! {
    /// Sample rate of the audio in hertz.
    serialize_always sample_rate: u32 = 16_000,
    /// Resamples training audio of another rate, which is otherwise an error.
    serialize_if_changed resample: bool = false,
    /// Window length in milliseconds.
    serialize_always window_ms: f32 = 25.0,
    /// Hop length in milliseconds.
    serialize_always hop_ms: f32 = 10.0,
    /// Number of mel bins.
    serialize_always mels: usize = 80,
    /// Lower end of the mel axis in hertz.
    serialize_always low_hz: f32 = 0.0,
    /// Upper end of the mel axis in hertz.
    ///
    /// 0 means half the sample rate; a negative value is relative to half the sample rate.
    serialize_always high_hz: f32 = 0.0,
    /// Coefficient `a` of `y[n] = x[n] - a x[n-1]`; 0 disables pre-emphasis.
    serialize_always preemphasis: f32 = 0.97,
    /// Floor in decibels below a reference level; digital silence becomes finite.
    ///
    /// The reference is the utterance's largest mel bin or, with running or no normalization, a
    /// sine of amplitude 1.
    serialize_always floor_db: f32 = 60.0,
    /// Automatic gain control window in milliseconds; 0 disables it.
    ///
    /// The reference of a frame is the largest mel bin within this distance of it, but at most 30
    /// dB below the utterance's largest, so that words of very different loudness have similar
    /// features. Only if whole utterances are normalized.
    serialize_if_changed agc_ms: f32 = 0.0,
    /// Normalization of the features.
    serialize_if_changed normalize: Normalization = Normalization::Utterance,
    /// Position of the frames.
    serialize_if_changed framing: Framing = Framing::Inside,
    /// Window function of the frames.
    serialize_if_changed window: Window = Window::Hann,
    /// Subtracts the mean of each frame before any other processing.
    serialize_if_changed remove_mean: bool = false,
    /// The sample before the first one in the pre-emphasis.
    serialize_if_changed preemphasis_before: InitialSample = InitialSample::Silence,
    /// Mel scale and shape of the filters.
    serialize_if_changed mel_scale: MelKind = MelKind::Htk,
    /// Smallest power of a mel bin: `ln max(p, floor_power)`.
    ///
    /// If above 0, it replaces `floor_db`, and features are computed in f64.
    serialize_if_changed floor_power: f64 = 0.0,
    /// Constant that is added to the power of a mel bin: `ln(p + log_guard)`.
    ///
    /// If above 0, it replaces `floor_db`, and features are computed in f64.
    serialize_if_changed log_guard: f64 = 0.0,
    /// Removes silence at both ends, this many decibels below the loudest part.
    ///
    /// See [`trim`](super::trim()). 0 disables trimming.
    serialize_if_changed trim_db: f32 = 0.0,
    /// Standard deviation of Gaussian noise added to every sample.
    ///
    /// Evaluation adds noise too, the same to each utterance.
    serialize_if_changed dither: f32 = 0.0,
}

impl FeatureConfig {
    /// Returns the upper end of the mel axis in hertz.
    pub(super) fn max_hz(&self) -> f64 {
        let (half, high) = (f64::from(self.sample_rate) / 2.0, f64::from(self.high_hz));
        if high <= 0.0 { half + high } else { high }
    }

    /// Returns whether the floor of the logarithm is an absolute power.
    ///
    /// It is with `floor_power` or `log_guard` above 0, which replace `floor_db`.
    pub fn is_floor_absolute(&self) -> bool {
        self.floor_power > 0.0 || self.log_guard > 0.0
    }

    /// Checks every setting.
    pub(super) fn check(&self) -> Result<()> {
        let (rate, high) = (f64::from(self.sample_rate), self.max_hz());
        let check_duration = |field, ms: f32| {
            // At least one sample, at most ten seconds.
            let is_valid = ms.is_finite() && f64::from(ms) * rate >= 1000.0 && ms <= 10_000.0;
            if is_valid {
                Ok(())
            } else {
                Err(setting_error(field, "at least one sample and at most 10000", ms))
            }
        };
        if !SAMPLE_RATES.contains(&self.sample_rate) {
            return Err(setting_error("sample_rate", "1000 to 768000", self.sample_rate));
        }
        check_duration("window_ms", self.window_ms)?;
        check_duration("hop_ms", self.hop_ms)?;
        if !(1..=4096).contains(&self.mels) {
            return Err(setting_error("mels", "1 to 4096", self.mels));
        }
        if !(high <= rate / 2.0 && high > 0.0) {
            let expected =
                format!("above 0 and at most {0}, 0 for {0}, or a negative offset from {0}", rate / 2.0);
            return Err(setting_error("high_hz", &expected, self.high_hz));
        }
        if !(f64::from(self.low_hz) < high && self.low_hz >= 0.0) {
            return Err(setting_error("low_hz", &format!("at least 0 and below {high}"), self.low_hz));
        }
        let check_value = |field, expected: &str, is_valid: bool, found: f64| {
            if is_valid { Ok(()) } else { Err(setting_error(field, expected, found)) }
        };
        let preemphasis = self.preemphasis;
        check_value("preemphasis", "0 to 1", (0.0..=1.0).contains(&preemphasis), preemphasis.into())?;
        check_value("floor_db", "10 to 120", (10.0..=120.0).contains(&self.floor_db), self.floor_db.into())?;
        for (field, power) in [("floor_power", self.floor_power), ("log_guard", self.log_guard)] {
            let is_valid = power == 0.0 || (1e-300..=1.0).contains(&power);
            check_value(field, "1e-300 to 1, or 0 for a floor in decibels", is_valid, power)?;
            let is_valid = power == 0.0 || self.normalize != Normalization::Running;
            check_value(field, "0 with running normalization, whose prior is relative", is_valid, power)?;
        }
        let is_valid = self.floor_power == 0.0 || self.log_guard == 0.0;
        check_value("log_guard", "0 with a `floor_power` above 0", is_valid, self.log_guard)?;
        let is_valid = (0.0..=10_000.0).contains(&self.agc_ms);
        check_value("agc_ms", "0 to 10000", is_valid, self.agc_ms.into())?;
        let is_relative = !self.is_floor_absolute() && self.normalize.needs_whole_utterance();
        let is_valid = self.agc_ms == 0.0 || is_relative;
        check_value(
            "agc_ms",
            "0 unless features are relative to the maximum of a whole utterance",
            is_valid,
            self.agc_ms.into(),
        )?;
        let db = self.trim_db;
        check_value(
            "trim_db",
            "10 to 120, or 0 for none",
            db == 0.0 || (10.0..=120.0).contains(&db),
            db.into(),
        )?;
        check_value("dither", "0 to 1", (0.0..=1.0).contains(&self.dither), self.dither.into())
    }
}
