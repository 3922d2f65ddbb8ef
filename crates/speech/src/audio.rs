//! Sound files: WAV through hound, FLAC through claxon, other sample rates through rubato.

mod channels;
mod ending;
mod flac;
mod part;
mod pcm;
mod pieces;
mod resample;
mod wav;

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::ops::RangeInclusive;
use std::path::Path;

pub use channels::{Change, Channel, Conversion};
pub use pcm::{Pcm, PcmReader};
pub use pieces::AudioPieces;
pub use resample::{ResampleStream, resample};

use channels::Mono;
pub(crate) use part::Part;

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
    /// Of [`Audio::integers`].
    pub fn crc32(&self) -> u32 {
        crc32fast::hash(&self.integers().flat_map(i16::to_le_bytes).collect::<Vec<u8>>())
    }

    /// The samples as 16-bit integers, rounded and cut; exact for audio that came from 16 bits or fewer.
    pub fn integers(&self) -> impl Iterator<Item = i16> {
        self.samples.iter().map(|&x| (x * 32768.0).round().clamp(-32768.0, 32767.0) as i16)
    }
}

/// Reads a whole WAV (8, 16, 24 or 32-bit integers, 32-bit floats) or FLAC file of one channel; the first bytes decide which, not
/// the name.
///
/// A WAV file whose header gives no length, as one that was written to a pipe, is read to its end.
///
/// # Errors
/// Missing or unreadable file, neither WAV nor FLAC, more than one channel, no sample, fewer samples than the header
/// promises, samples of another MD5 than FLAC's header says, a sample that is NaN or beyond ±2^31. Each names the path.
///
/// Cost: O(samples).
///
/// ```no_run
/// let audio = speech::read_audio("hello.flac".as_ref())?;
/// println!("{:.2} s at {} Hz", audio.seconds(), audio.sample_rate);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn read_audio(path: &Path) -> Result<Audio> {
    Ok(read_channel(path, Channel::Only)?.0)
}

/// Reads a file as a recogniser wants it: one channel at its sample rate; and says what had to be done to it.
///
/// # Errors
/// Those of [`read_audio`]; a channel that the file has not; another sample rate, if it may not be resampled, or one that is not from
/// 1000 to 768,000 Hz.
///
/// Cost: O(samples), and [`resample`] where that is done.
pub fn read_audio_as(path: &Path, sample_rate: u32, conversion: &Conversion) -> Result<(Audio, Vec<Change>)> {
    let (audio, change) = read_channel(path, conversion.channel)?;
    let mut changes: Vec<Change> = change.into_iter().collect();
    let found = audio.sample_rate;
    if found == sample_rate {
        return Ok((audio, changes));
    }
    if !conversion.resample {
        return Err(Error::FileRate { path: path.into(), expected: sample_rate, found });
    }
    check_rate(path, found)?;
    changes.push(Change::Resampled { from: found, to: sample_rate });
    Ok((resample(&audio, sample_rate)?, changes))
}

/// Sample rates that a front end can be planned for and that can be resampled.
pub(crate) const RATES: RangeInclusive<u32> = 1000..=768_000;

/// Whether a file's sample rate can be resampled; others would take any amount of memory.
pub(crate) fn check_rate(path: &Path, found: u32) -> Result<()> {
    if RATES.contains(&found) {
        return Ok(());
    }
    Err(format_error(path, "a sample rate from 1000 to 768000 Hz", format!("{found} Hz")))
}

/// What floats may hold: also 32-bit integers that nobody scaled.
const LOUDEST: f32 = 2_147_483_648.0;

/// Whether samples, which have so many before them, can be sound.
///
/// # Errors
/// [`Error::NotFinite`] for the first that is NaN or beyond ±2^31.
pub fn check_samples(first: u64, samples: &[f32]) -> Result<()> {
    match samples.iter().position(|x| x.is_nan() || x.abs() > LOUDEST) {
        Some(index) => Err(Error::NotFinite { index: first as usize + index, found: samples[index] }),
        None => Ok(()),
    }
}

