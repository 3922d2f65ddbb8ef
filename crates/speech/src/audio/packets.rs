//! `PacketReader`: decodes compressed audio files with symphonia (MP3, AAC, MP4, Ogg, CAF).
//!
//! Encoder delay and padding are removed where the file declares them: in LAME's header of MP3, the
//! edit list and the durations of MP4, the granule positions of Ogg, and the packet table of CAF.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::well_known::{
    CODEC_ID_OPUS, CODEC_ID_PCM_ALAW, CODEC_ID_PCM_MULAW, CODEC_ID_VORBIS,
};
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::packet::Packet;
use symphonia::default::formats::{AdtsReader, CafReader, IsoMp4Reader, MpaReader, OggReader};

use super::channels::MonoSignal;
use super::file_range::FileRange;
use super::mp4::MediaTime;
use super::opus::{self, OpusPacketDecoder};
use super::{format_error, mp4, vorbis};
use crate::panic_guard::catch_panic;
use crate::{Error, Result};

/// Largest number of samples per channel in a packet.
///
/// Decoders allocate by this field of the file.
const MAX_PACKET_FRAMES: u64 = 1 << 16;
/// Largest number of channels; decoders allocate by it.
const MAX_CHANNELS: usize = 32;
/// Largest number of leading packets without samples.
const MAX_EMPTY_PACKETS: usize = 64;

/// Limit on the packets and their bytes, per byte of the file.
const MAX_PACKET_BYTES_PER_FILE_BYTE: u64 = 4;

/// A packet container.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Container {
    Mpeg,
    Adts,
    Mp4,
    Ogg,
    Caf,
}

impl Container {
    /// Returns the expected format in error messages.
    fn expected(self) -> &'static str {
        match self {
            Container::Mpeg => "a well-formed MP3 file",
            Container::Adts => "a well-formed AAC file",
            Container::Mp4 => "a well-formed MP4 file",
            Container::Ogg => "a well-formed Ogg file",
            Container::Caf => "a well-formed CAF file",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Container::Mpeg => "MP3",
            Container::Adts => "AAC",
            Container::Mp4 => "MP4",
            Container::Ogg => "Ogg",
            Container::Caf => "CAF",
        }
    }
}

/// A file whose first packet has been decoded.
pub(super) struct PacketReader {
    container: Container,
    format: Box<dyn FormatReader>,
    /// Id of the audio track.
    track_id: u32,
    decoder: PacketDecoder,
    sample_rate: u32,
    channels: u32,
    /// Samples per channel that the file declares; 0 if it does not declare them exactly.
    declared_frames: u64,
    /// Largest number of samples per channel; later ones are padding.
    max_frames: u64,
    /// Samples per channel that are still to be dropped.
    frames_to_skip: u64,
    /// Interleaved samples of the first packet, until they are read.
    first_block: Option<Vec<f32>>,
    /// Interleaved samples of the last packet.
    block: Vec<f32>,
    /// Bytes of packets that may still be read.
    ///
    /// Packet tables may list the same bytes repeatedly, or packets without bytes.
    remaining_packet_bytes: u64,
}

/// The decoder of a codec.
enum PacketDecoder {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<OpusPacketDecoder>),
}

impl MediaSource for FileRange {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.len())
    }
}

/// Parses the header and decodes the first packet.
pub(super) fn open(path: &Path, mut range: FileRange, container: Container) -> Result<PacketReader> {
    let io_error = |source| Error::Io { path: path.into(), source };
    let start_time = match container {
        Container::Mp4 => mp4::read_audio_start(&mut range).map_err(io_error)?,
        Container::Ogg if !has_end_of_stream(&mut range).map_err(io_error)? => {
            let missing = "no page that is marked as the last: truncated";
            return Err(format_error(path, container.expected(), missing));
        }
        _ => None,
    };
    range.rewind().map_err(io_error)?;
    let remaining_packet_bytes = range.len().saturating_mul(MAX_PACKET_BYTES_PER_FILE_BYTE);
    call_symphonia(path, container, || {
        let source = MediaSourceStream::new(Box::new(range), Default::default());
        let options = FormatOptions::default();
        let format: Box<dyn FormatReader> = match container {
            Container::Mpeg => Box::new(MpaReader::try_new(source, options)?),
            Container::Adts => Box::new(AdtsReader::try_new(source, options)?),
            Container::Mp4 => Box::new(IsoMp4Reader::try_new(source, options)?),
            Container::Ogg => Box::new(OggReader::try_new(source, options)?),
            Container::Caf => Box::new(CafReader::try_new(source, options)?),
        };
        Ok(format)
    })
    .and_then(|format| build_reader(path, format, container, start_time, remaining_packet_bytes))
}

