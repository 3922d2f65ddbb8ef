//! The way of a whole signal through a front end, in either width.

use std::ops::Range;

use rand::Rng;

use super::log_compression::{self, LogCompression, ReferenceLevel};
use super::running_stats::Running;
use super::samples::{Emphasis, dither};
use super::spectra::{FrameSpectra, Spectra};
use super::{FrontEnd, Normalization};
use crate::fft_float::FftFloat;

/// What a front end computes of a signal, step by step: see [`FrontEnd::stages`].
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureStages {
    /// Samples that are not trimmed.
    pub range: Range<usize>,
    /// They, pre-emphasized, if frames are not emphasized by themselves: times `1 / max |x|` where values are relative to the loudest.
    pub emphasized: Vec<f64>,
    /// FrameSpectra, T.
    pub frames: usize,
    /// Bins of a spectrum, `F / 2 + 1`.
    pub bins: usize,
    /// Squared magnitudes `[T, bins]`.
    pub power: Vec<f64>,
    /// Powers of mel bins `[T, mels]`.
    pub mel: Vec<f64>,
    /// Their logarithms `[T, mels]`.
    pub log: Vec<f64>,
    /// What is made of them `[T, mels]`.
    pub features: Vec<f64>,
}

/// A front end and its engine.
pub(super) struct FeatureChain<'a, F> {
    front_end: &'a FrontEnd,
    spectra: &'a Spectra<F>,
}

impl<'a, F: FftFloat> FeatureChain<'a, F> {
    pub fn new(front_end: &'a FrontEnd, spectra: &'a Spectra<F>) -> Self {
        Self { front_end, spectra }
    }

    /// The plane of a signal of at least one sample.
    pub fn features(&self, samples: &[f32], rng: &mut (impl Rng + ?Sized)) -> Vec<f32> {
        let samples = &samples[self.front_end.trimmed_range(samples)];
        let mut data = self.mel(&dither(samples, self.front_end.config.dither, rng), |_| ());
        self.log(&mut data);
        self.normalise(&mut data);
        data.into_iter().map(|x| x.wide() as f32).collect()
    }

    /// The same, with everything on the way.
    pub fn stages(&self, samples: &[f32], rng: &mut (impl Rng + ?Sized)) -> FeatureStages {
        let kept = self.front_end.trimmed_range(samples);
        let samples = dither(&samples[kept.clone()], self.front_end.config.dither, rng);
        let emphasis = self.emphasis(&samples);
        let emphasized =
            samples.iter().enumerate().map(|(i, &x)| emphasis.of(x, emphasis.before(&samples, i)).wide());
        let emphasized = emphasized.collect();
        let mut power = Vec::new();
        let mut data = self.mel(&samples, |one: &[F]| power.extend(one.iter().map(|p| p.wide())));
        let wide = |data: &[F]| data.iter().map(|x| x.wide()).collect::<Vec<f64>>();
        let mel = wide(&data);
        self.log(&mut data);
        let log = wide(&data);
        self.normalise(&mut data);
        let bins = self.spectra.bins();
        FeatureStages {
            range: kept,
            emphasized,
            frames: power.len() / bins,
            bins,
            power,
            mel,
            log,
            features: wide(&data),
        }
    }

    pub fn window_weights(&self) -> Vec<f64> {
        self.spectra.window.iter().map(|w| w.wide()).collect()
    }

    pub fn mel_matrix(&self) -> Vec<f64> {
        self.spectra.filters.iter().flat_map(|filter| filter.row(self.spectra.bins())).collect()
    }

    /// Emphasis of a whole signal.
    fn emphasis(&self, samples: &[f32]) -> Emphasis<F> {
        let config = &self.front_end.config;
        let gain = match ReferenceLevel::new(config) {
            ReferenceLevel::Loudest => {
                // The loudest sample becomes 1, so that no power over- or underflows.
                let loudest = samples.iter().fold(0f32, |a, x| a.max(x.abs()));
                if loudest > 0.0 { 1.0 / f64::from(loudest) } else { 0.0 }
            }
            ReferenceLevel::Sine | ReferenceLevel::One => 1.0,
        };
        Emphasis::new(config.preemphasis, config.preemphasis_before, gain)
    }

