//! Decodes FLAC audio files with the crate claxon, and checks their MD5.
//!
//! symphonia is faster but less strict: it skips damaged frames, loses the last frame where other
//! bytes follow it, and rejects streams with a constant block size whose header gives a smaller
//! minimum.

use std::io::{BufReader, ErrorKind};
use std::path::Path;

use super::channels::MonoSignal;
use super::file_range::FileRange;
use super::{format_error, full_scale};
use crate::{Error, Result};

/// The expected format in error messages.
const EXPECTED: &str = "a well-formed FLAC file";

/// MD5 of a header whose encoder did not compute one.
const NO_MD5: [u8; 16] = [0; 16];

/// A FLAC file whose header has been parsed.
pub(super) struct FlacReader {
    decoder: claxon::FlacReader<BufReader<FileRange>>,
    /// MD5 of the samples so far.
    md5: md5::Context,
    /// Buffer that the decoder reuses for its blocks.
    block_buffer: Vec<i32>,
    /// Samples of a block as little-endian bytes, for the MD5.
    md5_bytes: Vec<u8>,
}

/// Parses the header.
pub(super) fn open(path: &Path, file: BufReader<FileRange>) -> Result<FlacReader> {
    let decoder = claxon::FlacReader::new(file).map_err(|error| format_error(path, EXPECTED, error))?;
    Ok(FlacReader { decoder, md5: md5::Context::new(), block_buffer: Vec::new(), md5_bytes: Vec::new() })
}

impl FlacReader {
    /// Returns the header (STREAMINFO).
    pub(super) fn info(&self) -> claxon::metadata::StreamInfo {
        self.decoder.streaminfo()
    }

    /// Decodes the next frame; false after the last.
    ///
    /// After the last frame, compares the MD5 of all samples with that of the header, if it has
    /// one.
    pub(super) fn read(&mut self, path: &Path, output: &mut MonoSignal) -> Result<bool> {
        let info = self.info();
        let (header_md5, scale) = (info.md5sum, full_scale(info.bits_per_sample));
        let sample_bytes = info.bits_per_sample.div_ceil(8) as usize;
        let FlacReader { decoder, md5, block_buffer, md5_bytes } = self;
        let outcome = match decoder.blocks().read_next_or_eof(std::mem::take(block_buffer)) {
            Ok(Some(block)) => {
                // Appends the samples of the block.
                let channels = block.channels();
                if channels == 1 {
                    output
                        .append_interleaved(block.channel(0).iter().map(|&sample| f64::from(sample) * scale));
                } else {
                    for index in 0..block.duration() {
                        output.append_interleaved(
                            (0..channels).map(|channel| f64::from(block.sample(channel, index)) * scale),
                        );
                    }
                }
                // Hashes the interleaved little-endian samples.
                if header_md5 != NO_MD5 {
                    md5_bytes.resize((block.duration() * channels) as usize * sample_bytes, 0);
                    for channel in 0..channels {
                        let offset = channel as usize * sample_bytes;
                        let slots = md5_bytes[offset..].chunks_mut(channels as usize * sample_bytes);
                        for (slot, sample) in slots.zip(block.channel(channel)) {
                            slot[..sample_bytes].copy_from_slice(&sample.to_le_bytes()[..sample_bytes]);
                        }
                    }
                    md5.consume(md5_bytes);
                }
                *block_buffer = block.into_buffer();
                // Constant frames take no bytes, so the declared number of samples is the only
                // limit.
                return match info.samples {
                    Some(declared) if output.length() > declared => {
                        Err(too_many_samples_error(path, declared, output.length()))
                    }
                    _ => Ok(true),
                };
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        // The stream has ended: the outcome decides between success, truncation and damage.
        let decoded = output.length();
        // All samples are present, which the MD5 can prove: some programs append other bytes.
        let is_complete = header_md5 != NO_MD5 && info.samples == Some(decoded) && decoded > 0;
        match (outcome, info.samples) {
            (Err(claxon::Error::IoError(source)), _) if source.kind() != ErrorKind::UnexpectedEof => {
                return Err(Error::Io { path: path.into(), source });
            }
            (Err(claxon::Error::IoError(_)) | Ok(()), Some(declared)) if decoded < declared => {
                return Err(Error::Truncated {
                    path: path.into(),
                    format: "FLAC",
                    expected: declared,
                    found: decoded,
                });
            }
            (Err(_), _) if is_complete => {}
            (Err(error), _) => return Err(format_error(path, EXPECTED, error)),
            (Ok(()), _) => {}
        }
        let digest = self.md5.clone().finalize();
        if header_md5 != NO_MD5 && header_md5 != digest.0 && decoded > 0 {
            let expected = format!("{:x}", md5::Digest(header_md5));
            return Err(Error::Md5 { path: path.into(), expected, found: format!("{digest:x}") });
        }
        Ok(false)
    }
}

fn too_many_samples_error(path: &Path, declared: u64, found: u64) -> Error {
    let count = format!("at least {found} instead of {declared}");
    format_error(path, "as many samples as the FLAC header declares", count)
}