/// Selects the audio track and determines which of its samples are padding.
///
/// `start_time` is the first edit of an MP4 file.
fn build_reader(
    path: &Path,
    format: Box<dyn FormatReader>,
    container: Container,
    start_time: Option<MediaTime>,
    remaining_packet_bytes: u64,
) -> Result<PacketReader> {
    let invalid = |found: String| format_error(path, container.expected(), found);
    // The default audio track, otherwise the first.
    let tracks = format.tracks().iter();
    let mut audio_tracks = tracks.filter_map(|track| match &track.codec_params {
        Some(CodecParameters::Audio(parameters)) => Some((track, parameters)),
        _ => None,
    });
    let default = format.default_track(TrackType::Audio).map(|track| track.id);
    let Some((track, parameters)) = audio_tracks.find(|(track, _)| default.is_none_or(|id| id == track.id))
    else {
        return Err(invalid("no audio track".into()));
    };
    // Limits of the fields by which decoders allocate.
    let channels = parameters.channels.as_ref().map_or(0, |channels| channels.count());
    if channels > MAX_CHANNELS {
        return Err(Error::Channels { path: path.into(), found: channels as u32 });
    }
    let packet_frames = [parameters.max_frames_per_packet, parameters.frames_per_block];
    if let Some(frames) = packet_frames.into_iter().flatten().find(|&frames| frames > MAX_PACKET_FRAMES) {
        return Err(invalid(format!("packets of {frames} samples")));
    }
    let decoder = create_decoder(path, container, parameters)?;
    // Declared length and delay, in units of the track.
    let timescale = track.time_base.map_or(0, |base| u64::from(base.denom.get()));
    // All bits set mean an unknown duration (ISO/IEC 14496-12).
    let duration = track.duration.map(|duration| duration.get());
    let duration = duration.filter(|&d| d != u64::from(u32::MAX) && d != u64::MAX).unwrap_or(0);
    let track_frames = track.num_frames.unwrap_or(0);
    let (track_id, delay) = (track.id, u64::from(track.delay.unwrap_or(0)));
    let has_lame_header = track.delay.is_some();
    let mut reader = PacketReader {
        container,
        format,
        track_id,
        decoder,
        sample_rate: 0,
        channels: 0,
        declared_frames: 0,
        max_frames: u64::MAX,
        frames_to_skip: 0,
        first_block: None,
        block: Vec::new(),
        remaining_packet_bytes,
    };
    // The first packet determines the sample rate, the unit of the lengths.
    reader.decode_first_block(path)?;
    let rate = u64::from(reader.sample_rate);
    let to_samples = |units: u64, timescale: u64| match timescale {
        0 => 0,
        timescale => (u128::from(units) * u128::from(rate) / u128::from(timescale)) as u64,
    };
    // Each container declares delay and length in its own way.
    match container {
        Container::Mpeg => reader.declared_frames = if has_lame_header { track_frames } else { 0 },
        Container::Mp4 => {
            reader.frames_to_skip = start_time.map_or(0, |start| to_samples(start.units, start.timescale));
            reader.declared_frames = to_samples(duration, timescale).saturating_sub(reader.frames_to_skip);
        }
        Container::Ogg => {
            if let PacketDecoder::Opus(opus) = &reader.decoder {
                reader.frames_to_skip = opus.pre_skip;
            }
            reader.declared_frames = track_frames.saturating_sub(reader.frames_to_skip);
        }
        Container::Caf => {
            // Some writers count the samples that pad the last packet.
            (reader.frames_to_skip, reader.max_frames) =
                (delay, if track_frames > 0 { track_frames } else { u64::MAX });
        }
        Container::Adts => {}
    }
    if reader.declared_frames > 0 {
        reader.max_frames = reader.declared_frames;
    }
    Ok(reader)
}

