//! `FeaturePipeline`: the steps from samples to log-mel features, in f32 or f64.
//!
//! ```text
//! trim, dither -> pre-emphasis -> frames -> mel powers -> logarithms -> normalization
//! ```
//! [`FrontEnd`] calls it for whole signals and streams. Each step is in the module of its name.

use std::ops::Range;

use rand::Rng;

use super::log_compression::{self, LogCompression, ReferenceLevel};
use super::mel_transform::MelTransform;
use super::preemphasis::{Preemphasis, dither};
use super::running_stats::RunningStats;
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
    /// Bins of a spectrum: half the FFT size, plus 1.
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

/// The computation of a front end, with its mel transform.
pub(super) struct FeaturePipeline<'a, F> {
    front_end: &'a FrontEnd,
    mel_transform: &'a MelTransform<F>,
}

impl<'a, F: FeatureFloat> FeaturePipeline<'a, F> {
    pub(super) fn new(front_end: &'a FrontEnd, mel_transform: &'a MelTransform<F>) -> Self {
        Self { front_end, mel_transform }
    }

    /// Computes the features of a signal of at least one sample.
    pub(super) fn features(&self, samples: &[f32], rng: &mut (impl Rng + ?Sized)) -> Vec<f32> {
        let samples = &samples[self.front_end.trimmed_range(samples)];
        let mut data = self.mel_powers(&dither(samples, self.front_end.config.dither, rng), |_| ());
        self.take_logarithms(&mut data);
        self.normalize(&mut data);
        data.into_iter().map(|x| x.to_f64() as f32).collect()
    }

    /// Computes the features with all intermediate results.
    pub(super) fn stages(&self, samples: &[f32], rng: &mut (impl Rng + ?Sized)) -> FeatureStages {
        let range = self.front_end.trimmed_range(samples);
        let samples = dither(&samples[range.clone()], self.front_end.config.dither, rng);
        let preemphasis = self.preemphasis(&samples);
        let emphasized = samples
            .iter()
            .enumerate()
            .map(|(i, &x)| preemphasis.apply(x, preemphasis.predecessor(&samples, i)).to_f64());
        let emphasized = emphasized.collect();
        let mut power = Vec::new();
        let mut data =
            self.mel_powers(&samples, |frame: &[F]| power.extend(frame.iter().map(|p| p.to_f64())));
        let to_f64 = |data: &[F]| data.iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
        let mel = to_f64(&data);
        self.take_logarithms(&mut data);
        let log = to_f64(&data);
        self.normalize(&mut data);
        let bins = self.mel_transform.bins();
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

    pub(super) fn window_weights(&self) -> Vec<f64> {
        self.mel_transform.window.iter().map(|w| w.to_f64()).collect()
    }

    pub(super) fn mel_matrix(&self) -> Vec<f64> {
        self.mel_transform.filters.iter().flat_map(|filter| filter.row(self.mel_transform.bins())).collect()
    }

    /// Returns the pre-emphasis of a whole signal.
    fn preemphasis(&self, samples: &[f32]) -> Preemphasis<F> {
        let config = &self.front_end.config;
        let gain = match ReferenceLevel::new(config) {
            ReferenceLevel::LargestPower => {
                // The loudest sample becomes 1, so that no power overflows or underflows.
                let loudest = samples.iter().fold(0f32, |maximum, x| maximum.max(x.abs()));
                if loudest > 0.0 { 1.0 / f64::from(loudest) } else { 0.0 }
            }
            ReferenceLevel::FullScaleSine | ReferenceLevel::One => 1.0,
        };
        Preemphasis::new(config.preemphasis, config.preemphasis_before, gain)
    }

    /// Computes the powers of the mel bins; `visit` receives each spectrum.
    fn mel_powers(&self, samples: &[f32], mut visit: impl FnMut(&[F])) -> Vec<F> {
        let FrontEnd { config, hop_length, window_length, .. } = self.front_end;
        let (framing, preemphasis) = (config.framing, self.preemphasis(samples));
        let num_frames = framing.frames(samples.len(), *window_length, *hop_length);
        let mut data = Vec::with_capacity(num_frames * self.mel_transform.filters.len());
        let mut frame_transform = self.mel_transform.allocate_buffers();
        for t in 0..num_frames {
            let start = framing.start(t, *window_length, *hop_length);
            // Frames within the signal are slices; others have padding or reflected samples.
            match usize::try_from(start) {
                Ok(start) if start + window_length <= samples.len() => {
                    let frame = &samples[start..start + window_length];
                    let predecessor = preemphasis.predecessor(samples, start);
                    let emphasized = preemphasis.apply_to_slice(frame, predecessor);
                    frame_transform.append_mel_powers(emphasized, &mut data);
                }
                _ => {
                    let indices = start..start + *window_length as isize;
                    let emphasized = indices.map(|i| {
                        let index = framing.fold_index(i, samples.len());
                        index.map_or(F::zero(), |i| {
                            preemphasis.apply(samples[i], preemphasis.predecessor(samples, i))
                        })
                    });
                    frame_transform.append_mel_powers(emphasized, &mut data);
                }
            }
            visit(&frame_transform.power);
        }
        data
    }

    /// Replaces powers by logarithms.
    fn take_logarithms(&self, data: &mut [F]) {
        let FrontEnd { config, .. } = self.front_end;
        if config.agc_ms > 0.0 {
            let radius = (config.agc_ms / config.hop_ms).round() as usize;
            let references = log_compression::local_reference_levels(data, config.mels, radius);
            for (frame, reference) in data.chunks_exact_mut(config.mels).zip(references) {
                LogCompression::relative(reference, config.floor_db)
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
            ReferenceLevel::LargestPower => LogCompression::relative(loudest, config.floor_db),
            ReferenceLevel::FullScaleSine => {
                // A window of one or two samples has no weight at all.
                let (sine_power, minimum) =
                    (self.mel_transform.full_scale_power(), F::cast(f64::from(f32::MIN_POSITIVE)));
                LogCompression::relative(
                    if sine_power > minimum { sine_power } else { minimum },
                    config.floor_db,
                )
            }
            ReferenceLevel::One if config.log_guard > 0.0 => {
                Some(LogCompression::WithGuard { guard: F::cast(config.log_guard) })
            }
            ReferenceLevel::One => Some(LogCompression::WithMinimum { floor: F::cast(config.floor_power) }),
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
    /// the `pending` samples; samples before and after them are zeros.
    pub(super) fn append_stream_frames(
        &self,
        pending: &[f32],
        starts: impl Iterator<Item = isize>,
        running: &mut RunningStats,
        out: &mut Vec<f32>,
    ) {
        let FrontEnd { config, running_constants, window_length, .. } = self.front_end;
        let (preemphasis, compression) = (self.preemphasis(pending), self.log_compression(F::zero()));
        let (mut frame_transform, mut data) = (self.mel_transform.allocate_buffers(), Vec::new());
        for start in starts {
            data.clear();
            let num_zeros = (start.saturating_neg().max(0) as usize).min(*window_length);
            let first = (start.max(0) as usize).min(pending.len());
            let frame = &pending[first..pending.len().min(first + window_length - num_zeros)];
            let emphasized = preemphasis.apply_to_slice(frame, preemphasis.predecessor(pending, first));
            let zeros = std::iter::repeat_n(F::zero(), num_zeros);
            frame_transform.append_mel_powers(zeros.chain(emphasized), &mut data);
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
