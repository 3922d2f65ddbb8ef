//! `FrontEnd`: computes log-mel features of audio, as a configuration specifies.
//!
//! This file has the public functions and the plan of a front end;
//! [`FeaturePipeline`](super::pipeline::FeaturePipeline) has the computation.

use std::ops::Range;

use rand::Rng;

use super::log_compression::ReferenceLevel;
use super::mel_transform::MelTransform;
use super::pipeline::FeatureStages;
use super::preemphasis::evaluation_rng;
use super::running_stats::RunningConstants;
use super::{FeatureConfig, Features, setting_error, trim};
use crate::audio::check_samples;
use crate::{Audio, Error, MelScale, Result};

/// A planned log-mel front end, which threads can share.
pub struct FrontEnd {
    pub(super) config: FeatureConfig,
    mel_scale: MelScale,
    /// Hop length in samples.
    pub(super) hop_length: usize,
    /// Window length in samples.
    pub(super) window_length: usize,
    pub(super) mel_transform: PlannedMelTransform,
    pub(super) running_constants: RunningConstants,
}

/// The planned mel transform, in the floating-point type of the computation.
///
/// It is f64 where the floor is a power, which may be far below the resolution of f32 at 1.
pub(super) enum PlannedMelTransform {
    F32(MelTransform<f32>),
    F64(MelTransform<f64>),
}

/// Evaluates a block with the feature pipeline of either type.
macro_rules! with_pipeline {
    ($front_end:expr, |$pipeline:ident| $body:expr) => {
        match &$front_end.mel_transform {
            $crate::features::front_end::PlannedMelTransform::F32(mel_transform) => {
                let $pipeline = $crate::features::pipeline::FeaturePipeline::new($front_end, mel_transform);
                $body
            }
            $crate::features::front_end::PlannedMelTransform::F64(mel_transform) => {
                let $pipeline = $crate::features::pipeline::FeaturePipeline::new($front_end, mel_transform);
                $body
            }
        }
    };
}
pub(super) use with_pipeline;

impl FrontEnd {
    /// Plans the window, the FFT and the mel filters.
    ///
    /// The FFT size is the window length rounded up to a power of two, and larger where the lowest
    /// mel filter would otherwise fall between two bins.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting out of range.
    pub fn new(config: &FeatureConfig) -> Result<Self> {
        config.check()?;
        let rate = f64::from(config.sample_rate);
        let to_samples = |ms: f32| (f64::from(ms) * rate / 1000.0).round() as usize;
        let (window_length, hop_length) = (to_samples(config.window_ms), to_samples(config.hop_ms));
        let mel_scale =
            MelScale::new(config.mel_scale, f64::from(config.low_hz), config.max_hz(), config.mels);
        let mel_transform = match ReferenceLevel::new(config) {
            ReferenceLevel::One => {
                MelTransform::new(config, &mel_scale, window_length).map(PlannedMelTransform::F64)
            }
            ReferenceLevel::LargestPower | ReferenceLevel::FullScaleSine => {
                MelTransform::new(config, &mel_scale, window_length).map(PlannedMelTransform::F32)
            }
        };
        let mel_transform = mel_transform.ok_or_else(|| {
            setting_error("mels", "fewer bins, within the frequency resolution of the window", config.mels)
        })?;
        let running_constants = RunningConstants::new(hop_length as f64 / rate);
        Ok(Self {
            config: config.clone(),
            mel_scale,
            hop_length,
            window_length,
            mel_transform,
            running_constants,
        })
    }

    /// Returns the settings.
    pub fn config(&self) -> &FeatureConfig {
        &self.config
    }

    /// Returns the frequency axis of the features.
    pub fn mel_scale(&self) -> MelScale {
        self.mel_scale
    }

    /// Returns the window length in samples.
    pub fn window(&self) -> usize {
        self.window_length
    }

    /// Returns the hop length in samples.
    pub fn hop(&self) -> usize {
        self.hop_length
    }

    /// Returns the samples that remain after trimming; the first frame begins there.
    pub fn trimmed_range(&self, samples: &[f32]) -> Range<usize> {
        match self.config.trim_db {
            0.0 => 0..samples.len(),
            db => trim(samples, f64::from(db)),
        }
    }

    /// Returns the number of frames of an untrimmed signal.
    ///
    /// It is at least 1, except for a signal shorter than a hop with
    /// [`Framing::ZeroPadded`](super::Framing), which has no features.
    pub fn frames(&self, samples: usize) -> usize {
        self.config.framing.frames(samples, self.window_length, self.hop_length)
    }

    /// Returns the fewest samples with `frames` frames, if none is trimmed.
    pub fn samples(&self, frames: usize) -> usize {
        self.config.framing.samples(frames, self.window_length, self.hop_length)
    }

