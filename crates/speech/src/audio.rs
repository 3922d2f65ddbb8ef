//! Mono sound files: WAV through hound, FLAC through claxon.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::path::Path;

use crate::{Error, Result, packed};

/// A mono signal.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    /// Samples in `[-1, 1)`; a 16-bit sample `i` is exactly `i / 32768`.
    pub samples: Vec<f32>,
    /// Samples per second.
    pub sample_rate: u32,
}

impl Audio {
    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.sample_rate)
    }

    /// CRC-32 (IEEE) of the samples as little-endian 16-bit integers: the `crc32` of a manifest.
    ///
    /// Exact for audio that came from 16 bits or fewer; wider samples are rounded and cut to 16 bits first.
    pub fn crc32(&self) -> u32 {
        let bytes = |&x: &f32| ((x * 32768.0).round().clamp(-32768.0, 32767.0) as i16).to_le_bytes();
        crc32fast::hash(&self.samples.iter().flat_map(bytes).collect::<Vec<u8>>())
    }
}

/// Reads a whole WAV (8, 16, 24 or 32-bit integers, 32-bit floats) or FLAC file; the first bytes decide which, not the name.
///
/// # Errors
/// Missing or unreadable file, neither WAV nor FLAC, more than one channel, no sample, or fewer samples than the header
/// promises. Each names the path.
///
/// Cost: O(samples).
///
/// ```no_run
/// let audio = speech::read_audio("hello.flac".as_ref())?;
/// println!("{:.2} s at {} Hz", audio.seconds(), audio.sample_rate);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn read_audio(path: &Path) -> Result<Audio> {
    let io = |source| Error::Io { path: path.into(), source };
    let file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let mut file = BufReader::new(file);
    let mut magic = [0; 4];
    let start = match file.read_exact(&mut magic) {
        Ok(()) => &magic[..],
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => &[],
        Err(e) => return Err(io(e)),
    };
    file.rewind().map_err(io)?;
    let audio = match start {
        b"RIFF" => read_wav(path, file, bytes)?,
        b"fLaC" => read_flac(path, file, bytes)?,
        _ => {
            let found = if bytes < 4 {
                format!("a file of {bytes} bytes")
            } else {
                format!("a file that starts with {:?}", String::from_utf8_lossy(&magic))
            };
            return Err(format_error(path, "a WAV or FLAC file", found));
        }
    };
    match (audio.sample_rate, audio.samples.len()) {
        (0, _) => Err(format_error(path, "a sample rate above 0", "0 Hz")),
        (_, 0) => Err(Error::EmptyAudio { path: path.into() }),
        _ => Ok(audio),
    }
}

/// Reads `count` samples of a file from sample `start` on.
///
/// Made for files that pack many recordings: the decoded file stays in a process-wide cache of bounded size, so that the
/// next segment costs a copy. A file that changes on disk is read again.
///
/// # Errors
/// Those of [`read_audio`]; a segment that is empty or reaches over the end of the file.
pub fn read_segment(path: &Path, start: u64, count: u64) -> Result<Audio> {
    let whole = packed::read(path)?;
    let samples = segment(path, &whole, start, count)?.to_vec();
    Ok(Audio { samples, sample_rate: whole.sample_rate })
}

/// The samples `[start, start + count)`, checked.
pub(crate) fn segment<'a>(path: &Path, whole: &'a Audio, start: u64, count: u64) -> Result<&'a [f32]> {
    let found = whole.samples.len() as u64;
    match start.checked_add(count) {
        Some(end) if count > 0 && end <= found => Ok(&whole.samples[start as usize..end as usize]),
        _ => Err(Error::Segment { path: path.into(), start, count, found }),
    }
}

fn read_wav(path: &Path, file: BufReader<File>, bytes: u64) -> Result<Audio> {
    let expected = "a WAV file of 8, 16, 24 or 32-bit integers or 32-bit floats";
    let mut reader = hound::WavReader::new(file).map_err(|e| format_error(path, expected, e))?;
    let spec = reader.spec();
    mono(path, u32::from(spec.channels))?;
    let promised = u64::from(reader.len());
    // A header may promise anything; the file's size bounds what can come.
    let mut samples = Vec::with_capacity(promised.min(bytes) as usize);
    let failed = match spec.sample_format {
        hound::SampleFormat::Int => {
            let scale = full_scale(u32::from(spec.bits_per_sample));
            gather(&mut samples, reader.samples::<i32>().map(|s| s.map(|i| (f64::from(i) * scale) as f32)))
        }
        hound::SampleFormat::Float => gather(&mut samples, reader.samples::<f32>()),
    };
    match failed {
        // hound reports the end of the file as an error of kind `Other`.
        Some(hound::Error::IoError(e)) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::Other) => {
            Err(Error::Truncated { path: path.into(), expected: promised, found: samples.len() as u64 })
        }
        Some(hound::Error::IoError(source)) => Err(Error::Io { path: path.into(), source }),
        Some(e) => Err(format_error(path, expected, e)),
        None => Ok(Audio { samples, sample_rate: spec.sample_rate }),
    }
}

/// Appends samples up to the first error, which it returns.
fn gather<E>(samples: &mut Vec<f32>, from: impl Iterator<Item = Result<f32, E>>) -> Option<E> {
    for sample in from {
        match sample {
            Ok(x) => samples.push(x),
            Err(e) => return Some(e),
        }
    }
    None
}

fn read_flac(path: &Path, file: BufReader<File>, bytes: u64) -> Result<Audio> {
    let expected = "a well-formed FLAC file";
    let mut reader = claxon::FlacReader::new(file).map_err(|e| format_error(path, expected, e))?;
    let info = reader.streaminfo();
    mono(path, info.channels)?;
    let scale = full_scale(info.bits_per_sample);
    // FLAC packs constant blocks without limit, so the size of the file is a guess here, not a bound.
    let mut samples = Vec::with_capacity(info.samples.unwrap_or(0).min(bytes * 4) as usize);
    let mut frames = reader.blocks();
    let mut buffer = Vec::new();
    let ended = loop {
        match frames.read_next_or_eof(buffer) {
            Ok(Some(block)) => {
                samples.extend(block.channel(0).iter().map(|&i| (f64::from(i) * scale) as f32));
                buffer = block.into_buffer();
            }
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    let found = samples.len() as u64;
    match (ended, info.samples) {
        (Err(claxon::Error::IoError(source)), _) if source.kind() != ErrorKind::UnexpectedEof => {
            Err(Error::Io { path: path.into(), source })
        }
        (Err(claxon::Error::IoError(_)) | Ok(()), Some(promised)) if found < promised => {
            Err(Error::Truncated { path: path.into(), expected: promised, found })
        }
        (Err(e), _) => Err(format_error(path, expected, e)),
        (Ok(()), Some(promised)) if found > promised => Err(format_error(
            path,
            "as many samples as the FLAC header says",
            format!("{found} instead of {promised}"),
        )),
        (Ok(()), _) => Ok(Audio { samples, sample_rate: info.sample_rate }),
    }
}

/// Value of one step of a `bits`-bit integer sample.
fn full_scale(bits: u32) -> f64 {
    0.5f64.powi(bits as i32 - 1)
}

fn mono(path: &Path, found: u32) -> Result<()> {
    if found == 1 { Ok(()) } else { Err(Error::Channels { path: path.into(), found }) }
}

fn format_error(path: &Path, expected: &'static str, found: impl ToString) -> Error {
    Error::Format { path: path.into(), expected, found: found.to_string() }
}
