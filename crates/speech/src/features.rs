//! Log-mel planes, normalised per utterance or by what was heard so far.

mod running;
mod spectra;
mod stack;
mod stream;

use std::f64::consts::TAU;
use std::fmt::{Display, LowerExp};
use std::sync::Arc;

use kernels::Brief;
use realfft::{RealFftPlanner, RealToComplex};
use serde::{Deserialize, Serialize};

use crate::audio::{RATES, check_samples};
use crate::mel::Filter;
use crate::{Audio, Error, MelScale, Result};

pub use running::Normalise;
use running::{Rate, Running};
use spectra::Spectra;
pub use stack::StackStream;
pub use stream::FeatureStream;

/// Settings of a [`FrontEnd`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeatureConfig {
    /// Samples per second of the audio.
    pub sample_rate: u32,
    /// Whether training resamples audio of another rate, which else is an error.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resample: bool,
    /// Length of the Hann window in milliseconds.
    pub window_ms: f32,
    /// Distance of two frames in milliseconds.
    pub hop_ms: f32,
    /// Number of mel bins.
    pub mels: usize,
    /// Lower end of the mel axis in hertz.
    pub low_hz: f32,
    /// Upper end of the mel axis in hertz; 0 means half the sample rate.
    pub high_hz: f32,
    /// Coefficient `a` of `y[n] = x[n] - a x[n-1]`; 0 switches it off.
    pub preemphasis: f32,
    /// Floor in decibels below the utterance's loudest mel bin, or, where normalisation is running, below a sine of amplitude 1:
    /// digital silence becomes a value, not minus infinity.
    pub floor_db: f32,
    /// What values are compared with.
    #[serde(skip_serializing_if = "Normalise::is_utterance")]
    pub normalise: Normalise,
}

impl Default for FeatureConfig {
    fn default() -> Self {
        Self {
            sample_rate: 16_000,
            resample: false,
            window_ms: 25.0,
            hop_ms: 10.0,
            mels: 80,
            low_hz: 0.0,
            high_hz: 0.0,
            preemphasis: 0.97,
            floor_db: 60.0,
            normalise: Normalise::Utterance,
        }
    }
}

/// A plane of feature frames.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Number of frames, T.
    pub frames: usize,
    /// Features a frame, D.
    pub dim: usize,
    /// Row-major `[T, D]`.
    pub data: Vec<f32>,
}

impl Features {
    /// One frame.
    ///
    /// # Panics
    /// If `t` is not below `frames`.
    pub fn frame(&self, t: usize) -> &[f32] {
        &self.data[t * self.dim..(t + 1) * self.dim]
    }

    /// Concatenates `stack` consecutive frames every `stride` frames.
    ///
    /// # Shapes
    /// `[T, D]` to `[ceil(T / stride), stack D]`; frames beyond the last one are zeros (the mean, after normalisation). A `stack`
    /// or `stride` of 0 is taken as 1.
    pub fn stack(&self, stack: usize, stride: usize) -> Features {
        let (stack, stride) = (stack.max(1), stride.max(1));
        let (frames, dim) = (self.frames.div_ceil(stride), stack * self.dim);
        let mut data = vec![0.0; frames * dim];
        for (t, row) in data.chunks_exact_mut(dim.max(1)).enumerate() {
            let first = t * stride * self.dim;
            let last = (first + dim).min(self.data.len());
            row[..last - first].copy_from_slice(&self.data[first..last]);
        }
        Features { frames, dim, data }
    }

    /// Brings each column to mean 0 and variance 1.
    ///
    /// Moments are taken in f64. A column whose deviation is below 0.05 is only centred and scaled as if it were 0.05, so that a
    /// constant column becomes zeros.
    pub fn normalise(&mut self) {
        const LEAST: f64 = 0.05;
        if self.frames == 0 || self.dim == 0 {
            return;
        }
        let n = self.frames as f64;
        let mut mean = vec![0f64; self.dim];
        for row in self.data.chunks_exact(self.dim) {
            mean.iter_mut().zip(row).for_each(|(m, &x)| *m += f64::from(x));
        }
        mean.iter_mut().for_each(|m| *m /= n);
        let mut scale = vec![0f64; self.dim];
        for row in self.data.chunks_exact(self.dim) {
            scale.iter_mut().zip(row).zip(&mean).for_each(|((v, &x), m)| *v += (f64::from(x) - m).powi(2));
        }
        scale.iter_mut().for_each(|v| *v = 1.0 / (*v / n).sqrt().max(LEAST));
        for row in self.data.chunks_exact_mut(self.dim) {
            for ((x, m), s) in row.iter_mut().zip(&mean).zip(&scale) {
                *x = ((f64::from(*x) - m) * s) as f32;
            }
        }
    }
}

