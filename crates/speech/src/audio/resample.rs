//! Resamples audio signals and streams, with the crate rubato.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Async, FixedAsync, Indexing, Resampler, SincInterpolationParameters};

use super::{Audio, SAMPLE_RATES};
use crate::features::setting_error;
use crate::{Error, Result};

/// Samples filtered at a time.
const CHUNK_SAMPLES: usize = 1024;

/// Resamples a signal to another sample rate.
///
/// A windowed sinc of 256 samples (Blackman and Harris, squared) with cubic interpolation between
/// its points removes frequencies above half of the lower rate. The start of the signal keeps its
/// position, and the length is `ceil(n * to / from)`.
///
/// # Errors
/// An old or new rate outside 1000 to 768,000 Hz; an empty signal; a sample that is NaN or out of
/// range.
///
/// Cost: O(n) time; memory for the result.
pub fn resample(audio: &Audio, sample_rate: u32) -> Result<Audio> {
    let mut stream = ResampleStream::new(audio.sample_rate, sample_rate)?;
    super::check_samples(0, &audio.samples)?;
    if audio.samples.is_empty() {
        return Err(Error::EmptySignal);
    }
    let mut samples = Vec::with_capacity(stream.output_length(audio.samples.len() as u64) as usize);
    stream.push(&audio.samples, &mut samples)?;
    stream.finish(&mut samples)?;
    Ok(Audio { samples, sample_rate })
}

/// Streaming [`resample`]: the same bits, independent of the chunking.
///
/// Samples are filtered 1024 at a time; the output is delayed by that and by half the filter, 128
/// samples.
pub struct ResampleStream {
    /// `None` where both rates are the same.
    resampler: Option<Async<f32>>,
    input_rate: usize,
    output_rate: usize,
    /// Samples of the next chunk.
    pending_samples: Vec<f32>,
    /// Output samples before the start of the signal.
    remaining_delay: usize,
    /// Input samples so far.
    num_input: u64,
    /// Output samples so far, without the delay.
    num_output: u64,
}

impl ResampleStream {
    /// A stream from one sample rate to another.
    ///
    /// # Errors
    /// A rate outside 1000 to 768,000 Hz.
    pub fn new(from: u32, to: u32) -> Result<Self> {
        for rate in [from, to] {
            if !SAMPLE_RATES.contains(&rate) {
                return Err(setting_error("sample_rate", "1000 to 768000", rate));
            }
        }
        let (input_rate, output_rate) = (from as usize, to as usize);
        let mut stream = Self {
            resampler: None,
            input_rate,
            output_rate,
            pending_samples: Vec::new(),
            remaining_delay: 0,
            num_input: 0,
            num_output: 0,
        };
        if input_rate == output_rate {
            return Ok(stream);
        }
        let (ratio, sinc) = (output_rate as f64 / input_rate as f64, SincInterpolationParameters::default());
        let resampler = Async::<f32>::new_sinc(ratio, 1.0, &sinc, CHUNK_SAMPLES, 1, FixedAsync::Input);
        stream.resampler = Some(resampler.map_err(|error| rubato_error(&error))?);
        // Output sample n lies n + 1 output steps after the start of the filter, half of which
        // precedes the first input sample. With this much leading silence, input and output start
        // together.
        let half_filter = sinc.sinc_len / 2;
        let first_input = half_filter.next_multiple_of(input_rate / gcd(input_rate, output_rate));
        stream.pending_samples.resize(first_input - half_filter, 0.0);
        stream.remaining_delay = first_input * output_rate / input_rate - 1;
        Ok(stream)
    }

    /// Resamples `samples` and appends the output to `out`.
    ///
    /// # Errors
    /// [`Error::Resampling`] if rubato fails, which indicates a bug in this crate.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<()> {
        self.num_input += samples.len() as u64;
        if self.resampler.is_none() {
            self.num_output += samples.len() as u64;
            out.extend_from_slice(samples);
            return Ok(());
        }
        let mut remaining = samples;
        while self.pending_samples.len() + remaining.len() >= CHUNK_SAMPLES {
            // The leading silence may be longer than a chunk.
            let (chunk_end, later_samples) =
                remaining.split_at(CHUNK_SAMPLES.saturating_sub(self.pending_samples.len()));
            self.pending_samples.extend_from_slice(chunk_end);
            remaining = later_samples;
            self.filter_chunk(CHUNK_SAMPLES, out)?;
        }
        self.pending_samples.extend_from_slice(remaining);
        Ok(())
    }

    /// Ends the signal and appends the remaining output.
    ///
    /// # Errors
    /// Those of [`ResampleStream::push`].
    pub fn finish(mut self, out: &mut Vec<f32>) -> Result<()> {
        let expected = self.output_length(self.num_input);
        while self.num_output < expected {
            self.filter_chunk(self.pending_samples.len().min(CHUNK_SAMPLES), out)?;
        }
        out.truncate(out.len() - (self.num_output - expected) as usize);
        Ok(())
    }

    /// Returns the output length for `samples` input samples: `ceil(n * to / from)`.
    fn output_length(&self, samples: u64) -> u64 {
        (samples * self.output_rate as u64).div_ceil(self.input_rate as u64)
    }

    /// Filters the first `count` pending samples, padded with zeros to a chunk.
    fn filter_chunk(&mut self, count: usize, out: &mut Vec<f32>) -> Result<()> {
        let Some(resampler) = &mut self.resampler else { return Ok(()) };
        let input = InterleavedSlice::new(&self.pending_samples, 1, self.pending_samples.len())
            .map_err(|error| rubato_error(&error))?;
        let indexing = Indexing::new().partial_len(count);
        let output =
            resampler.process(&input, Some(&indexing)).map_err(|error| rubato_error(&error))?.take_data();
        self.pending_samples.drain(..count);
        let skipped = self.remaining_delay.min(output.len());
        self.remaining_delay -= skipped;
        self.num_output += (output.len() - skipped) as u64;
        out.extend_from_slice(&output[skipped..]);
        Ok(())
    }
}

fn rubato_error(error: &dyn std::fmt::Display) -> Error {
    Error::Resampling(error.to_string())
}

/// Greatest common divisor (Euclid).
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
