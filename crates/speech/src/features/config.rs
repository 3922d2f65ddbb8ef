//! What a recipe says about features.

use serde::{Deserialize, Serialize};

use super::{Framing, InitialSample, Normalization, Preset, Window, setting};
use crate::audio::RATES;
use crate::{MelKind, Result};

/// Declares [`FeatureConfig`] and the table that it is read from and written to: `always` written, or only where a value is not the
/// default one, so that older tables stay as they are.
macro_rules! settings {
    ($($(#[$doc:meta])* $rule:ident $name:ident: $kind:ty = $default:expr,)*) => {
        /// Settings of a [`FrontEnd`](super::FrontEnd).
        ///
        /// In a recipe, `preset` stands for all settings of a [`Preset`]; those that are given beside it come before it. What is
        /// written is the settings, without the name of a preset.
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

        /// The keys of a table.
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

fn always<T>(value: T, _: T) -> Option<T> {
    Some(value)
}

fn changed<T: PartialEq>(value: T, default: T) -> Option<T> {
    (value != default).then_some(value)
}

settings! {
    /// Samples per second of the audio.
    always sample_rate: u32 = 16_000,
    /// Whether training resamples audio of another rate, which else is an error.
    changed resample: bool = false,
    /// Length of the window in milliseconds.
    always window_ms: f32 = 25.0,
    /// Distance of two frames in milliseconds.
    always hop_ms: f32 = 10.0,
    /// Number of mel bins.
    always mels: usize = 80,
    /// Lower end of the mel axis in hertz.
    always low_hz: f32 = 0.0,
    /// Upper end of the mel axis in hertz; 0 means half the sample rate, and less than 0 so much below that.
    always high_hz: f32 = 0.0,
    /// Coefficient `a` of `y[n] = x[n] - a x[n-1]`; 0 switches it off.
    always preemphasis: f32 = 0.97,
    /// Floor in decibels below the utterance's loudest mel bin, or, where nothing of a whole utterance is known (running normalisation
    /// or none), below a sine of amplitude 1: digital silence becomes a value, not minus infinity.
    always floor_db: f32 = 60.0,
    /// Automatic gain control: in place of the utterance's loudest mel bin stands that of the frames within so many milliseconds of
    /// each, but never one of more than 30 dB below it, so that words of very different loudness look alike; 0 = none. Where whole
    /// utterances are normalised.
    changed agc_ms: f32 = 0.0,
    /// What values are compared with.
    changed normalise: Normalization = Normalization::Utterance,
    /// Where windows lie.
    changed framing: Framing = Framing::Inside,
    /// What frames are multiplied by.
    changed window: Window = Window::Hann,
    /// Whether each frame's mean is taken off, before anything else is done to it.
    changed remove_mean: bool = false,
    /// What stands before the first sample in the pre-emphasis.
    changed preemphasis_before: InitialSample = InitialSample::Silence,
    /// The mel scale, and the shape of its filters.
    changed mel_scale: MelKind = MelKind::Htk,
    /// Smallest power of a mel bin: `ln max(p, floor_power)`, p as it is. Instead of `floor_db`, where above 0; all is computed in
    /// f64 then.
    changed floor_power: f64 = 0.0,
    /// Silence at both ends is cut off, so many decibels below the loudest stretch: see [`trim`](super::trim()). 0 = none.
    changed trim_db: f32 = 0.0,
    /// Deviation of Gaussian noise that is added to every sample, in evaluation too (the same for each utterance there).
    changed dither: f32 = 0.0,
}

impl FeatureConfig {
    /// Upper end of the mel axis in hertz.
    pub(super) fn top(&self) -> f64 {
        let (half, high) = (f64::from(self.sample_rate) / 2.0, f64::from(self.high_hz));
        if high <= 0.0 { half + high } else { high }
    }

    /// Checks every value.
    pub(super) fn check(&self) -> Result<()> {
        let (rate, high) = (f64::from(self.sample_rate), self.top());
        let span = |field, ms: f32| {
            // At least one sample, at most ten seconds.
            let fits = ms.is_finite() && f64::from(ms) * rate >= 1000.0 && ms <= 10_000.0;
            if fits { Ok(()) } else { Err(setting(field, "at least one sample and at most 10000", ms)) }
        };
        if !RATES.contains(&self.sample_rate) {
            return Err(setting("sample_rate", "1000 to 768000", self.sample_rate));
        }
        span("window_ms", self.window_ms)?;
        span("hop_ms", self.hop_ms)?;
        if !(1..=4096).contains(&self.mels) {
            return Err(setting("mels", "1 to 4096", self.mels));
        }
        if !(high <= rate / 2.0 && high > 0.0) {
            let expected =
                format!("above 0 and at most {0}, 0 for that, or above -{0}, from there", rate / 2.0);
            return Err(setting("high_hz", &expected, self.high_hz));
        }
        if !(f64::from(self.low_hz) < high && self.low_hz >= 0.0) {
            return Err(setting("low_hz", &format!("at least 0 and below {high}"), self.low_hz));
        }
        let within = |field, expected: &str, fine: bool, found: f64| {
            if fine { Ok(()) } else { Err(setting(field, expected, found)) }
        };
        let shares = self.preemphasis;
        within("preemphasis", "0 to 1", (0.0..=1.0).contains(&shares), shares.into())?;
        within("floor_db", "10 to 120", (10.0..=120.0).contains(&self.floor_db), self.floor_db.into())?;
        let power = self.floor_power;
        let fits = power == 0.0 || (1e-300..=1.0).contains(&power);
        within("floor_power", "1e-300 to 1, or 0 for a floor in decibels", fits, power)?;
        let fits = power == 0.0 || self.normalise != Normalization::Running;
        within("floor_power", "0 with running normalisation, whose prior is relative", fits, power)?;
        let fits = (0.0..=10_000.0).contains(&self.agc_ms);
        within("agc_ms", "0 to 10000", fits, self.agc_ms.into())?;
        let fits = self.agc_ms == 0.0 || (power == 0.0 && self.normalise.is_whole());
        within(
            "agc_ms",
            "0 unless values are relative to the loudest of a whole utterance",
            fits,
            self.agc_ms.into(),
        )?;
        let db = self.trim_db;
        within("trim_db", "10 to 120, or 0 for none", db == 0.0 || (10.0..=120.0).contains(&db), db.into())?;
        within("dither", "0 to 1", (0.0..=1.0).contains(&self.dither), self.dither.into())
    }
}
