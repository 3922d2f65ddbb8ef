//! Mel powers of audio frames: window, FFT and mel filters.
//!
//! [`MelTransform`] is the plan, which threads share; [`FrameTransform`] applies it to frames in
//! its buffers.

use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

use super::preemphasis;
use super::{FeatureConfig, InitialSample};
use crate::MelScale;
use crate::feature_float::FeatureFloat;
use crate::mel::MelFilter;

/// Number of FFT sizes that are tried, each twice the one before.
const NUM_FFT_SIZES: usize = 4;

/// The planned transform of frames.
pub(super) struct MelTransform<F> {
    pub window: Vec<F>,
    pub filters: Vec<MelFilter<F>>,
    fft: Arc<dyn RealToComplex<F>>,
    remove_mean: bool,
    /// Coefficient of frames that are emphasized separately.
    frame_emphasis: Option<F>,
}

impl<F: FeatureFloat> MelTransform<F> {
    /// Plans windows of `length` samples.
    ///
    /// The FFT size is the window length rounded up to a power of two, and larger where the lowest
    /// mel filter would otherwise fall between two bins; `None` if four sizes are too small.
    pub(super) fn new(config: &FeatureConfig, scale: &MelScale, length: usize) -> Option<Self> {
        let min_size = length.next_power_of_two();
        let plan_filters = |doublings: usize| {
            let size = min_size << doublings;
            Some((size, MelFilter::filter_bank(scale, size, config.sample_rate)?))
        };
        let (size, filters) = (0..NUM_FFT_SIZES).find_map(plan_filters)?;
        let window = config.window.weights(length).into_iter().map(F::cast).collect();
        let fft = RealFftPlanner::new().plan_fft_forward(size);
        let frame_emphasis = config.preemphasis_before == InitialSample::Frame && config.preemphasis > 0.0;
        let frame_emphasis = frame_emphasis.then(|| F::from_setting(config.preemphasis));
        Some(Self { window, filters, fft, remove_mean: config.remove_mean, frame_emphasis })
    }

    /// Returns the number of spectral bins.
    pub(super) fn bins(&self) -> usize {
        self.fft.len() / 2 + 1
    }

    /// Returns the power of a sine of amplitude 1 in a bin's middle.
    pub(super) fn full_scale_power(&self) -> F {
        F::cast((self.window.iter().map(|w| w.to_f64()).sum::<f64>() / 2.0).powi(2))
    }

    /// Allocates the buffers of a computation.
    pub(super) fn allocate_buffers(&self) -> FrameTransform<'_, F> {
        let (padded_frame, spectrum) = (self.fft.make_input_vec(), self.fft.make_output_vec());
        let power = vec![F::zero(); spectrum.len()];
        FrameTransform { plan: self, padded_frame, spectrum, scratch: self.fft.make_scratch_vec(), power }
    }
}

/// A [`MelTransform`] with the buffers of one computation.
pub(super) struct FrameTransform<'a, F> {
    plan: &'a MelTransform<F>,
    /// A frame, zero-padded to the FFT size.
    padded_frame: Vec<F>,
    spectrum: Vec<Complex<F>>,
    scratch: Vec<Complex<F>>,
    /// Power spectrum of the last frame.
    pub power: Vec<F>,
}

impl<F: FeatureFloat> FrameTransform<'_, F> {
    /// Appends the mel-filtered powers of a frame; missing samples are zeros.
    pub(super) fn append_mel_powers(&mut self, samples: impl Iterator<Item = F>, out: &mut Vec<F>) {
        let MelTransform { window, filters, fft, remove_mean, frame_emphasis } = self.plan;
        let (frame, padding) = self.padded_frame.split_at_mut(window.len());
        let mut num_samples = 0;
        // Fills and pre-processes the frame.
        for (slot, sample) in frame.iter_mut().zip(samples) {
            *slot = sample;
            num_samples += 1;
        }
        frame[num_samples..].fill(F::zero());
        if *remove_mean {
            let mean = F::cast(frame.iter().map(|x| x.to_f64()).sum::<f64>() / frame.len() as f64);
            frame.iter_mut().for_each(|x| *x = *x - mean);
        }
        if let Some(a) = frame_emphasis {
            preemphasis::preemphasize_frame(*a, frame);
        }
        frame.iter_mut().zip(window).for_each(|(x, &w)| *x = *x * w);
        padding.fill(F::zero());
        // Power spectrum and mel filters.
        let result = fft.process_with_scratch(&mut self.padded_frame, &mut self.spectrum, &mut self.scratch);
        debug_assert!(result.is_ok(), "buffers come from the plan");
        self.power.iter_mut().zip(&self.spectrum).for_each(|(p, c)| *p = c.norm_sqr());
        out.extend(filters.iter().map(|f| f.apply(&self.power)));
    }
}