/// A planned log-mel front end; share one between threads.
pub struct FrontEnd {
    config: FeatureConfig,
    scale: MelScale,
    hop: usize,
    window: Vec<f32>,
    fft: Arc<dyn RealToComplex<f32>>,
    filters: Vec<Filter>,
    /// Of running normalisation.
    rate: Rate,
}

impl FrontEnd {
    /// Plans the window, the FFT and the mel filters.
    ///
    /// The FFT is as long as the window, rounded up to a power of two, and longer where the lowest mel filter would otherwise fall
    /// between two of its bins.
    ///
    /// # Errors
    /// A setting out of its range, named with what was expected and found.
    pub fn new(config: &FeatureConfig) -> Result<Self> {
        let rate = f64::from(config.sample_rate);
        let high = if config.high_hz == 0.0 { rate / 2.0 } else { f64::from(config.high_hz) };
        check_ranges(config, high)?;
        let samples = |ms: f32| (f64::from(ms) * rate / 1000.0).round() as usize;
        let (length, hop) = (samples(config.window_ms), samples(config.hop_ms));
        let scale = MelScale::new(f64::from(config.low_hz), high, config.mels);
        let shortest = length.next_power_of_two();
        let bank = (0..4)
            .find_map(|i| Some((shortest << i, Filter::bank(&scale, shortest << i, config.sample_rate)?)));
        let (size, filters) = bank.ok_or_else(|| {
            setting("mels", "few enough bins for the window's frequency resolution", config.mels)
        })?;
        let window =
            (0..length).map(|n| (0.5 - 0.5 * (TAU * n as f64 / length as f64).cos()) as f32).collect();
        let fft = RealFftPlanner::new().plan_fft_forward(size);
        let rate = Rate::new(hop as f64 / rate);
        Ok(Self { config: config.clone(), scale, hop, window, fft, filters, rate })
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
        self.window.len()
    }

    /// Samples from one frame to the next.
    pub fn hop(&self) -> usize {
        self.hop
    }

    /// Frames of a signal: `1 + floor((n - window) / hop)`, at least 1 (a short signal is filled up with zeros).
    pub fn frames(&self, samples: usize) -> usize {
        1 + samples.saturating_sub(self.window.len()) / self.hop
    }

