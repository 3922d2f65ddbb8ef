//! Mel-filtered power of one frame after another.

use realfft::num_complex::Complex;

use super::FrontEnd;

/// A front end at work, with its buffers.
pub(super) struct Spectra<'a> {
    front_end: &'a FrontEnd,
    gain: f64,
    block: Vec<f32>,
    spectrum: Vec<Complex<f32>>,
    scratch: Vec<Complex<f32>>,
    power: Vec<f32>,
}

impl<'a> Spectra<'a> {
    /// Samples are multiplied by `gain`.
    pub fn new(front_end: &'a FrontEnd, gain: f64) -> Self {
        let fft = &front_end.fft;
        let (block, spectrum) = (fft.make_input_vec(), fft.make_output_vec());
        let power = vec![0f32; spectrum.len()];
        Self { front_end, gain, block, spectrum, scratch: fft.make_scratch_vec(), power }
    }

    /// Appends the powers of a frame, given its samples and the one before them; missing samples are zeros.
    pub fn push(&mut self, frame: &[f32], mut before: f32, out: &mut Vec<f32>) {
        let FrontEnd { config, window, fft, filters, .. } = self.front_end;
        for ((y, &x), &w) in self.block.iter_mut().zip(frame).zip(window) {
            *y = (f64::from(x - config.preemphasis * before) * self.gain) as f32 * w;
            before = x;
        }
        self.block[frame.len()..].fill(0.0);
        let done = fft.process_with_scratch(&mut self.block, &mut self.spectrum, &mut self.scratch);
        debug_assert!(done.is_ok(), "buffers come from the plan");
        self.power.iter_mut().zip(&self.spectrum).for_each(|(p, c)| *p = c.norm_sqr());
        out.extend(filters.iter().map(|f| f.apply(&self.power)));
    }
}
