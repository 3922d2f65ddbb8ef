//! Log-mel features: per-utterance and running normalization, and published front ends.
//!
//! A [`FrontEnd`] computes [`Features`] as a [`FeatureConfig`] specifies; a [`Preset`] names a
//! complete configuration. The stages of a front end, in order:
//!
//! | stage | default | [`Preset::Mlperf`] | [`Preset::Kaldi`] | [`Preset::Nemo`] |
//! |---|---|---|---|---|
//! | silence at both ends, [`trim`](trim()) | kept | removed, 60 dB | kept | kept |
//! | dither | none | 1e-5 | none | none |
//! | pre-emphasis 0.97, [`InitialSample`] | silence | first sample | first sample of the frame | silence |
//! | [`Framing`], every 10 ms | 25 ms, inside | 20 ms, centered | 25 ms, middle | 25 ms, zero-padded |
//! | mean of a frame | kept | kept | subtracted | kept |
//! | [`Window`] | Hann | Hann, at n + 1/2 | Povey | symmetric Hann |
//! | [`MelKind`](crate::MelKind) | HTK | Slaney | HTK | Slaney |
//! | 80 mels | 0 to 8000 Hz | 0 to 8000 Hz | 20 to 7600 Hz | 0 to 8000 Hz |
//! | logarithm | relative to the maximum | `max(p, 1e-20)` | `max(p, 1.2e-7)` | `p + 2^-24` |
//! | [`Normalization`] | utterance | standard | none | sample |
//! | computed in | f32 | f64 | f64 | f64 |
//!
//! ```
//! use speech::{Audio, FeatureConfig, FrontEnd};
//!
//! // In a recipe: [features] preset = "mlperf"; other keys override those of the preset.
//! let table = r#"{"preset": "mlperf", "dither": 0.0}"#;
//! let config: FeatureConfig = serde_json::from_str(table).unwrap();
//! let samples = (0..16_000).map(|n| ((n * n) as f32 * 1e-5).sin()).collect();
//! let features = FrontEnd::new(&config)?.log_mel(&Audio { samples, sample_rate: 16_000 })?;
//! let rows = features.stack_padded(3, 3, 256);
//! assert_eq!((features.frames, rows.frames, rows.dim), (101, 34, 256));
//! # Ok::<(), speech::Error>(())
//! ```

mod config;
mod feature_matrix;
mod framing;
mod front_end;
mod log_compression;
mod mel_transform;
mod normalization;
mod pipeline;
pub(crate) mod preemphasis;
mod preset;
mod running_stats;
mod stack;
mod stream;
mod trim;

use std::fmt::{Display, LowerExp};

use kernels::ShortFloat;

use crate::Error;

pub use config::FeatureConfig;
pub use config::Preset;
pub use feature_matrix::Features;
pub use framing::{Framing, Window};
pub use front_end::FrontEnd;
pub use normalization::Normalization;
pub use pipeline::FeatureStages;
pub use preemphasis::InitialSample;
pub use stack::StackStream;
pub use stream::FeatureStream;
pub use trim::trim;

/// Returns the error of a setting that is out of range.
pub(crate) fn setting_error(field: &'static str, expected: &str, found: impl Display + LowerExp) -> Error {
    Error::Setting { field, expected: expected.into(), found: ShortFloat(found).to_string() }
}