    /// Computes the normalized log-mel features of a signal.
    ///
    /// ```text
    /// samples -> trim -> dither -> pre-emphasis -> frames -> window -> power p of mel bins
    ///         -> logarithm x -> normalization
    /// ```
    /// * With `trim_db` above 0, silence is removed as by [`trim`](super::trim()); dither adds
    ///   `dither g[n]` to `x[n]`.
    /// * `y[n] = x[n] - a x[n-1]` is split into frames ([`Framing`](super::Framing)) and multiplied
    ///   by a [`Window`](super::Window); p is the squared magnitude of their Fourier transform
    ///   times the filters of a [`MelKind`](crate::MelKind).
    /// * With `floor_power` above 0, `x = ln max(p, floor_power)`; with `log_guard` above 0, `x =
    ///   ln(p + log_guard)`. Otherwise `x = ln(p / full + 10^(-floor_db/10))`. If whole utterances
    ///   are normalized, full is `max p`, so that a gain changes nothing but rounding, and a silent
    ///   signal gives zeros; with `agc_ms` above 0 it is `max(max p[t ± agc_ms], max p / 1000)` at
    ///   frame t. Otherwise it is the power of a sine of amplitude 1 in the middle of a spectral
    ///   bin.
    /// * [`Normalization`](super::Normalization) is applied to x. If it is running or none, nothing
    ///   is trimmed, and framing is inside or zero-padded, then each frame depends only on the
    ///   samples up to its end, and [`FrontEnd::stream`] gives the same bits.
    ///
    /// The dither noise is that of evaluation: the same for every utterance.
    ///
    /// # Shapes
    /// `[n]` samples to `[T, mels]`, T being [`FrontEnd::frames`] of the trimmed signal.
    ///
    /// # Errors
    /// Another sample rate, no sample, a sample that is NaN or beyond ±2^31, and
    /// [`Error::ShortSignal`] for a signal without a frame.
    ///
    /// Cost: O(T F log F) time for FFT size F, O(T mels) memory, and a copy of the samples if they
    /// are dithered.
    ///
    /// ```
    /// use speech::{Audio, FeatureConfig, FrontEnd};
    /// let front_end = FrontEnd::new(&FeatureConfig::default())?;
    /// let samples = (0..16_000).map(|n| ((n * n) as f32 * 1e-5).sin()).collect();
    /// let features = front_end.log_mel(&Audio { samples, sample_rate: 16_000 })?;
    /// assert_eq!((features.frames, features.dim), (98, 80));
    /// # Ok::<(), speech::Error>(())
    /// ```
    pub fn log_mel(&self, audio: &Audio) -> Result<Features> {
        self.log_mel_with(audio, &mut evaluation_rng())
    }

    /// [`FrontEnd::log_mel`] with custom dither noise, as in training.
    ///
    /// In training the generator is a function of seed, epoch and utterance. Without dither, no
    /// number is drawn.
    ///
    /// # Errors
    /// Those of [`FrontEnd::log_mel`].
    pub fn log_mel_with(&self, audio: &Audio, rng: &mut (impl Rng + ?Sized)) -> Result<Features> {
        self.check(audio)?;
        let dim = self.config.mels;
        let data = with_pipeline!(self, |pipeline| pipeline.features(&audio.samples, rng));
        if data.is_empty() {
            return Err(self.short_signal_error(audio));
        }
        Ok(Features { frames: data.len() / dim, dim, data })
    }

    /// Returns all intermediate results of [`FrontEnd::log_mel`] in f64.
    ///
    /// For inspection and comparison with other implementations.
    ///
    /// # Errors
    /// Those of [`FrontEnd::log_mel`].
    ///
    /// Cost: that of [`FrontEnd::log_mel`], and O(n + T F) memory.
    pub fn stages(&self, audio: &Audio) -> Result<FeatureStages> {
        self.check(audio)?;
        let stages = with_pipeline!(self, |pipeline| pipeline.stages(&audio.samples, &mut evaluation_rng()));
        if stages.frames == 0 { Err(self.short_signal_error(audio)) } else { Ok(stages) }
    }

    /// Returns the window function.
    pub fn window_weights(&self) -> Vec<f64> {
        with_pipeline!(self, |pipeline| pipeline.window_weights())
    }

    /// Returns the mel filters, row-major `[mels, F / 2 + 1]`.
    ///
    /// Column k is the weight of the power at `k sample_rate / F` hertz; F is the FFT size.
    pub fn mel_matrix(&self) -> Vec<f64> {
        with_pipeline!(self, |pipeline| pipeline.mel_matrix())
    }

    fn short_signal_error(&self, audio: &Audio) -> Error {
        Error::ShortSignal { expected: self.samples(1), found: self.trimmed_range(&audio.samples).len() }
    }

    fn check(&self, audio: &Audio) -> Result<()> {
        let expected = self.config.sample_rate;
        if audio.sample_rate != expected {
            return Err(Error::FrontEndRate { expected, found: audio.sample_rate });
        }
        if audio.samples.is_empty() {
            return Err(Error::EmptySignal);
        }
        check_samples(0, &audio.samples)
    }
}
