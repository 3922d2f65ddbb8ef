//! Convolves audio with an impulse response by FFT (overlap-add), for reverberation.

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

/// Smallest FFT size.
const MIN_FFT_SIZE: usize = 4096;

/// Returns `y[n] = Σ h[k] x[n + offset - k]` for the n of the signal, in f64.
///
/// x: signal; h: response.
///
/// Overlap-add: blocks of the signal are transformed, multiplied and added where they overlap
/// (Stockham 1966).
///
/// Cost: O(n log h) time, O(n + h) memory.
pub(super) fn convolve(signal: &[f32], response: &[f32], offset: usize) -> Vec<f64> {
    let size = (2 * response.len()).next_power_of_two().max(MIN_FFT_SIZE);
    let mut planner = RealFftPlanner::<f64>::new();
    let (forward, inverse) = (planner.plan_fft_forward(size), planner.plan_fft_inverse(size));
    let filter = transform(&*forward, response);
    let block_samples = size + 1 - response.len();
    let mut out = vec![0f64; signal.len()];
    let mut block = vec![0f64; size];
    for (index, samples) in signal.chunks(block_samples).enumerate() {
        let mut spectrum = transform(&*forward, samples);
        spectrum.iter_mut().zip(&filter).for_each(|(x, h)| *x *= h);
        // The spectrum of a real signal is real at both ends; rounding adds an imaginary part.
        for edge in [0, size / 2] {
            spectrum[edge].im = 0.0;
        }
        let result = inverse.process(&mut spectrum, &mut block);
        debug_assert!(result.is_ok(), "buffers come from the plan");
        let start = index * block_samples;
        for (i, y) in block.iter().enumerate() {
            if let Some(output) = (start + i).checked_sub(offset).and_then(|n| out.get_mut(n)) {
                *output += y / size as f64;
            }
        }
    }
    out
}

/// Returns the spectrum of zero-padded samples.
fn transform(fft: &dyn RealToComplex<f64>, samples: &[f32]) -> Vec<Complex<f64>> {
    let (mut block, mut spectrum) = (fft.make_input_vec(), fft.make_output_vec());
    block.iter_mut().zip(samples).for_each(|(slot, &x)| *slot = f64::from(x));
    let result = fft.process(&mut block, &mut spectrum);
    debug_assert!(result.is_ok(), "buffers come from the plan");
    spectrum
}
