//! From samples to a plane.

use std::ops::Range;

use rand::Rng;

use super::chain::FeatureStages;
use super::log_compression::ReferenceLevel;
use super::running_stats::Rate;
use super::samples::evaluation_rng;
use super::spectra::Spectra;
use super::{FeatureConfig, Features, setting, trim};
use crate::audio::check_samples;
use crate::{Audio, Error, MelScale, Result};

/// A planned log-mel front end; share one between threads.
pub struct FrontEnd {
    pub(super) config: FeatureConfig,
    scale: MelScale,
    pub(super) hop: usize,
    pub(super) length: usize,
    pub(super) engine: FrontEndEngine,
    /// Of running normalisation.
    pub(super) rate: Rate,
}

/// How exactly features are computed: in f64 where their floor is a power, which may be far below what f32 can add to 1.
pub(super) enum FrontEndEngine {
    Single(Spectra<f32>),
    Double(Spectra<f64>),
}

/// Runs a block with the engine's chain, of either width.
macro_rules! with_chain {
    ($front_end:expr, |$chain:ident| $body:expr) => {
        match &$front_end.engine {
            $crate::features::front_end::FrontEndEngine::Single(spectra) => {
                let $chain = $crate::features::chain::FeatureChain::new($front_end, spectra);
                $body
            }
            $crate::features::front_end::FrontEndEngine::Double(spectra) => {
                let $chain = $crate::features::chain::FeatureChain::new($front_end, spectra);
                $body
            }
        }
    };
}
pub(super) use with_chain;

impl FrontEnd {
    /// Plans the window, the FFT and the mel filters.
    ///
    /// The FFT is as long as the window, rounded up to a power of two, and longer where the lowest mel filter would otherwise fall
    /// between two of its bins.
    ///
    /// # Errors
    /// A setting out of its range, named with what was expected and found.
    pub fn new(config: &FeatureConfig) -> Result<Self> {
        config.check()?;
        let rate = f64::from(config.sample_rate);
        let samples = |ms: f32| (f64::from(ms) * rate / 1000.0).round() as usize;
        let (length, hop) = (samples(config.window_ms), samples(config.hop_ms));
        let scale = MelScale::new(config.mel_scale, f64::from(config.low_hz), config.top(), config.mels);
        let engine = match ReferenceLevel::new(config) {
            ReferenceLevel::One => Spectra::new(config, &scale, length).map(FrontEndEngine::Double),
            ReferenceLevel::Loudest | ReferenceLevel::Sine => {
                Spectra::new(config, &scale, length).map(FrontEndEngine::Single)
            }
        };
        let engine = engine.ok_or_else(|| {
            setting("mels", "few enough bins for the window's frequency resolution", config.mels)
        })?;
        let rate = Rate::new(hop as f64 / rate);
        Ok(Self { config: config.clone(), scale, hop, length, engine, rate })
    }

    /// The settings it was planned for.
    pub fn config(&self) -> &FeatureConfig {
        &self.config
    }

    /// The frequency axis of its planes.
    pub fn mel_scale(&self) -> MelScale {
        self.scale
    }

    /// Samples of a window.
    pub fn window(&self) -> usize {
        self.length
    }

    /// Samples from one frame to the next.
    pub fn hop(&self) -> usize {
        self.hop
    }

    /// The samples of a signal that are not trimmed: its first frame begins with the first of them.
    pub fn trimmed_range(&self, samples: &[f32]) -> Range<usize> {
        match self.config.trim_db {
            0.0 => 0..samples.len(),
            db => trim(samples, f64::from(db)),
        }
    }

    /// Frames of a signal of which nothing is trimmed, as [`Framing`](super::Framing) says; at least 1.
    pub fn frames(&self, samples: usize) -> usize {
        self.config.framing.frames(samples, self.length, self.hop)
    }

    /// Fewest samples that have so many frames, if nothing of them is trimmed.
    pub fn samples(&self, frames: usize) -> usize {
        self.config.framing.samples(frames, self.length, self.hop)
    }

