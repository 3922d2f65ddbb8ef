//! Embeds recordings in the report page as data URIs of 16-bit WAV.
use base64::prelude::{BASE64_STANDARD, Engine};
use speech::{Audio, Channel, Conversion, Utterance};

/// Size of a WAV header in bytes.
const HEADER_BYTES: usize = 44;
/// Size of a sample in bytes.
const SAMPLE_BYTES: usize = 2;
/// Bytes of a RIFF file that its size field does not count.
const RIFF_BYTES: u32 = 8;
/// Size of the format chunk in bytes.
const FORMAT_BYTES: u32 = 16;

/// Encodes recordings at one sample rate within a byte limit.
pub(crate) struct Recordings {
    sample_rate: u32,
    /// Largest number of bytes of all encoded recordings.
    max_bytes: usize,
    /// Bytes of the encoded recordings.
    pub used_bytes: usize,
    /// Number of recordings beyond the limit.
    pub left_out_count: usize,
}

impl Recordings {
    /// Creates an encoder; `max_bytes` limits the sum of all recordings.
    pub(crate) fn new(sample_rate: u32, max_bytes: usize) -> Self {
        Self { sample_rate, max_bytes, used_bytes: 0, left_out_count: 0 }
    }

    /// Encodes a recording as a data URI; returns `None` beyond the limit.
    ///
    /// # Errors
    /// The message of a read error.
    pub(crate) fn data_uri(&mut self, utterance: &Utterance) -> Result<Option<String>, String> {
        let conversion = Conversion { channel: Channel::Mix, resample: true };
        let (audio, _) =
            utterance.audio_as(self.sample_rate, &conversion).map_err(|error| error.to_string())?;
        // Base64 has four characters for three bytes.
        let size = (HEADER_BYTES + SAMPLE_BYTES * audio.samples.len()).div_ceil(3) * 4;
        if size > self.max_bytes.saturating_sub(self.used_bytes) || size > u32::MAX as usize {
            self.left_out_count += 1;
            return Ok(None);
        }
        self.used_bytes += size;
        Ok(Some("data:audio/wav;base64,".to_owned() + &BASE64_STANDARD.encode(encode_wav(&audio))))
    }
}

/// Encodes one channel of less than 4 GiB as 16-bit WAV.
fn encode_wav(audio: &Audio) -> Vec<u8> {
    let (sample_rate, data_bytes) = (audio.sample_rate, (SAMPLE_BYTES * audio.samples.len()) as u32);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + data_bytes as usize);
    bytes.extend(b"RIFF");
    bytes.extend((data_bytes + HEADER_BYTES as u32 - RIFF_BYTES).to_le_bytes());
    bytes.extend(b"WAVEfmt ");
    bytes.extend(FORMAT_BYTES.to_le_bytes());
    // Linear PCM, one channel; sample rate, bytes per second, bytes and bits per sample.
    [1u16, 1].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    [sample_rate, 2 * sample_rate].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    [2u16, 16].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    bytes.extend(b"data");
    bytes.extend(data_bytes.to_le_bytes());
    bytes.extend(audio.i16_samples().flat_map(i16::to_le_bytes));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_recordings_are_valid_wav_files() {
        let audio = Audio { samples: vec![0.0, 0.5, -1.0, 1.0, 0.25], sample_rate: 8000 };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wav");
        std::fs::write(&path, encode_wav(&audio)).unwrap();
        let read = speech::read_audio(&path).unwrap();
        // 1 is clipped to the largest sample.
        assert_eq!(read, Audio { samples: vec![0.0, 0.5, -1.0, 32767.0 / 32768.0, 0.25], sample_rate: 8000 });
    }
}
