//! Mel-filtered power of one frame after another.

use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

use super::samples;
use super::{FeatureConfig, InitialSample};
use crate::MelScale;
use crate::fft_float::FftFloat;
use crate::mel::Filter;

/// What frames go through, planned.
pub(super) struct Spectra<F> {
    pub window: Vec<F>,
    pub filters: Vec<Filter<F>>,
    fft: Arc<dyn RealToComplex<F>>,
    remove_mean: bool,
    /// Of frames that are emphasized by themselves.
    within: Option<F>,
}

impl<F: FftFloat> Spectra<F> {
    /// For windows of `length` samples.
    ///
    /// The FFT is as long as the window, rounded up to a power of two, and longer where the lowest mel filter would otherwise fall
    /// between two of its bins; `None` if that does not help.
    pub fn new(config: &FeatureConfig, scale: &MelScale, length: usize) -> Option<Self> {
        let shortest = length.next_power_of_two();
        let bank = |i: usize| Some((shortest << i, Filter::bank(scale, shortest << i, config.sample_rate)?));
        let (size, filters) = (0..4).find_map(bank)?;
        let window = config.window.weights(length).into_iter().map(F::of).collect();
        let fft = RealFftPlanner::new().plan_fft_forward(size);
        let within = config.preemphasis_before == InitialSample::Frame && config.preemphasis > 0.0;
        let within = within.then(|| F::setting(config.preemphasis));
        Some(Self { window, filters, fft, remove_mean: config.remove_mean, within })
    }

    /// Bins of a spectrum.
    pub fn bins(&self) -> usize {
        self.fft.len() / 2 + 1
    }

    /// Power of a sine of amplitude 1 in the middle of a bin of the spectrum.
    pub fn full(&self) -> F {
        F::of((self.window.iter().map(|w| w.wide()).sum::<f64>() / 2.0).powi(2))
    }

    /// Buffers for frames.
    pub fn frames(&self) -> FrameSpectra<'_, F> {
        let (block, spectrum) = (self.fft.make_input_vec(), self.fft.make_output_vec());
        let power = vec![F::zero(); spectrum.len()];
        FrameSpectra { plan: self, block, spectrum, scratch: self.fft.make_scratch_vec(), power }
    }
}

/// Spectra at work, with their buffers.
pub(super) struct FrameSpectra<'a, F> {
    plan: &'a Spectra<F>,
    block: Vec<F>,
    spectrum: Vec<Complex<F>>,
    scratch: Vec<Complex<F>>,
    /// Power of the last frame.
    pub power: Vec<F>,
}

impl<F: FftFloat> FrameSpectra<'_, F> {
    /// Appends the mel-filtered powers of a frame, given its samples; missing ones are zeros.
    pub fn push(&mut self, samples: impl Iterator<Item = F>, out: &mut Vec<F>) {
        let Spectra { window, filters, fft, remove_mean, within } = self.plan;
        let (frame, rest) = self.block.split_at_mut(window.len());
        let mut given = 0;
        for (y, x) in frame.iter_mut().zip(samples) {
            *y = x;
            given += 1;
        }
        frame[given..].fill(F::zero());
        if *remove_mean {
            let mean = F::of(frame.iter().map(|x| x.wide()).sum::<f64>() / frame.len() as f64);
            frame.iter_mut().for_each(|x| *x = *x - mean);
        }
        if let Some(a) = within {
            samples::within(*a, frame);
        }
        frame.iter_mut().zip(window).for_each(|(x, &w)| *x = *x * w);
        rest.fill(F::zero());
        let done = fft.process_with_scratch(&mut self.block, &mut self.spectrum, &mut self.scratch);
        debug_assert!(done.is_ok(), "buffers come from the plan");
        self.power.iter_mut().zip(&self.spectrum).for_each(|(p, c)| *p = c.norm_sqr());
        out.extend(filters.iter().map(|f| f.apply(&self.power)));
    }
}
