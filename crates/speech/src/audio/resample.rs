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
    let mut stream = ResampleStream::new(audio.sample_rate, sample_rate)?;
    super::check_samples(0, &audio.samples)?;
    if audio.samples.is_empty() {
        return Err(Error::EmptySignal);
    }
    let mut samples = Vec::with_capacity(stream.promised(audio.samples.len() as u64) as usize);
    stream.push(&audio.samples, &mut samples)?;
    stream.finish(&mut samples)?;
    Ok(Audio { samples, sample_rate })
}

/// [`resample`] of sound that is still arriving: the same bits, however it is cut.
///
/// Samples are filtered 1024 at a time and come out that much, and half a filter of 128, later.
pub struct ResampleStream {
    /// None where both rates are the same.
    resampler: Option<Async<f32>>,
    from: usize,
    to: usize,
    /// Samples for the next chunk.
    waiting: Vec<f32>,
    /// New samples that lie before the start of the sound.
    delay: usize,
    taken: u64,
    given: u64,
}

impl ResampleStream {
    /// From one rate to another.
    ///
    /// # Errors
    /// A rate that is not from 1000 to 768,000 Hz.
    pub fn new(from: u32, to: u32) -> Result<Self> {
        for rate in [from, to] {
            if !RATES.contains(&rate) {
                return Err(setting("sample_rate", "1000 to 768000", rate));
            }
        }
        let (from, to) = (from as usize, to as usize);
        let mut stream =
            Self { resampler: None, from, to, waiting: Vec::new(), delay: 0, taken: 0, given: 0 };
        if from == to {
            return Ok(stream);
        }
        let (ratio, filter) = (to as f64 / from as f64, SincInterpolationParameters::default());
        let resampler = Async::<f32>::new_sinc(ratio, 1.0, &filter, CHUNK, 1, FixedAsync::Input);
        stream.resampler = Some(resampler.map_err(|e| failed(&e))?);
        // New sample n lies n + 1 of its steps after the start of the filter, of which half lies before the first old one: with so
        // much silence before it, both begin at the same time.
        let half = filter.sinc_len / 2;
        let start = half.next_multiple_of(from / gcd(from, to));
        stream.waiting.resize(start - half, 0.0);
        stream.delay = start * to / from - 1;
        Ok(stream)
    }

    /// Takes samples and appends new ones.
    ///
    /// # Errors
    /// [`Error::Resampling`] if the library refuses; a sign of a bug here.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<()> {
        self.taken += samples.len() as u64;
        if self.resampler.is_none() {
            self.given += samples.len() as u64;
            out.extend_from_slice(samples);
            return Ok(());
        }
        let mut rest = samples;
        while self.waiting.len() + rest.len() >= CHUNK {
            // The silence before the sound may be longer than a chunk.
            let (some, later) = rest.split_at(CHUNK.saturating_sub(self.waiting.len()));
            self.waiting.extend_from_slice(some);
            rest = later;
            self.filter(CHUNK, out)?;
        }
        self.waiting.extend_from_slice(rest);
        Ok(())
    }

    /// Ends the sound and appends what is left of it.
    ///
    /// # Errors
    /// As [`ResampleStream::push`].
    pub fn finish(mut self, out: &mut Vec<f32>) -> Result<()> {
        let promised = self.promised(self.taken);
        while self.given < promised {
            self.filter(self.waiting.len().min(CHUNK), out)?;
        }
        out.truncate(out.len() - (self.given - promised) as usize);
        Ok(())
    }

    /// How many new samples so many old ones become: `ceil(n * to / from)`.
    fn promised(&self, samples: u64) -> u64 {
        (samples * self.to as u64).div_ceil(self.from as u64)
    }

    /// Filters the first so many samples that wait, and silence where they are no chunk.
    fn filter(&mut self, count: usize, out: &mut Vec<f32>) -> Result<()> {
        let Some(resampler) = &mut self.resampler else { return Ok(()) };
        let input = InterleavedSlice::new(&self.waiting, 1, self.waiting.len()).map_err(|e| failed(&e))?;
        let part = Indexing::new().partial_len(count);
        let new = resampler.process(&input, Some(&part)).map_err(|e| failed(&e))?.take_data();
        self.waiting.drain(..count);
        let early = self.delay.min(new.len());
        self.delay -= early;
        self.given += (new.len() - early) as u64;
        out.extend_from_slice(&new[early..]);
        Ok(())
    }
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    Error::Resampling(error.to_string())
}

/// Greatest common divisor (Euclid).
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
