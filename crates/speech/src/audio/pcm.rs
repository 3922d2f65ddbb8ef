//! Raw sound: signed 16-bit little-endian samples of one channel, without a header.

use std::io::{ErrorKind, Read};

use crate::{Error, Result};

/// Bytes that are read at a time.
const BLOCK: usize = 1 << 16;

/// Turns bytes into samples, however they are cut: a piece may end in the middle of a sample.
///
/// ```
/// use speech::PcmDecoder;
///
/// let (mut pcm, mut samples) = (PcmDecoder::default(), Vec::new());
/// pcm.push(&[0x00, 0x40, 0xff], &mut samples);
/// pcm.push(&[0xff], &mut samples);
/// pcm.finish()?;
/// assert_eq!(samples, [0.5, -1.0 / 32768.0]);
/// # Ok::<(), speech::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PcmDecoder {
    /// First half of the next sample.
    half: Option<u8>,
    bytes: u64,
}

impl PcmDecoder {
    /// Takes bytes and appends the samples that are complete: `i / 32768` for an integer `i`.
    pub fn push(&mut self, bytes: &[u8], samples: &mut Vec<f32>) {
        let sample = |low: u8, high: u8| f32::from(i16::from_le_bytes([low, high])) / 32768.0;
        self.bytes += bytes.len() as u64;
        let rest = match (self.half, bytes.split_first()) {
            (Some(low), Some((&high, rest))) => {
                samples.push(sample(low, high));
                rest
            }
            (None, _) => bytes,
            (Some(_), None) => return,
        };
        let (pairs, half) = rest.as_chunks();
        samples.extend(pairs.iter().map(|&[low, high]| sample(low, high)));
        self.half = half.first().copied();
    }

    /// Ends the sound.
    ///
    /// # Errors
    /// [`Error::HalfSample`] if half of a sample is left.
    pub fn finish(&self) -> Result<()> {
        if self.half.is_some() {
            return Err(Error::HalfSample { bytes: self.bytes });
        }
        Ok(())
    }
}

/// [`PcmDecoder`] from a file, a pipe or anything else that can be read.
///
/// ```
/// let mut reader = speech::PcmReader::new(&[0u8, 64, 0, 192][..]);
/// assert_eq!(reader.read_chunk()?, Some(vec![0.5, -0.5]));
/// assert_eq!(reader.read_chunk()?, None);
/// # Ok::<(), speech::Error>(())
/// ```
#[derive(Debug)]
pub struct PcmReader<R> {
    source: R,
    pcm: PcmDecoder,
    block: Vec<u8>,
}

impl<R: Read> PcmReader<R> {
    /// Reads from a source.
    pub fn new(source: R) -> Self {
        Self { source, pcm: PcmDecoder::default(), block: vec![0; BLOCK] }
    }

    /// The samples of what the source has now: it waits where there is nothing, and gives what there is without waiting for more.
    /// `None` at the end.
    ///
    /// # Errors
    /// [`Error::HalfSample`] if the source ends in the middle of a sample; [`Error::RawAudio`] if it cannot be read.
    pub fn read_chunk(&mut self) -> Result<Option<Vec<f32>>> {
        loop {
            let count = match self.source.read(&mut self.block) {
                Ok(0) => return self.pcm.finish().map(|()| None),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => return Err(Error::RawAudio { source }),
            };
            let mut samples = Vec::with_capacity(count / 2 + 1);
            self.pcm.push(&self.block[..count], &mut samples);
            if !samples.is_empty() {
                return Ok(Some(samples));
            }
        }
    }
}
