//! FLAC, decoded by claxon.

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::Path;

use super::channels::Mono;
use super::{format_error, full_scale};
use crate::{Error, Result};

const EXPECTED: &str = "a well-formed FLAC file";

/// A FLAC file whose header has been read.
pub(super) type Reader = claxon::FlacReader<BufReader<File>>;

pub(super) fn open(path: &Path, file: BufReader<File>) -> Result<Reader> {
    claxon::FlacReader::new(file).map_err(|e| format_error(path, EXPECTED, e))
}

/// Decodes the samples and compares their MD5 with the header's, where it has one.
pub(super) fn read(path: &Path, mut reader: Reader, mut to: Mono) -> Result<Vec<f32>> {
    let info = reader.streaminfo();
    let scale = full_scale(info.bits_per_sample);
    let (said, mut sum) = (info.md5sum, md5::Context::new());
    let bytes_each = info.bits_per_sample.div_ceil(8) as usize;
    let mut frames = reader.blocks();
    let (mut buffer, mut bytes) = (Vec::new(), Vec::new());
    let ended = loop {
        match frames.read_next_or_eof(buffer) {
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
                    sum.consume(&bytes);
                }
                buffer = block.into_buffer();
            }
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    let found = to.samples.len() as u64;
    match (ended, info.samples) {
        (Err(claxon::Error::IoError(source)), _) if source.kind() != ErrorKind::UnexpectedEof => {
            Err(Error::Io { path: path.into(), source })
        }
        (Err(claxon::Error::IoError(_)) | Ok(()), Some(promised)) if found < promised => {
            Err(Error::Truncated { path: path.into(), expected: promised, found })
        }
        (Err(e), _) => Err(format_error(path, EXPECTED, e)),
        (Ok(()), Some(promised)) if found > promised => Err(format_error(
            path,
            "as many samples as the FLAC header says",
            format!("{found} instead of {promised}"),
        )),
        (Ok(()), _) => {
            let found = sum.finalize();
            if said != [0; 16] && said != found.0 && !to.samples.is_empty() {
                let expected = format!("{:x}", md5::Digest(said));
                return Err(Error::Md5 { path: path.into(), expected, found: format!("{found:x}") });
            }
            Ok(to.samples)
        }
    }
}