/// Creates the decoder of a track.
fn create_decoder(
    path: &Path,
    container: Container,
    parameters: &AudioCodecParameters,
) -> Result<PacketDecoder> {
    if parameters.codec == CODEC_ID_OPUS {
        let header = parameters.extra_data.as_deref().unwrap_or(&[]);
        let opus = OpusPacketDecoder::new(header);
        return opus
            .map(|opus| PacketDecoder::Opus(Box::new(opus)))
            .map_err(|found| format_error(path, "Opus of one or two channels", found));
    }
    if parameters.codec == CODEC_ID_VORBIS {
        vorbis::check_codebooks(parameters.extra_data.as_deref().unwrap_or(&[]))
            .map_err(|found| format_error(path, "a well-formed Vorbis file", found))?;
    }
    let mut parameters = parameters.clone();
    if [CODEC_ID_PCM_ALAW, CODEC_ID_PCM_MULAW].contains(&parameters.codec) {
        // Containers give the bits of a code, the decoder expects those of a sample.
        (parameters.bits_per_sample, parameters.bits_per_coded_sample) = (None, None);
    }
    call_symphonia(path, container, || {
        let codecs = symphonia::default::get_codecs();
        codecs.make_audio_decoder(&parameters, &AudioDecoderOptions::default())
    })
    .map(PacketDecoder::Symphonia)
}

impl PacketReader {
    pub(super) fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    pub(super) fn channels(&self) -> u32 {
        self.channels
    }

    pub(super) fn declared_frames(&self) -> u64 {
        self.declared_frames
    }

    /// Decodes up to the first samples, which determine sample rate and channels.
    fn decode_first_block(&mut self, path: &Path) -> Result<()> {
        for _ in 0..MAX_EMPTY_PACKETS {
            if !self.decode_next_packet(path)? {
                break;
            }
            if !self.block.is_empty() {
                self.first_block = Some(std::mem::take(&mut self.block));
                return Ok(());
            }
        }
        Err(Error::EmptyAudio { path: path.into() })
    }

    /// Decodes the next packet; false after the last.
    pub(super) fn read(&mut self, path: &Path, output: &mut MonoSignal) -> Result<bool> {
        if output.length() >= self.max_frames {
            return Ok(false);
        }
        match self.first_block.take() {
            Some(block) => self.block = block,
            None => {
                if !self.decode_next_packet(path)? {
                    if output.length() < self.declared_frames {
                        let (format, expected) = (self.container.name(), self.declared_frames);
                        return Err(Error::Truncated {
                            path: path.into(),
                            format,
                            expected,
                            found: output.length(),
                        });
                    }
                    return Ok(false);
                }
            }
        }
        // Drops the encoder delay at the start and the padding at the end.
        let channels = self.channels as usize;
        let frames = (self.block.len() / channels.max(1)) as u64;
        let dropped_frames = self.frames_to_skip.min(frames);
        self.frames_to_skip -= dropped_frames;
        let kept_frames = (frames - dropped_frames).min(self.max_frames - output.length());
        let samples =
            self.block.iter().skip(dropped_frames as usize * channels).take(kept_frames as usize * channels);
        output.append_interleaved(samples.map(|&sample| f64::from(sample)));
        Ok(true)
    }