    /// Powers of mel bins; each spectrum is looked at once.
    fn mel(&self, samples: &[f32], mut look: impl FnMut(&[F])) -> Vec<F> {
        let FrontEnd { config, hop, length, .. } = self.front_end;
        let (framing, emphasis) = (config.framing, self.emphasis(samples));
        let count = framing.frames(samples.len(), *length, *hop);
        let mut data = Vec::with_capacity(count * self.spectra.filters.len());
        let mut frames = self.spectra.frames();
        for t in 0..count {
            let start = framing.start(t, *length, *hop);
            match usize::try_from(start) {
                Ok(start) if start + length <= samples.len() => {
                    let frame = &samples[start..start + length];
                    self.frame(&mut frames, &emphasis, frame, emphasis.before(samples, start), &mut data);
                }
                _ => {
                    let places = start..start + *length as isize;
                    let folded = places.map_while(|i| framing.fold(i, samples.len()));
                    let emphasized = folded.map(|i| emphasis.of(samples[i], emphasis.before(samples, i)));
                    frames.push(emphasized, &mut data);
                }
            }
            look(&frames.power);
        }
        data
    }

    /// A frame of neighbours, and the sample before them.
    fn frame(
        &self,
        frames: &mut FrameSpectra<F>,
        emphasis: &Emphasis<F>,
        samples: &[f32],
        before: f32,
        out: &mut Vec<F>,
    ) {
        let befores = std::iter::once(&before).chain(samples);
        frames.push(samples.iter().zip(befores).map(|(&x, &before)| emphasis.of(x, before)), out);
    }

    /// Powers become logarithms.
    fn log(&self, data: &mut [F]) {
        let FrontEnd { config, .. } = self.front_end;
        if config.agc_ms > 0.0 {
            let reach = (config.agc_ms / config.hop_ms).round() as usize;
            let frames = log_compression::near(data, config.mels, reach);
            for (frame, full) in data.chunks_exact_mut(config.mels).zip(frames) {
                LogCompression::relative(full, config.floor_db)
                    .into_iter()
                    .for_each(|level| level.apply(frame));
            }
            return;
        }
        let loudest = data.iter().fold(F::zero(), |a, &p| if p > a { p } else { a });
        if let Some(level) = self.level(loudest) {
            level.apply(data);
        }
    }

    /// How they do, given the loudest power of the utterance if that is needed.
    fn level(&self, loudest: F) -> Option<LogCompression<F>> {
        let config = &self.front_end.config;
        match ReferenceLevel::new(config) {
            ReferenceLevel::Loudest => LogCompression::relative(loudest, config.floor_db),
            ReferenceLevel::Sine => {
                // A window of one or two samples has no weight at all.
                let (full, least) = (self.spectra.full(), F::of(f64::from(f32::MIN_POSITIVE)));
                LogCompression::relative(if full > least { full } else { least }, config.floor_db)
            }
            ReferenceLevel::One => Some(LogCompression::Absolute { floor: F::of(config.floor_power) }),
        }
    }

    fn normalise(&self, data: &mut [F]) {
        let FrontEnd { config, rate, .. } = self.front_end;
        config.normalise.whole(data, config.mels);
        if config.normalise == Normalization::Running {
            let mut running = Running::new(config.mels);
            data.chunks_exact_mut(config.mels).for_each(|frame| running.normalise(*rate, frame));
        }
    }

    /// Features of the frames of a stream, one after the other, for front ends that do not need whole utterances.
    /// Each begins at one of `starts` in what is kept of the signal; samples after its end are zeros.
    pub fn advance(
        &self,
        kept: &[f32],
        starts: impl Iterator<Item = usize>,
        running: &mut Running,
        out: &mut Vec<f32>,
    ) {
        let FrontEnd { config, rate, length, .. } = self.front_end;
        let (emphasis, level) = (self.emphasis(kept), self.level(F::zero()));
        let (mut frames, mut data) = (self.spectra.frames(), Vec::new());
        for at in starts {
            data.clear();
            let frame = &kept[at..kept.len().min(at + length)];
            self.frame(&mut frames, &emphasis, frame, emphasis.before(kept, at), &mut data);
            if let Some(level) = level {
                level.apply(&mut data);
            }
            if config.normalise == Normalization::Running {
                running.normalise(*rate, &mut data);
            }
            out.extend(data.iter().map(|x| x.wide() as f32));
        }
    }
}
