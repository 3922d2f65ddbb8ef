//! Reads FLAC files, which the crate claxon decodes.
//!
//! symphonia is faster but less strict: it skips damaged frames, loses the last frame where other
//! bytes follow it, and rejects streams with a constant block size whose header gives a smaller
//! minimum.

use std::io::{BufReader, ErrorKind};
use std::path::Path;

use super::channels::Mono;
use super::file_range::FileRange;
use super::{format_error, full_scale};
use crate::{Error, Result};

const EXPECTED: &str = "a well-formed FLAC file";

/// A FLAC file whose header has been parsed.
pub(super) struct Reader {
    frames: claxon::FlacReader<BufReader<FileRange>>,
    /// MD5 of the samples so far.
    sum: md5::Context,
    buffer: Vec<i32>,
    bytes: Vec<u8>,
}

pub(super) fn open(path: &Path, file: BufReader<FileRange>) -> Result<Reader> {
    let frames = claxon::FlacReader::new(file).map_err(|e| format_error(path, EXPECTED, e))?;
    Ok(Reader { frames, sum: md5::Context::new(), buffer: Vec::new(), bytes: Vec::new() })
}

impl Reader {
    pub fn info(&self) -> claxon::metadata::StreamInfo {
        self.frames.streaminfo()
    }

    /// Decodes the next frame; false after the last.
    ///
    /// After the last frame, compares the MD5 of all samples with that of the header, if it has
    /// one.
    pub fn read(&mut self, path: &Path, to: &mut Mono) -> Result<bool> {
        let info = self.info();
        let (header_md5, scale) = (info.md5sum, full_scale(info.bits_per_sample));
        let sample_bytes = info.bits_per_sample.div_ceil(8) as usize;
        let Reader { frames, sum, buffer, bytes } = self;
        let outcome = match frames.blocks().read_next_or_eof(std::mem::take(buffer)) {
            Ok(Some(block)) => {
                let channels = block.channels();
                if channels == 1 {
                    to.extend(block.channel(0).iter().map(|&sample| f64::from(sample) * scale));
                } else {
                    for index in 0..block.duration() {
                        to.extend((0..channels).map(|c| f64::from(block.sample(c, index)) * scale));
                    }
                }
                // Encoders write zeros if they did not compute an MD5.
                if header_md5 != [0; 16] {
                    bytes.resize((block.duration() * channels) as usize * sample_bytes, 0);
                    for channel in 0..channels {
                        let first = channel as usize * sample_bytes;
                        let places = bytes[first..].chunks_mut(channels as usize * sample_bytes);
                        for (place, sample) in places.zip(block.channel(channel)) {
                            place[..sample_bytes].copy_from_slice(&sample.to_le_bytes()[..sample_bytes]);
                        }
                    }
                    sum.consume(bytes);
                }
                *buffer = block.into_buffer();
                // Constant frames take no bytes, so the declared number of samples is the only
                // limit.
                return match info.samples {
                    Some(declared) if to.length() > declared => Err(too_many(path, declared, to.length())),
                    _ => Ok(true),
                };
            }
            Ok(None) => Ok(()),
            Err(e) => Err(e),
        };
        let decoded = to.length();
        // All samples are present, which the MD5 can prove: some programs append other bytes.
        let is_complete = header_md5 != [0; 16] && info.samples == Some(decoded) && decoded > 0;
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
            (Err(e), _) => return Err(format_error(path, EXPECTED, e)),
            (Ok(()), _) => {}
        }
        let sum = self.sum.clone().finalize();
        if header_md5 != [0; 16] && header_md5 != sum.0 && decoded > 0 {
            let expected = format!("{:x}", md5::Digest(header_md5));
            return Err(Error::Md5 { path: path.into(), expected, found: format!("{sum:x}") });
        }
        Ok(false)
    }
}

fn too_many(path: &Path, declared: u64, found: u64) -> Error {
    let count = format!("at least {found} instead of {declared}");
    format_error(path, "as many samples as the FLAC header declares", count)
}