/// A file whose header has been read.
enum Opened {
    Wav(wav::Reader),
    Flac(flac::Reader),
}

impl Opened {
    /// Opens a file, or a part of one.
    fn new(path: &Path, part: Part) -> Result<Self> {
        let io = |source| Error::Io { path: path.into(), source };
        let bytes = part.len();
        let mut file = BufReader::new(part);
        let mut magic = [0; 4];
        let start = match file.read_exact(&mut magic) {
            Ok(()) => &magic[..],
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => &[],
            Err(e) => return Err(io(e)),
        };
        file.rewind().map_err(io)?;
        let opened = match start {
            b"RIFF" => Opened::Wav(wav::open(path, file, bytes)?),
            b"fLaC" => Opened::Flac(flac::open(path, file)?),
            _ => {
                let found = if bytes < 4 {
                    format!("a file of {bytes} bytes")
                } else {
                    format!("a file that starts with {:?}", String::from_utf8_lossy(&magic))
                };
                return Err(format_error(path, "a WAV or FLAC file", found));
            }
        };
        match opened.sample_rate() {
            0 => Err(format_error(path, "a sample rate above 0", "0 Hz")),
            _ => Ok(opened),
        }
    }

    fn sample_rate(&self) -> u32 {
        match self {
            Opened::Wav(reader) => reader.spec().sample_rate,
            Opened::Flac(reader) => reader.info().sample_rate,
        }
    }

    fn channels(&self) -> u32 {
        match self {
            Opened::Wav(reader) => u32::from(reader.spec().channels),
            Opened::Flac(reader) => reader.info().channels,
        }
    }

    /// Samples of each channel that the header promises.
    fn promised(&self) -> u64 {
        match self {
            Opened::Wav(reader) => u64::from(reader.duration()),
            Opened::Flac(reader) => reader.info().samples.unwrap_or(0),
        }
    }
}

fn whole(path: &Path) -> Result<Part> {
    File::open(path).and_then(Part::whole).map_err(|source| Error::Io { path: path.into(), source })
}

/// The sample rate that a file's header gives.
pub(crate) fn sample_rate(path: &Path) -> Result<u32> {
    Ok(Opened::new(path, whole(path)?)?.sample_rate())
}

/// Rate, channels and samples of each that a file's header promises.
pub(crate) fn promises(path: &Path) -> Result<(u32, u32, u64)> {
    let opened = Opened::new(path, whole(path)?)?;
    Ok((opened.sample_rate(), opened.channels(), opened.promised()))
}

/// Samples of each channel that a header promises, and their rate; an error if there is no room for them.
pub(crate) fn header(path: &Path, part: Part) -> Result<(u64, u32)> {
    let bytes = part.len();
    let opened = Opened::new(path, part)?;
    let promised = opened.promised();
    if let Opened::Wav(reader) = &opened {
        let spec = reader.spec();
        let each = (u64::from(spec.channels) * u64::from(spec.bits_per_sample.div_ceil(8))).max(1);
        if promised.saturating_mul(each) > bytes {
            let found = bytes.saturating_sub(WAV_HEADER) / each;
            return Err(Error::Truncated { path: path.into(), expected: promised, found });
        }
    }
    Ok((promised, opened.sample_rate()))
}

/// Bytes before the samples of a WAV file that has nothing else to say.
const WAV_HEADER: u64 = 44;

/// Samples and rate of a mono file that is whole: by the header and the last frame of a FLAC file, by decoding where they do not tell.
pub(crate) fn measure(path: &Path) -> Result<(u64, u32)> {
    let opened = Opened::new(path, whole(path)?)?;
    if let Opened::Flac(reader) = &opened
        && let Some(samples) = reader.info().samples.filter(|&samples| samples > 0)
        && reader.info().channels == 1
    {
        let mut file = whole(path)?;
        let ending = ending::is_whole(&mut file, &reader.info());
        if ending.map_err(|source| Error::Io { path: path.into(), source })? {
            return Ok((samples, opened.sample_rate()));
        }
    }
    let (audio, _) = read_channel(path, Channel::Only)?;
    Ok((audio.samples.len() as u64, audio.sample_rate))
}