    /// The normalised log-mel plane of a signal.
    ///
    /// ```text
    /// samples -> trim -> dither -> pre-emphasis -> frames -> window -> power p of mel bins -> logarithm x -> normalisation
    /// ```
    /// * Trimmed as [`trim`](super::trim()) says, with `trim_db` above 0; dithered with `x[n] + dither g[n]`.
    /// * `y[n] = x[n] - a x[n-1]`, in frames as [`Framing`](super::Framing) says, multiplied by a [`Window`](super::Window); p is the
    ///   squared magnitude of their Fourier transform times the filters of a [`MelKind`](crate::MelKind).
    /// * With `floor_power` above 0, `x = ln max(p, floor_power)`. Else `x = ln(p / full + 10^(-floor_db/10))`: where whole utterances
    ///   are normalised, full is `max p`, so that a gain on the samples changes nothing but rounding, and a silent signal gives zeros;
    ///   with `agc_ms` above 0 it is `max(max p[t ± agc_ms], max p / 1000)` at frame t; else it is the power of a sine of amplitude 1 in the middle of a bin of the spectrum.
    /// * [`Normalization`](super::Normalization) says the rest. Where it is running or none, nothing is trimmed, and windows lie inside, each
    ///   frame depends on the samples up to its own end only, and [`FrontEnd::stream`] gives the same bits.
    ///
    /// The noise of the dither is that of evaluation: the same for every utterance.
    ///
    /// # Shapes
    /// `[n]` samples to `[T, mels]`, T as [`FrontEnd::frames`] says of what is left of them.
    ///
    /// # Errors
    /// Another sample rate, no sample, a sample that is NaN or beyond ±2^31.
    ///
    /// Cost: O(T F log F) time for FFT size F, O(T mels) memory, and a copy of the samples where they are dithered.
    ///
    /// ```
    /// use speech::{Audio, FeatureConfig, FrontEnd};
    /// let front_end = FrontEnd::new(&FeatureConfig::default())?;
    /// let samples = (0..16_000).map(|n| ((n * n) as f32 * 1e-5).sin()).collect();
    /// let plane = front_end.log_mel(&Audio { samples, sample_rate: 16_000 })?;
    /// assert_eq!((plane.frames, plane.dim), (98, 80));
    /// # Ok::<(), speech::Error>(())
    /// ```
    pub fn log_mel(&self, audio: &Audio) -> Result<Features> {
        self.log_mel_with(audio, &mut evaluation_rng())
    }

    /// [`FrontEnd::log_mel`] with noise of one's own, as in training, where the generator is a function of seed, epoch and utterance.
    /// Without dither, nothing is drawn.
    ///
    /// # Errors
    /// Those of [`FrontEnd::log_mel`].
    pub fn log_mel_with(&self, audio: &Audio, rng: &mut (impl Rng + ?Sized)) -> Result<Features> {
        self.check(audio)?;
        let dim = self.config.mels;
        let data = with_chain!(self, |chain| chain.features(&audio.samples, rng));
        Ok(Features { frames: data.len() / dim, dim, data })
    }

    /// Everything that [`FrontEnd::log_mel`] computes on its way, widened to f64: for whoever wants to look, or to compare.
    ///
    /// # Errors
    /// Those of [`FrontEnd::log_mel`].
    ///
    /// Cost: that of [`FrontEnd::log_mel`], and O(n + T F) memory.
    pub fn stages(&self, audio: &Audio) -> Result<FeatureStages> {
        self.check(audio)?;
        Ok(with_chain!(self, |chain| chain.stages(&audio.samples, &mut evaluation_rng())))
    }

    /// The weights of a frame's samples.
    pub fn window_weights(&self) -> Vec<f64> {
        with_chain!(self, |chain| chain.window_weights())
    }

    /// The mel filters: row-major `[mels, F / 2 + 1]` weights of the power at `k sample_rate / F` hertz, F the size of the FFT.
    pub fn mel_matrix(&self) -> Vec<f64> {
        with_chain!(self, |chain| chain.mel_matrix())
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
