//! FLAC, decoded by claxon.

use std::io::{BufReader, ErrorKind};
use std::path::Path;

use super::channels::Mono;
use super::part::Part;
use super::{format_error, full_scale};
use crate::{Error, Result};

const EXPECTED: &str = "a well-formed FLAC file";

/// A FLAC file whose header has been read.
pub(super) struct Reader {
    frames: claxon::FlacReader<BufReader<Part>>,
    /// MD5 of the samples so far.
    sum: md5::Context,
    buffer: Vec<i32>,
    bytes: Vec<u8>,
}

pub(super) fn open(path: &Path, file: BufReader<Part>) -> Result<Reader> {
    let frames = claxon::FlacReader::new(file).map_err(|e| format_error(path, EXPECTED, e))?;
    Ok(Reader { frames, sum: md5::Context::new(), buffer: Vec::new(), bytes: Vec::new() })
}

impl Reader {
    pub fn info(&self) -> claxon::metadata::StreamInfo {
        self.frames.streaminfo()
    }
}

fn too_many(path: &Path, promised: u64, found: u64) -> Error {
    let found = format!("at least {found} instead of {promised}");
    format_error(path, "as many samples as the FLAC header says", found)
}

/// Decodes the next frame; false after the last, when the MD5 of all is that of the header, where it has one.
pub(super) fn read(path: &Path, reader: &mut Reader, to: &mut Mono) -> Result<bool> {
    let info = reader.info();
    let (said, scale) = (info.md5sum, full_scale(info.bits_per_sample));
    let bytes_each = info.bits_per_sample.div_ceil(8) as usize;
    let Reader { frames, sum, buffer, bytes } = reader;
    let ended = match frames.blocks().read_next_or_eof(std::mem::take(buffer)) {
        Ok(Some(block)) => {
            let channels = block.channels();
            for index in 0..block.duration() {
                for channel in 0..channels {
                    to.push(f64::from(block.sample(channel, index)) * scale);
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
    match (ended, info.samples) {
        (Err(claxon::Error::IoError(source)), _) if source.kind() != ErrorKind::UnexpectedEof => {
            Err(Error::Io { path: path.into(), source })
        }
        (Err(claxon::Error::IoError(_)) | Ok(()), Some(promised)) if found < promised => {
            Err(Error::Truncated { path: path.into(), expected: promised, found })
        }
        (Err(e), _) => Err(format_error(path, EXPECTED, e)),
        (Ok(()), _) => {
            let sum = sum.clone().finalize();
            if said != [0; 16] && said != sum.0 && found > 0 {
                let expected = format!("{:x}", md5::Digest(said));
                return Err(Error::Md5 { path: path.into(), expected, found: format!("{sum:x}") });
            }
            Ok(false)
        }
    }
}
