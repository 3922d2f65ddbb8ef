//! Another sample rate, through rubato.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler};

use super::{Audio, RATES};
use crate::features::setting;
use crate::{Error, Result};

/// Samples that are transformed at a time, at least.
const CHUNK: usize = 1024;

/// The same sound at another sample rate.
///
/// Frequencies above half of the lower rate are cut off; the beginning stays where it is, and the length is
/// `ceil(n * to / from)`.
///
/// # Errors
/// A rate, old or new, that is not from 1000 to 768,000 Hz; no sample; a sample that is no number.
///
/// Cost: O(n log n) time; memory for the result and for transforms of up to a second.
pub fn resample(audio: &Audio, sample_rate: u32) -> Result<Audio> {
    for rate in [audio.sample_rate, sample_rate] {
        if !RATES.contains(&rate) {
            return Err(setting("sample_rate", "1000 to 768000", rate));
        }
    }
    super::check_samples(&audio.samples)?;
    if audio.samples.is_empty() {
        return Err(Error::EmptySignal);
    }
    if audio.sample_rate == sample_rate {
        return Ok(audio.clone());
    }
    let failed = |error: &dyn std::fmt::Display| Error::Resampling(error.to_string());
    let (from, to) = (audio.sample_rate as usize, sample_rate as usize);
    // The fewest samples that last as long as a whole number of new ones, an even number of times: the filter delays by half of its
    // length, which is whole then at both rates.
    let fewest = from / gcd(from, to);
    let chunk = fewest * CHUNK.div_ceil(2 * fewest) * 2;
    let mut resampler = Fft::<f32>::new(from, to, chunk, 1, FixedSync::Both).map_err(|e| failed(&e))?;
    let length = audio.samples.len();
    let input = InterleavedSlice::new(&audio.samples, 1, length).map_err(|e| failed(&e))?;
    let samples = resampler.process_all(&input, length, None).map_err(|e| failed(&e))?.take_data();
    Ok(Audio { samples, sample_rate })
}

/// Greatest common divisor (Euclid).
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
