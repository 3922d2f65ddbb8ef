//! `FeaturePipeline`: the steps from samples to log-mel features, in f32 or f64.

use std::ops::Range;

use rand::Rng;

use super::log_compression::{self, LogCompression, ReferenceLevel};
use super::running_stats::RunningStats;
use super::samples::{Emphasis, dither};
use super::spectra::{FrameSpectra, Spectra};
use super::{FrontEnd, Normalization};
use crate::feature_float::FeatureFloat;

/// The intermediate results of a front end; see [`FrontEnd::stages`].
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureStages {
    /// Samples that remain after trimming.
    pub range: Range<usize>,
    /// Pre-emphasized samples, unless each frame is emphasized separately.
    ///
    /// Scaled by `1 / max |x|` where features are relative to the maximum.
    pub emphasized: Vec<f64>,
    /// Number of frames, T.
    pub frames: usize,
    /// Bins of a spectrum, `F / 2 + 1`.
    pub bins: usize,
    /// Squared magnitudes `[T, bins]`.
    pub power: Vec<f64>,
    /// Powers of the mel bins `[T, mels]`.
    pub mel: Vec<f64>,
    /// Their logarithms `[T, mels]`.
    pub log: Vec<f64>,
    /// Normalized features `[T, mels]`.
    pub features: Vec<f64>,
}

/// The computation of a front end, with its planned spectra.
pub(super) struct FeaturePipeline<'a, F> {
    front_end: &'a FrontEnd,
    spectra: &'a Spectra<F>,
}

impl<'a, F: FeatureFloat> FeaturePipeline<'a, F> {
    pub fn new(front_end: &'a FrontEnd, spectra: &'a Spectra<F>) -> Self {
        Self { front_end, spectra }
    }

    /// Computes the features of a signal of at least one sample.
    pub fn features(&self, samples: &[f32], rng: &mut (impl Rng + ?Sized)) -> Vec<f32> {
        let samples = &samples[self.front_end.trimmed_range(samples)];
        let mut data = self.mel_powers(&dither(samples, self.front_end.config.dither, rng), |_| ());
        self.take_logarithms(&mut data);
        self.normalize(&mut data);
        data.into_iter().map(|x| x.to_f64() as f32).collect()
    }

    /// Computes the features with all intermediate results.
    pub fn stages(&self, samples: &[f32], rng: &mut (impl Rng + ?Sized)) -> FeatureStages {
        let range = self.front_end.trimmed_range(samples);
        let samples = dither(&samples[range.clone()], self.front_end.config.dither, rng);
        let emphasis = self.emphasis(&samples);
        let emphasized = samples
            .iter()
            .enumerate()
            .map(|(i, &x)| emphasis.apply(x, emphasis.predecessor(&samples, i)).to_f64());
        let emphasized = emphasized.collect();
        let mut power = Vec::new();
        let mut data =
            self.mel_powers(&samples, |frame: &[F]| power.extend(frame.iter().map(|p| p.to_f64())));
        let to_f64 = |data: &[F]| data.iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
        let mel = to_f64(&data);
        self.take_logarithms(&mut data);
        let log = to_f64(&data);
        self.normalize(&mut data);
        let bins = self.spectra.bins();
        FeatureStages {
            range,
            emphasized,
            frames: power.len() / bins,
            bins,
            power,
            mel,
            log,
            features: to_f64(&data),
        }
    }

    pub fn window_weights(&self) -> Vec<f64> {
        self.spectra.window.iter().map(|w| w.to_f64()).collect()
    }

    pub fn mel_matrix(&self) -> Vec<f64> {
        self.spectra.filters.iter().flat_map(|filter| filter.row(self.spectra.bins())).collect()
    }

    /// Returns the pre-emphasis of a whole signal.
    fn emphasis(&self, samples: &[f32]) -> Emphasis<F> {
        let config = &self.front_end.config;
        let gain = match ReferenceLevel::new(config) {
            ReferenceLevel::Loudest => {
                // The loudest sample becomes 1, so that no power overflows or underflows.
                let loudest = samples.iter().fold(0f32, |maximum, x| maximum.max(x.abs()));
                if loudest > 0.0 { 1.0 / f64::from(loudest) } else { 0.0 }
            }
            ReferenceLevel::Sine | ReferenceLevel::One => 1.0,
        };
        Emphasis::new(config.preemphasis, config.preemphasis_before, gain)
    }