    /// Decodes the next packet of the track into `block`; false after the last.
    fn decode_next_packet(&mut self, path: &Path) -> Result<bool> {
        let PacketReader { container, format, track_id, remaining_packet_bytes, .. } = self;
        let mut is_limit_exceeded = false;
        let packet = call_symphonia(path, *container, || {
            loop {
                let packet = match format.next_packet() {
                    Ok(Some(packet)) => packet,
                    // The file ends within a packet: the declared length decides whether it is
                    // truncated.
                    Err(SymphoniaError::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                        return Ok(None);
                    }
                    other => return other,
                };
                *remaining_packet_bytes = remaining_packet_bytes.saturating_sub(packet.data.len() as u64 + 1);
                is_limit_exceeded = *remaining_packet_bytes == 0;
                if packet.track_id == *track_id || is_limit_exceeded {
                    return Ok(Some(packet));
                }
            }
        })?;
        if is_limit_exceeded {
            let excess = "packets of more bytes than the file has";
            return Err(format_error(path, container.expected(), excess));
        }
        match packet {
            None => Ok(false),
            Some(packet) => self.decode(path, &packet).map(|()| true),
        }
    }

    /// Decodes a packet into `block` and checks its sample rate and channels.
    fn decode(&mut self, path: &Path, packet: &Packet) -> Result<()> {
        let PacketReader { container, decoder, block, .. } = self;
        let (rate, channels) = match decoder {
            PacketDecoder::Symphonia(decoder) => call_symphonia(path, *container, || {
                let decoded = decoder.decode(packet)?;
                decoded.copy_to_vec_interleaved(block);
                Ok((decoded.spec().rate(), decoded.spec().channels().count() as u32))
            })?,
            PacketDecoder::Opus(opus) => {
                let padding_frames = packet.trim_end.get() as usize;
                let channels = opus.channels();
                let decoded =
                    call_symphonia(path, *container, || Ok(opus.decode(&packet.data).map(<[f32]>::to_vec)))?;
                *block = decoded.map_err(|found| format_error(path, "a well-formed Opus packet", found))?;
                block.truncate(block.len().saturating_sub(padding_frames * channels as usize));
                (opus::SAMPLE_RATE, channels)
            }
        };
        if block.is_empty() {
            return Ok(());
        }
        if self.channels == 0 {
            (self.sample_rate, self.channels) = (rate, channels);
        }
        if (rate, channels) != (self.sample_rate, self.channels) {
            let change = format!(
                "{rate} Hz and {channels} channels after {} Hz and {}",
                self.sample_rate, self.channels
            );
            return Err(format_error(path, "one sample rate and number of channels", change));
        }
        Ok(())
    }
}

/// Calls symphonia and names the file in its errors.
///
/// symphonia reads untrusted bytes, so a panic becomes an error too; nothing is read from the file
/// afterward.
fn call_symphonia<T>(
    path: &Path,
    container: Container,
    call: impl FnOnce() -> Result<T, SymphoniaError>,
) -> Result<T> {
    let reason = match catch_panic(call) {
        Some(Ok(value)) => return Ok(value),
        Some(Err(SymphoniaError::IoError(source))) if source.kind() != ErrorKind::UnexpectedEof => {
            return Err(Error::Io { path: path.into(), source });
        }
        Some(Err(SymphoniaError::IoError(_))) => "the end of the file".into(),
        Some(Err(error)) => error.to_string(),
        None => "bytes that its decoder cannot handle".into(),
    };
    Err(format_error(path, container.expected(), reason))
}

/// Returns whether the last Ogg page ends its stream (RFC 3533).
fn has_end_of_stream(range: &mut FileRange) -> io::Result<bool> {
    /// Largest size of a page in bytes.
    const MAX_PAGE_BYTES: u64 = 65_307;
    /// Flag in byte 5 of a page.
    const END_OF_STREAM: u8 = 4;
    range.seek(SeekFrom::Start(range.len().saturating_sub(MAX_PAGE_BYTES)))?;
    let mut tail = Vec::new();
    range.take(MAX_PAGE_BYTES).read_to_end(&mut tail)?;
    let last_page = tail.windows(6).rposition(|page| page.starts_with(b"OggS\0"));
    Ok(last_page.is_some_and(|offset| tail[offset + 5] & END_OF_STREAM != 0))
}
