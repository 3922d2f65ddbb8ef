//! Decodes raw mono PCM: 16-bit little-endian samples without a header.

use std::io::{ErrorKind, Read};

use crate::{Error, Result};

/// Bytes read at a time.
const BLOCK_BYTES: usize = 1 << 16;

/// Decodes bytes to samples; chunks may end within a sample.
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
    /// First byte of an incomplete sample.
    low_byte: Option<u8>,
    /// Number of bytes so far.
    num_bytes: u64,
}

impl PcmDecoder {
    /// Appends the complete samples of `bytes`: `i / 32768` for an integer `i`.
    pub fn push(&mut self, bytes: &[u8], samples: &mut Vec<f32>) {
        let sample = |low: u8, high: u8| f32::from(i16::from_le_bytes([low, high])) / 32768.0;
        self.num_bytes += bytes.len() as u64;
        let rest = match (self.low_byte, bytes.split_first()) {
            (Some(low), Some((&high, rest))) => {
                samples.push(sample(low, high));
                rest
            }
            (None, _) => bytes,
            (Some(_), None) => return,
        };
        let (pairs, last_byte) = rest.as_chunks();
        samples.extend(pairs.iter().map(|&[low, high]| sample(low, high)));
        self.low_byte = last_byte.first().copied();
    }

    /// Ends the signal.
    ///
    /// # Errors
    /// [`Error::HalfSample`] if the signal ends within a sample.
    pub fn finish(&self) -> Result<()> {
        if self.low_byte.is_some() {
            return Err(Error::HalfSample { bytes: self.num_bytes });
        }
        Ok(())
    }
}

/// Reads raw PCM from a file, a pipe or any other reader.
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
        Self { source, pcm: PcmDecoder::default(), block: vec![0; BLOCK_BYTES] }
    }

    /// Returns the samples that the source has available; `None` at its end.
    ///
    /// Blocks until there is at least one sample, and does not wait for more.
    ///
    /// # Errors
    /// [`Error::HalfSample`] if the source ends within a sample; [`Error::RawAudio`] if it cannot
    /// be read.
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