/// Samples of a WAV file that are decoded at a time, all channels together.
const BLOCK: usize = 1 << 14;

/// A file that is being decoded.
struct Decoder {
    opened: Opened,
    mono: Mono,
    change: Option<Change>,
    sample_rate: u32,
}

impl Decoder {
    /// Opens a file and chooses from its channels, with room for all of its samples, or for `most`.
    fn new(path: &Path, channel: Channel, most: usize) -> Result<Self> {
        Self::of(path, whole(path)?, channel, most)
    }

    fn of(path: &Path, part: Part, channel: Channel, most: usize) -> Result<Self> {
        let bytes = part.len();
        let opened = Opened::new(path, part)?;
        let (sample_rate, channels) = (opened.sample_rate(), opened.channels());
        // A header may promise anything; the file's size bounds what can come, or is a fair guess where FLAC packs constant blocks.
        let room = opened.promised().min(bytes.saturating_mul(2)).min(most as u64) as usize;
        match (Mono::new(channels, channel, room), channel) {
            (Some((mono, change)), _) => Ok(Decoder { opened, mono, change, sample_rate }),
            (None, Channel::Number(asked)) => {
                Err(Error::Channel { path: path.into(), asked, found: channels })
            }
            (None, _) => Err(Error::Channels { path: path.into(), found: channels }),
        }
    }

    /// Decodes some more samples; false after the last.
    fn read(&mut self, path: &Path) -> Result<bool> {
        let more = match &mut self.opened {
            Opened::Wav(reader) => wav::read(path, reader, &mut self.mono)?,
            Opened::Flac(reader) => flac::read(path, reader, &mut self.mono)?,
        };
        if !more && self.mono.length() == 0 {
            return Err(Error::EmptyAudio { path: path.into() });
        }
        Ok(more)
    }

    /// The samples that were not yet taken, checked.
    fn take(&mut self, path: &Path) -> Result<Vec<f32>> {
        let first = self.mono.length() - self.mono.samples.len() as u64;
        let samples = self.mono.take();
        check_samples(first, &samples)
            .map_err(|source| Error::File { path: path.into(), source: Box::new(source) })?;
        Ok(samples)
    }
}

/// Reads a whole file at its own sample rate.
pub(crate) fn read_channel(path: &Path, channel: Channel) -> Result<(Audio, Option<Change>)> {
    read_part(path, whole(path)?, channel)
}

/// Reads a part of a file that is a sound file of its own; `path` is for messages.
pub(crate) fn read_part(path: &Path, part: Part, channel: Channel) -> Result<(Audio, Option<Change>)> {
    let mut decoder = Decoder::of(path, part, channel, usize::MAX)?;
    while decoder.read(path)? {}
    let samples = decoder.take(path)?;
    Ok((Audio { samples, sample_rate: decoder.sample_rate }, decoder.change))
}

/// Reads `count` samples of a file from sample `start` on.
///
/// Made for files that pack many recordings: the decoded file stays in a process-wide cache of bounded size, so that the
/// next segment costs a copy. A file that changes on disk is read again.
///
/// # Errors
/// Those of [`read_audio`]; a segment that is empty or reaches over the end of the file.
pub fn read_segment(path: &Path, start: u64, count: u64) -> Result<Audio> {
    let (whole, _) = packed::read(path, Channel::Only)?;
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

/// Value of one step of a `bits`-bit integer sample.
fn full_scale(bits: u32) -> f64 {
    0.5f64.powi(bits as i32 - 1)
}

fn format_error(path: &Path, expected: &'static str, found: impl ToString) -> Error {
    Error::Format { path: path.into(), expected, found: found.to_string() }
}