    /// Computes the powers of the mel bins; `visit` receives each spectrum.
    fn mel_powers(&self, samples: &[f32], mut visit: impl FnMut(&[F])) -> Vec<F> {
        let FrontEnd { config, hop, length, .. } = self.front_end;
        let (framing, emphasis) = (config.framing, self.emphasis(samples));
        let count = framing.frames(samples.len(), *length, *hop);
        let mut data = Vec::with_capacity(count * self.spectra.filters.len());
        let mut spectra = self.spectra.allocate_buffers();
        for t in 0..count {
            let start = framing.start(t, *length, *hop);
            // Frames within the signal are slices; others have padding or reflected samples.
            match usize::try_from(start) {
                Ok(start) if start + length <= samples.len() => {
                    let frame = &samples[start..start + length];
                    self.push_frame(
                        &mut spectra,
                        &emphasis,
                        frame,
                        emphasis.predecessor(samples, start),
                        &mut data,
                    );
                }
                _ => {
                    let indices = start..start + *length as isize;
                    let folded = indices.map_while(|i| framing.fold_index(i, samples.len()));
                    let emphasized =
                        folded.map(|i| emphasis.apply(samples[i], emphasis.predecessor(samples, i)));
                    spectra.append_mel_powers(emphasized, &mut data);
                }
            }
            visit(&spectra.power);
        }
        data
    }

    /// Computes one frame of consecutive samples, given the sample before them.
    fn push_frame(
        &self,
        spectra: &mut FrameSpectra<F>,
        emphasis: &Emphasis<F>,
        samples: &[f32],
        predecessor: f32,
        out: &mut Vec<F>,
    ) {
        let predecessors = std::iter::once(&predecessor).chain(samples);
        spectra.append_mel_powers(
            samples.iter().zip(predecessors).map(|(&x, &predecessor)| emphasis.apply(x, predecessor)),
            out,
        );
    }

    /// Replaces powers by logarithms.
    fn take_logarithms(&self, data: &mut [F]) {
        let FrontEnd { config, .. } = self.front_end;
        if config.agc_ms > 0.0 {
            let radius = (config.agc_ms / config.hop_ms).round() as usize;
            let maxima = log_compression::local_maxima(data, config.mels, radius);
            for (frame, maximum) in data.chunks_exact_mut(config.mels).zip(maxima) {
                LogCompression::relative(maximum, config.floor_db)
                    .into_iter()
                    .for_each(|compression| compression.apply(frame));
            }
            return;
        }
        let loudest = data.iter().fold(F::zero(), |maximum, &p| if p > maximum { p } else { maximum });
        if let Some(compression) = self.log_compression(loudest) {
            compression.apply(data);
        }
    }

    /// Returns the log compression.
    ///
    /// `loudest` is the largest power of the utterance, if the reference level needs it.
    fn log_compression(&self, loudest: F) -> Option<LogCompression<F>> {
        let config = &self.front_end.config;
        match ReferenceLevel::new(config) {
            ReferenceLevel::Loudest => LogCompression::relative(loudest, config.floor_db),
            ReferenceLevel::Sine => {
                // A window of one or two samples has no weight at all.
                let (sine_power, minimum) =
                    (self.spectra.full_scale_power(), F::cast(f64::from(f32::MIN_POSITIVE)));
                LogCompression::relative(
                    if sine_power > minimum { sine_power } else { minimum },
                    config.floor_db,
                )
            }
            ReferenceLevel::One => Some(LogCompression::Absolute { floor: F::cast(config.floor_power) }),
        }
    }

    /// Normalizes log-mel features of a whole utterance.
    fn normalize(&self, data: &mut [F]) {
        let FrontEnd { config, running_constants, .. } = self.front_end;
        config.normalize.apply(data, config.mels);
        if config.normalize == Normalization::Running {
            let mut running = RunningStats::new(config.mels);
            data.chunks_exact_mut(config.mels).for_each(|frame| running.normalize(*running_constants, frame));
        }
    }

    /// Computes the next frames of a stream.
    ///
    /// For front ends that do not need whole utterances. Each frame begins at one of `starts` in
    /// the `pending` samples; samples after their end are zeros.
    pub fn push_frames(
        &self,
        pending: &[f32],
        starts: impl Iterator<Item = usize>,
        running: &mut RunningStats,
        out: &mut Vec<f32>,
    ) {
        let FrontEnd { config, running_constants, length, .. } = self.front_end;
        let (emphasis, compression) = (self.emphasis(pending), self.log_compression(F::zero()));
        let (mut spectra, mut data) = (self.spectra.allocate_buffers(), Vec::new());
        for start in starts {
            data.clear();
            let frame = &pending[start..pending.len().min(start + length)];
            self.push_frame(&mut spectra, &emphasis, frame, emphasis.predecessor(pending, start), &mut data);
            if let Some(compression) = compression {
                compression.apply(&mut data);
            }
            if config.normalize == Normalization::Running {
                running.normalize(*running_constants, &mut data);
            }
            out.extend(data.iter().map(|x| x.to_f64() as f32));
        }
    }
}
