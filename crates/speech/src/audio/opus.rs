//! Decodes Opus audio packets (RFC 6716) with the Ogg header of RFC 7845.

use opus_decoder::OpusDecoder;

/// Largest number of samples per channel in a packet: 120 ms at 48 kHz.
const MAX_PACKET_FRAMES: usize = 5760;
/// Sample rate of all decoded Opus, independent of the original rate.
pub(super) const SAMPLE_RATE: u32 = 48_000;

/// Decoder of the Opus packets of a file.
pub(super) struct OpusPacketDecoder {
    decoder: OpusDecoder,
    channels: usize,
    /// Linear output gain of the header.
    gain: f32,
    /// Samples per channel at the start that are encoder delay.
    pub pre_skip: u64,
    /// Interleaved samples of the last packet.
    samples: Vec<f32>,
}

impl OpusPacketDecoder {
    /// Parses the header.
    ///
    /// ```text
    /// "OpusHead" version (1) channels (1) pre-skip (2) input rate (4) gain (2, dB in 1/256)
    /// mapping family (1) ...
    /// ```
    pub(super) fn new(header: &[u8]) -> Result<Self, String> {
        let field_u16 = |offset: usize| {
            header.get(offset..offset + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
        };
        let (Some(&channels), Some(pre_skip), Some(gain), Some(&family)) =
            (header.get(9), field_u16(10), field_u16(16), header.get(18))
        else {
            return Err(format!("a header of {} bytes", header.len()));
        };
        if family != 0 || !(1..=2).contains(&channels) {
            return Err(format!("{channels} channels in mapping family {family}"));
        }
        let channels = usize::from(channels);
        let gain = match gain {
            0 => 1.0,
            gain => 10f32.powf(f32::from(gain as i16) / (20.0 * 256.0)),
        };
        let decoder = OpusDecoder::new(SAMPLE_RATE, channels).map_err(|error| error.to_string())?;
        let samples = vec![0.0; MAX_PACKET_FRAMES * channels];
        Ok(OpusPacketDecoder { decoder, channels, gain, pre_skip: u64::from(pre_skip), samples })
    }

    /// Decodes a packet to interleaved samples.
    pub(super) fn decode(&mut self, packet: &[u8]) -> Result<&[f32], String> {
        let frames =
            self.decoder.decode_float(packet, &mut self.samples, false).map_err(|error| error.to_string())?;
        let samples = &mut self.samples[..frames * self.channels];
        if self.gain != 1.0 {
            samples.iter_mut().for_each(|sample| *sample *= self.gain);
        }
        Ok(samples)
    }

    pub(super) fn channels(&self) -> u32 {
        self.channels as u32
    }
}
