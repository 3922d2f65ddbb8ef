//! Convolution of a long signal with a shorter one, block by block.

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

/// Smallest transform.
const SMALLEST: usize = 4096;

/// `y[n] = Σ h[k] x[n + from - k]` for the n of the signal, in f64.
///
/// Blocks of the signal are transformed, multiplied and added up where they overlap (Stockham 1966).
///
/// Cost: O(n log h) time, O(n + h) memory.
pub(super) fn convolve(signal: &[f32], response: &[f32], from: usize) -> Vec<f64> {
    let size = (2 * response.len()).next_power_of_two().max(SMALLEST);
    let mut planner = RealFftPlanner::<f64>::new();
    let (forward, inverse) = (planner.plan_fft_forward(size), planner.plan_fft_inverse(size));
    let filter = transform(&*forward, response);
    let step = size + 1 - response.len();
    let mut out = vec![0f64; signal.len()];
    let mut block = vec![0f64; size];
    for (index, piece) in signal.chunks(step).enumerate() {
        let mut spectrum = transform(&*forward, piece);
        spectrum.iter_mut().zip(&filter).for_each(|(x, h)| *x *= h);
        // Products of real signals' spectra, but for the rounding of the two that must be real.
        for edge in [0, size / 2] {
            spectrum[edge].im = 0.0;
        }
        let done = inverse.process(&mut spectrum, &mut block);
        debug_assert!(done.is_ok(), "buffers come from the plan");
        let start = index * step;
        for (i, y) in block.iter().enumerate() {
            if let Some(to) = (start + i).checked_sub(from).and_then(|n| out.get_mut(n)) {
                *to += y / size as f64;
            }
        }
    }
    out
}

/// Spectrum of samples, filled up with zeros.
fn transform(fft: &dyn RealToComplex<f64>, samples: &[f32]) -> Vec<Complex<f64>> {
    let (mut block, mut spectrum) = (fft.make_input_vec(), fft.make_output_vec());
    block.iter_mut().zip(samples).for_each(|(to, &x)| *to = f64::from(x));
    let done = fft.process(&mut block, &mut spectrum);
    debug_assert!(done.is_ok(), "buffers come from the plan");
    spectrum
}
