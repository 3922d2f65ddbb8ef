//! FLAC, decoded by claxon.
//!
//! symphonia is faster, but less strict: it passes over damaged frames, loses the last frame where other bytes follow it, and takes
//! no stream of blocks of one size whose header gives a smaller least size.

use std::io::{BufReader, ErrorKind};
use std::path::Path;

use super::channels::Mono;
use super::file_range::FileRange;
use super::{format_error, full_scale};
use crate::{Error, Result};

const EXPECTED: &str = "a well-formed FLAC file";

/// A FLAC file whose header has been read.
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

    /// Decodes the next frame; false after the last, when the MD5 of all is that of the header, where it has one.
    pub fn read(&mut self, path: &Path, to: &mut Mono) -> Result<bool> {
        let info = self.info();
        let (said, scale) = (info.md5sum, full_scale(info.bits_per_sample));
        let bytes_each = info.bits_per_sample.div_ceil(8) as usize;
        let Reader { frames, sum, buffer, bytes } = self;
        let ended = match frames.blocks().read_next_or_eof(std::mem::take(buffer)) {
            Ok(Some(block)) => {
                let channels = block.channels();
                if channels == 1 {
                    to.extend(block.channel(0).iter().map(|&sample| f64::from(sample) * scale));
                } else {
                    for index in 0..block.duration() {
                        to.extend((0..channels).map(|c| f64::from(block.sample(c, index)) * scale));
                    }
                }
                // Zeros are what an encoder writes that did not count.
                if said != [0; 16] {
                    bytes.resize((block.duration() * channels) as usize * bytes_each, 0);
                    for channel in 0..channels {
                        let first = channel as usize * bytes_each;
                        let places = bytes[first..].chunks_mut(channels as usize * bytes_each);
                        for (place, sample) in places.zip(block.channel(channel)) {
                            place[..bytes_each].copy_from_slice(&sample.to_le_bytes()[..bytes_each]);
                        }
                    }
                    sum.consume(bytes);
                }
                *buffer = block.into_buffer();
                // Frames of one value take no room: what they claim is not believed beyond the promise.
                return match info.samples {
                    Some(promised) if to.length() > promised => Err(too_many(path, promised, to.length())),
                    _ => Ok(true),
                };
            }
            Ok(None) => Ok(()),
            Err(e) => Err(e),
        };
        let found = to.length();
        // All samples are there, and their MD5 can prove it: some programs leave other bytes behind the last frame.
        let is_complete = said != [0; 16] && info.samples == Some(found) && found > 0;
        match (ended, info.samples) {
            (Err(claxon::Error::IoError(source)), _) if source.kind() != ErrorKind::UnexpectedEof => {
                return Err(Error::Io { path: path.into(), source });
            }
            (Err(claxon::Error::IoError(_)) | Ok(()), Some(promised)) if found < promised => {
                return Err(Error::Truncated {
                    path: path.into(),
                    format: "FLAC",
                    expected: promised,
                    found,
                });
            }
            (Err(_), _) if is_complete => {}
            (Err(e), _) => return Err(format_error(path, EXPECTED, e)),
            (Ok(()), _) => {}
        }
        let sum = self.sum.clone().finalize();
        if said != [0; 16] && said != sum.0 && found > 0 {
            let expected = format!("{:x}", md5::Digest(said));
            return Err(Error::Md5 { path: path.into(), expected, found: format!("{sum:x}") });
        }
        Ok(false)
    }
}

fn too_many(path: &Path, promised: u64, found: u64) -> Error {
    let found = format!("at least {found} instead of {promised}");
    format_error(path, "as many samples as the FLAC header says", found)
}
