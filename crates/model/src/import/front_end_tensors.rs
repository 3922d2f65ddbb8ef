//! Window and filter bank of NeMo's front end, which its checkpoints contain.
//!
//! The front end of this workspace computes both; a checkpoint with another window or filter bank
//! has other features and is rejected.
use safetensors::Dtype;

use super::metadata::{Base64Bytes, ImportedTensor};
use super::tensors::from_f32;

/// Name of the window.
pub(crate) const WINDOW_NAME: &str = "preprocessor.featurizer.window";
/// Name of the filter bank.
pub(crate) const FILTER_BANK_NAME: &str = "preprocessor.featurizer.fb";
/// Samples of the window.
const WINDOW_SAMPLES: usize = 400;
/// Samples of the discrete Fourier transform.
const TRANSFORM_SAMPLES: usize = 512;
/// Sample rate in hertz.
const SAMPLE_RATE: f64 = 16_000.0;
/// Largest difference of a stored value, absolute and relative.
const ABSOLUTE_TOLERANCE: f64 = 1e-6;

/// Shape and values of a tensor of the front end; none for another name.
pub(crate) fn expected_tensor(name: &str, mels: usize) -> Option<(Vec<usize>, Vec<f64>)> {
    match name {
        WINDOW_NAME => Some((vec![WINDOW_SAMPLES], window())),
        FILTER_BANK_NAME => Some((vec![1, mels, TRANSFORM_SAMPLES / 2 + 1], filter_bank(mels))),
        _ => None,
    }
}

/// Returns a tensor of the front end, for a model without it.
pub(crate) fn computed_tensor(name: &str, mels: usize) -> Option<ImportedTensor> {
    let (shape, values) = expected_tensor(name, mels)?;
    let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
    let data = Base64Bytes(from_f32(Dtype::F32, &values)?);
    Some(ImportedTensor { dtype: Dtype::F32, shape, data })
}

/// Returns the index of the first value that differs.
///
/// Rounding to the dtype is no difference.
pub(crate) fn first_difference(dtype: Dtype, stored: &[f32], expected: &[f64]) -> Option<usize> {
    let relative_tolerance = match dtype {
        Dtype::BF16 => 2f64.powi(-8),
        Dtype::F16 => 2f64.powi(-10),
        _ => 1e-5,
    };
    stored.iter().zip(expected).position(|(&stored, expected)| {
        let tolerance = ABSOLUTE_TOLERANCE + relative_tolerance * expected.abs();
        (f64::from(stored) - expected).abs() > tolerance
    })
}

/// Returns a symmetric Hann window: `0.5 - 0.5 cos(2 π i / (n - 1))`.
fn window() -> Vec<f64> {
    let angle = |i: usize| std::f64::consts::TAU * i as f64 / (WINDOW_SAMPLES - 1) as f64;
    (0..WINDOW_SAMPLES).map(|i| 0.5 - 0.5 * angle(i).cos()).collect()
}

/// Returns Slaney's filter bank `[mels, bins]` from 0 to half the sample rate.
///
/// A triangle has the height `2 / (right - left)`, in hertz.
fn filter_bank(mels: usize) -> Vec<f64> {
    let log_step = 6.4f64.ln() / 27.0;
    let mel = |hz: f64| if hz < 1000.0 { hz * 3.0 / 200.0 } else { 15.0 + (hz / 1000.0).ln() / log_step };
    let hz = |mel: f64| if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * log_step).exp() };
    let high = mel(SAMPLE_RATE / 2.0);
    let corner = |index: usize| hz(high * index as f64 / (mels + 1) as f64);
    let bins = TRANSFORM_SAMPLES / 2 + 1;
    let weight = |band: usize, bin: usize| {
        let [left, center, right] = [corner(band), corner(band + 1), corner(band + 2)];
        let frequency = bin as f64 * SAMPLE_RATE / TRANSFORM_SAMPLES as f64;
        let height = ((frequency - left) / (center - left)).min((right - frequency) / (right - center));
        height.max(0.0) * 2.0 / (right - left)
    };
    (0..mels)
        .flat_map(|band| (0..bins).map(move |bin| (band, bin)))
        .map(|(band, bin)| weight(band, bin))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triangles_have_area_one_and_the_window_is_symmetric() {
        let window = window();
        assert_eq!((window[0], window.len()), (0.0, 400));
        assert!(window.iter().zip(window.iter().rev()).all(|(a, b)| (a - b).abs() < 1e-12));
        // Wide triangles: sums over bins approximate areas.
        let bank = filter_bank(80);
        for band in 60..79 {
            let area: f64 = bank[band * 257..(band + 1) * 257].iter().sum::<f64>() * 31.25;
            assert!((area - 1.0).abs() < 0.02, "{band}: {area}");
        }
    }

    #[test]
    fn a_different_value_is_found_and_rounding_is_not() {
        let expected = window();
        let mut stored: Vec<f32> = expected.iter().map(|&value| value as f32).collect();
        assert_eq!(first_difference(Dtype::F32, &stored, &expected), None);
        let rounded: Vec<f32> = stored.iter().map(|&value| half::bf16::from_f32(value).to_f32()).collect();
        assert_eq!(first_difference(Dtype::BF16, &rounded, &expected), None);
        assert!(first_difference(Dtype::F32, &rounded, &expected).is_some());
        stored[7] += 1e-4;
        assert_eq!(first_difference(Dtype::F32, &stored, &expected), Some(7));
    }
}
