//! `AudioChunks`: decodes an audio file chunk by chunk, in constant memory.

use std::path::{Path, PathBuf};

use super::decoder::{DurationLimit, MonoDecoder, memory_error, open_range};
use super::sample_memory::grow;
use super::{AudioChange, Conversion, ResampleStream, SAMPLES_PER_BLOCK, check_rate};
use crate::{Error, Result};

/// [`crate::read_audio_as`] in chunks, in memory independent of the file length.
///
/// All chunks together are the samples of [`crate::read_audio_as`]. Problems that only the end of
/// the file reveals (truncation, a wrong MD5) are errors after the valid chunks; the iterator ends
/// after an error.
///
/// ```no_run
/// let conversion = speech::Conversion { resample: true, ..Default::default() };
/// for chunk in speech::AudioChunks::open("hour.flac".as_ref(), 16_000, &conversion)? {
///     println!("{} samples", chunk?.len());
/// }
/// # Ok::<(), speech::Error>(())
/// ```
pub struct AudioChunks {
    path: PathBuf,
    /// `None` after the end of the file.
    decoder: Option<MonoDecoder>,
    /// `None` where nothing is resampled, and after the end of the file.
    resampler: Option<ResampleStream>,
    changes: Vec<AudioChange>,
}

impl AudioChunks {
    /// Opens a file and parses its header.
    ///
    /// # Errors
    /// Those of [`crate::read_audio_as`] that the header reveals.
    pub fn open(path: &Path, sample_rate: u32, conversion: &Conversion) -> Result<Self> {
        let decoder = MonoDecoder::new(
            path,
            open_range(path)?,
            conversion.channel,
            DurationLimit::None,
            SAMPLES_PER_BLOCK,
        )?;
        let mut changes: Vec<AudioChange> = decoder.change.into_iter().collect();
        let rate = decoder.sample_rate;
        let mut resampler = None;
        if rate != sample_rate {
            if !conversion.resample {
                return Err(Error::FileRate { path: path.into(), expected: sample_rate, found: rate });
            }
            check_rate(path, rate)?;
            changes.push(AudioChange::Resampled { from: rate, to: sample_rate });
            resampler = Some(ResampleStream::new(rate, sample_rate)?);
        }
        Ok(Self { path: path.into(), decoder: Some(decoder), resampler, changes })
    }

    /// Returns the conversions that are applied to the file.
    pub fn changes(&self) -> &[AudioChange] {
        &self.changes
    }

    /// Reads until there are more than `max_samples` samples, or to the end.
    ///
    /// # Errors
    /// Those of the chunks; [`Error::Memory`] if the samples do not fit into memory.
    pub fn read_up_to(&mut self, max_samples: usize) -> Result<Vec<f32>> {
        let mut samples = Vec::new();
        while samples.len() <= max_samples
            && let Some(chunk) = self.next()
        {
            let chunk = chunk?;
            grow(&mut samples, chunk.len()).map_err(|shortage| memory_error(&self.path, shortage))?;
            samples.extend(chunk);
        }
        Ok(samples)
    }

    fn next_chunk(&mut self) -> Result<Option<Vec<f32>>> {
        while let Some(decoder) = &mut self.decoder {
            let has_more = decoder.read(&self.path)?;
            let mut samples = decoder.take();
            if let Some(resampler) = &mut self.resampler {
                let unresampled = std::mem::take(&mut samples);
                resampler.push(&unresampled, &mut samples)?;
            }
            if !has_more {
                self.decoder = None;
                if let Some(resampler) = self.resampler.take() {
                    resampler.finish(&mut samples)?;
                }
            }
            if !samples.is_empty() {
                return Ok(Some(samples));
            }
        }
        Ok(None)
    }
}

impl Iterator for AudioChunks {
    type Item = Result<Vec<f32>>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = self.next_chunk();
        if chunk.is_err() {
            self.decoder = None;
        }
        chunk.transpose()
    }
}
