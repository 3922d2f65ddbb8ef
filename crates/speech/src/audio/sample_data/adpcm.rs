//! Decodes ADPCM blocks of audio files.
//!
//! IMA and Microsoft ADPCM are decoded by symphonia, QuickTime's by [`ima4`](super::ima4).

use std::path::Path;

use symphonia::core::audio::Channels;
use symphonia::core::codecs::audio::well_known::{CODEC_ID_ADPCM_IMA_WAV, CODEC_ID_ADPCM_MS};
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};
use symphonia::default::codecs::AdpcmDecoder;

use super::coding::{Coding, SampleFormat};
use super::ima4::{Ima4Decoder, PACKET_BYTES, PACKET_SAMPLES};
use crate::audio::channels::MonoSignal;
use crate::audio::format_error;
use crate::panic_guard::catch_panic;
use crate::{Error, Result};

/// Bytes of a channel's header in an IMA block.
const IMA_HEADER_BYTES: u64 = 4;
/// Bytes of a channel's header in a Microsoft block.
const MICROSOFT_HEADER_BYTES: u64 = 7;

/// Decoder of ADPCM blocks, one block at a time.
pub(super) struct AdpcmBlockDecoder {
    coding: Coding,
    channels: u64,
    sample_rate: u32,
    block_bytes: u64,
    /// The decoder of complete blocks, with their samples per channel.
    decoder: Option<(usize, AdpcmDecoder)>,
    /// The decoder of each channel of QuickTime packets.
    ima4: [Ima4Decoder; 2],
    /// Interleaved samples of the current block.
    samples: Vec<f32>,
}

impl AdpcmBlockDecoder {
    /// Returns `None` for other codings.
    pub(super) fn new(path: &Path, format: &SampleFormat) -> Result<Option<Self>> {
        let coding = format.coding;
        if !coding.is_adpcm() {
            return Ok(None);
        }
        let (channels, block_bytes) = (u64::from(format.channels), u64::from(format.block_bytes));
        if channels > 2 {
            return Err(Error::Channels { path: path.into(), found: u32::from(format.channels) });
        }
        let sample_rate = format.sample_rate;
        let (decoder, ima4, samples) = (None, Default::default(), Vec::new());
        let adpcm = AdpcmBlockDecoder { coding, channels, sample_rate, block_bytes, decoder, ima4, samples };
        if adpcm.frames(block_bytes) < 2 {
            let expected = "ADPCM blocks of at least two samples per channel";
            return Err(format_error(path, expected, format!("{block_bytes} bytes")));
        }
        Ok(Some(adpcm))
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.block_bytes as usize
    }

    /// Returns the samples per channel in `bytes`; the last block may be incomplete.
    pub(super) fn frames(&self, bytes: u64) -> u64 {
        let blocks = bytes / self.block_bytes;
        blocks * self.frames_of_block(self.block_bytes) + self.frames_of_block(bytes % self.block_bytes)
    }

    /// Returns the samples per channel in a block of `bytes`.
    ///
    /// ```text
    /// IMA: first sample (2 bytes), index, 0 of each channel;
    ///      then two samples a byte, eight of a channel at a time
    /// MS:  predictor, step (2), two samples (2 each) of each channel; then two samples a byte
    /// ```
    fn frames_of_block(&self, bytes: u64) -> u64 {
        if self.coding == Coding::QuickTimeAdpcm {
            return bytes / (self.channels * PACKET_BYTES as u64) * PACKET_SAMPLES as u64;
        }
        let is_ima = self.coding == Coding::ImaAdpcm;
        let header_bytes = self.channels * if is_ima { IMA_HEADER_BYTES } else { MICROSOFT_HEADER_BYTES };
        let Some(data_bytes) = bytes.checked_sub(header_bytes) else { return 0 };
        match (is_ima, self.channels) {
            (true, 1) => 1 + 2 * data_bytes,
            (true, _) => 1 + 8 * (data_bytes / (4 * self.channels)),
            (false, _) => 2 + 2 * data_bytes / self.channels,
        }
    }

    /// Decodes the first `frames` samples per channel of a block.
    pub(super) fn decode(
        &mut self,
        path: &Path,
        block: &[u8],
        frames: usize,
        output: &mut MonoSignal,
    ) -> Result<()> {
        if self.coding == Coding::QuickTimeAdpcm {
            self.decode_packets(block, frames, output);
            return Ok(());
        }
        let invalid = |error: SymphoniaError| format_error(path, "complete blocks of ADPCM", error);
        let block_frames = self.frames_of_block(block.len() as u64) as usize;
        if self.decoder.as_ref().is_none_or(|(frames, _)| *frames != block_frames) {
            let mut parameters = AudioCodecParameters::new();
            let codec =
                if self.coding == Coding::ImaAdpcm { CODEC_ID_ADPCM_IMA_WAV } else { CODEC_ID_ADPCM_MS };
            parameters
                .for_codec(codec)
                .with_sample_rate(self.sample_rate)
                .with_channels(Channels::Discrete(self.channels as u16))
                .with_max_frames_per_packet(block_frames as u64)
                .with_frames_per_block(block_frames as u64);
            let decoder = AdpcmDecoder::try_new(&parameters, &AudioDecoderOptions::default());
            self.decoder = Some((block_frames, decoder.map_err(invalid)?));
        }
        let Some((_, decoder)) = &mut self.decoder else { return Ok(()) };
        let packet = PacketRef::new(0, Timestamp::new(0), Duration::new(block_frames as u64), block);
        let samples = &mut self.samples;
        let decoded =
            catch_panic(|| decoder.decode_ref(&packet).map(|block| block.copy_to_vec_interleaved(samples)));
        decoded
            .unwrap_or(Err(SymphoniaError::DecodeError("bytes that its decoder cannot handle")))
            .map_err(invalid)?;
        let count = frames * self.channels as usize;
        output.append_interleaved(self.samples.iter().take(count).map(|&sample| f64::from(sample)));
        Ok(())
    }

    /// Decodes one QuickTime packet of each channel.
    fn decode_packets(&mut self, block: &[u8], frames: usize, output: &mut MonoSignal) {
        let channels = self.channels as usize;
        self.samples.resize(PACKET_SAMPLES * channels, 0.0);
        for (channel, packet) in block.as_chunks::<PACKET_BYTES>().0.iter().take(channels).enumerate() {
            let samples = &mut self.samples;
            self.ima4[channel].decode(packet, |index, value| {
                samples[index * channels + channel] = value as f32 / 32768.0;
            });
        }
        output
            .append_interleaved(self.samples.iter().take(frames * channels).map(|&sample| f64::from(sample)));
    }
}