    /// The normalised log-mel plane of a signal.
    ///
    /// With `p[t, m]` the mel-filtered power spectrum of Hann-windowed, pre-emphasised frames, of which a sine of amplitude 1 in the
    /// middle of a bin of the spectrum has the power `full`:
    /// * [`Normalise::Utterance`]: `x[t, m] = ln(p[t, m] / max p + 10^(-floor_db/10))`, then [`Features::normalise`]. As the floor
    ///   follows the loudest bin, a gain on the samples changes nothing but rounding. A silent signal gives zeros.
    /// * [`Normalise::Running`]: `x[t, m] = ln(p[t, m] / full + 10^(-floor_db/10))`, then the formula there. Each frame depends on the
    ///   samples up to its own end only, and [`FrontEnd::stream`] gives the same bits.
    ///
    /// # Shapes
    /// `[n]` samples to `[T, mels]`, T as [`FrontEnd::frames`] says.
    ///
    /// # Errors
    /// Another sample rate, no sample, a sample that is NaN or beyond ±2^31.
    ///
    /// Cost: O(T F log F) time for FFT size F, O(T mels) memory.
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
        let expected = self.config.sample_rate;
        if audio.sample_rate != expected {
            return Err(Error::FrontEndRate { expected, found: audio.sample_rate });
        }
        if audio.samples.is_empty() {
            return Err(Error::EmptySignal);
        }
        check_samples(0, &audio.samples)?;
        match self.config.normalise {
            Normalise::Utterance => Ok(self.by_utterance(&audio.samples)),
            Normalise::Running => Ok(self.by_running(&audio.samples)),
        }
    }

    fn by_utterance(&self, samples: &[f32]) -> Features {
        // The loudest sample becomes 1, so that no power over- or underflows.
        let loudest = samples.iter().fold(0f32, |a, x| a.max(x.abs()));
        let gain = if loudest > 0.0 { 1.0 / f64::from(loudest) } else { 0.0 };
        let mut plane = self.mel_power(samples, gain);
        let peak = plane.data.iter().fold(0f32, |a, &p| a.max(p));
        if peak > 0.0 {
            // Dividing by the peak first keeps very quiet signals away from f32's smallest numbers.
            let floor = self.floor();
            plane.data.iter_mut().for_each(|p| *p = (*p / peak + floor).ln());
        }
        plane.normalise();
        plane
    }

    fn by_running(&self, samples: &[f32]) -> Features {
        let mut plane = self.mel_power(samples, 1.0);
        let mut running = Running::new(plane.dim);
        let level = self.level();
        plane.data.chunks_exact_mut(plane.dim).for_each(|frame| self.to_running(&mut running, level, frame));
        plane
    }

    /// One frame of powers becomes one of features.
    fn to_running(&self, running: &mut Running, level: [f32; 2], frame: &mut [f32]) {
        let [full, floor] = level;
        frame.iter_mut().for_each(|p| *p = (*p / full + floor).ln());
        running.normalise(self.rate, frame);
    }

    /// Power of a sine of amplitude 1, and the floor in relation to it.
    fn level(&self) -> [f32; 2] {
        let full = (self.window.iter().map(|&w| f64::from(w)).sum::<f64>() / 2.0).powi(2);
        // A window of one or two samples has no weight at all.
        [(full as f32).max(f32::MIN_POSITIVE), self.floor()]
    }

    fn floor(&self) -> f32 {
        10f32.powf(-self.config.floor_db / 10.0)
    }

    fn mel_power(&self, samples: &[f32], gain: f64) -> Features {
        let (frames, dim) = (self.frames(samples.len()), self.filters.len());
        let mut data = Vec::with_capacity(frames * dim);
        let mut spectra = Spectra::new(self, gain);
        for t in 0..frames {
            let start = t * self.hop;
            let before = if start > 0 { samples[start - 1] } else { 0.0 };
            spectra.push(&samples[start..samples.len().min(start + self.window.len())], before, &mut data);
        }
        Features { frames, dim, data }
    }
}

fn check_ranges(config: &FeatureConfig, high: f64) -> Result<()> {
    let rate = f64::from(config.sample_rate);
    let span = |field, ms: f32| {
        // At least one sample, at most ten seconds.
        let fits = ms.is_finite() && f64::from(ms) * rate >= 1000.0 && ms <= 10_000.0;
        if fits { Ok(()) } else { Err(setting(field, "at least one sample and at most 10000", ms)) }
    };
    if !RATES.contains(&config.sample_rate) {
        return Err(setting("sample_rate", "1000 to 768000", config.sample_rate));
    }
    span("window_ms", config.window_ms)?;
    span("hop_ms", config.hop_ms)?;
    if !(1..=4096).contains(&config.mels) {
        return Err(setting("mels", "1 to 4096", config.mels));
    }
    if !(high <= rate / 2.0 && high > 0.0) {
        return Err(setting(
            "high_hz",
            &format!("above 0 and at most {} (or 0 for that)", rate / 2.0),
            config.high_hz,
        ));
    }
    if !(f64::from(config.low_hz) < high && config.low_hz >= 0.0) {
        return Err(setting("low_hz", &format!("at least 0 and below {high}"), config.low_hz));
    }
    if !(0.0..=1.0).contains(&config.preemphasis) {
        return Err(setting("preemphasis", "0 to 1", config.preemphasis));
    }
    if !(10.0..=120.0).contains(&config.floor_db) {
        return Err(setting("floor_db", "10 to 120", config.floor_db));
    }
    Ok(())
}

pub(crate) fn setting(field: &'static str, expected: &str, found: impl Display + LowerExp) -> Error {
    Error::Setting { field, expected: expected.into(), found: Brief(found).to_string() }
}
