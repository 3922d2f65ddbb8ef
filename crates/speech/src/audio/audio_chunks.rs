//! A file that is read piece by piece.

use std::path::{Path, PathBuf};

use super::channels::grow;
use super::decoder::{Decoder, DurationLimit, no_memory, whole};
use super::{AudioChange, BLOCK, Conversion, ResampleStream, check_rate};
use crate::{Error, Result};

/// [`crate::read_audio_as`] in pieces, in memory that does not grow with the length of the file.
///
/// All pieces together are the samples that would be read at once. What can only be known at the end (a truncated file, a wrong MD5)
/// is an error after the pieces that were fine; nothing comes after an error.
///
/// ```no_run
/// let conversion = speech::Conversion { resample: true, ..Default::default() };
/// for piece in speech::AudioChunks::open("hour.flac".as_ref(), 16_000, &conversion)? {
///     println!("{} samples", piece?.len());
/// }
/// # Ok::<(), speech::Error>(())
/// ```
pub struct AudioChunks {
    path: PathBuf,
    /// None when nothing is left to be read.
    decoder: Option<Decoder>,
    /// None where nothing is resampled, and after the end.
    resampling: Option<ResampleStream>,
    changes: Vec<AudioChange>,
}

impl AudioChunks {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// Those of [`crate::read_audio_as`] that can be told from the header.
    pub fn open(path: &Path, sample_rate: u32, conversion: &Conversion) -> Result<Self> {
        let decoder = Decoder::new(path, whole(path)?, conversion.channel, DurationLimit::None, BLOCK)?;
        let mut changes: Vec<AudioChange> = decoder.change.into_iter().collect();
        let found = decoder.sample_rate;
        let mut resampling = None;
        if found != sample_rate {
            if !conversion.resample {
                return Err(Error::FileRate { path: path.into(), expected: sample_rate, found });
            }
            check_rate(path, found)?;
            changes.push(AudioChange::Resampled { from: found, to: sample_rate });
            resampling = Some(ResampleStream::new(found, sample_rate)?);
        }
        Ok(Self { path: path.into(), decoder: Some(decoder), resampling, changes })
    }

    /// What is done to the file.
    pub fn changes(&self) -> &[AudioChange] {
        &self.changes
    }

    /// Reads until there are more than `most` samples, or to the end.
    ///
    /// # Errors
    /// Those of the pieces; [`Error::Memory`] if the samples do not fit.
    pub fn read_up_to(&mut self, most: usize) -> Result<Vec<f32>> {
        let mut samples = Vec::new();
        while samples.len() <= most
            && let Some(piece) = self.next()
        {
            let piece = piece?;
            grow(&mut samples, piece.len()).map_err(|found| no_memory(&self.path, found))?;
            samples.extend(piece);
        }
        Ok(samples)
    }

    fn piece(&mut self) -> Result<Option<Vec<f32>>> {
        while let Some(decoder) = &mut self.decoder {
            let more = decoder.read(&self.path)?;
            let mut samples = decoder.take();
            if let Some(resampling) = &mut self.resampling {
                let own = std::mem::take(&mut samples);
                resampling.push(&own, &mut samples)?;
            }
            if !more {
                self.decoder = None;
                if let Some(resampling) = self.resampling.take() {
                    resampling.finish(&mut samples)?;
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
        let piece = self.piece();
        if piece.is_err() {
            self.decoder = None;
        }
        piece.transpose()
    }
}
