//! Another sample rate, through rubato.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Async, FixedAsync, Indexing, Resampler, SincInterpolationParameters};

use super::{Audio, RATES};
use crate::features::setting;
use crate::{Error, Result};

/// Samples that are filtered at a time.
const CHUNK: usize = 1024;

/// The same sound at another sample rate.
///
/// A windowed sinc of 256 samples (Blackman and Harris, squared), between whose points is interpolated with cubics: frequencies
/// above half of the lower rate are cut off. The beginning stays where it is, and the length is `ceil(n * to / from)`.
///
/// # Errors
/// A rate, old or new, that is not from 1000 to 768,000 Hz; no sample; a sample that is no number.
///
/// Cost: O(n) time; memory for the result.
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
    let (ratio, filter) = (to as f64 / from as f64, SincInterpolationParameters::default());
    let resampler = Async::<f32>::new_sinc(ratio, 1.0, &filter, CHUNK, 1, FixedAsync::Input);
    let mut resampler = resampler.map_err(|e| failed(&e))?;
    // New sample n lies n + 1 of its steps after the start of the filter, of which half lies before the first old one: with so much
    // silence before it, both begin at the same time.
    let half = filter.sinc_len / 2;
    let start = half.next_multiple_of(from / gcd(from, to));
    let padded = [&vec![0.0; start - half], audio.samples.as_slice()].concat();
    let input = InterleavedSlice::new(&padded, 1, padded.len()).map_err(|e| failed(&e))?;
    let delay = start * to / from - 1;
    let (wanted, mut at) = (delay + (audio.samples.len() * to).div_ceil(from), 0);
    let mut samples = Vec::with_capacity(wanted);
    while samples.len() < wanted {
        let count = (padded.len() - at).min(CHUNK);
        let part = Indexing::new().input_offset(at).partial_len(count);
        samples.extend(resampler.process(&input, Some(&part)).map_err(|e| failed(&e))?.take_data());
        at += count;
    }
    Ok(Audio { samples: samples[delay..wanted].to_vec(), sample_rate })
}

/// Greatest common divisor (Euclid).
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
