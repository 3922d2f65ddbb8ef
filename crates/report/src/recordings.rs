//! Recordings inside of the page: WAV of 16 bits, as data URIs.
use base64::prelude::{BASE64_STANDARD, Engine};
use speech::{Audio, Channel, Conversion, Utterance};

/// What a WAV header takes.
const HEADER: usize = 44;

/// Recordings at one sample rate, of so many bytes of the page at most.
pub struct Recordings {
    rate: u32,
    limit: usize,
    /// Bytes so far.
    pub used: usize,
    /// Recordings that there was no room for.
    pub left_out: usize,
}

impl Recordings {
    pub fn new(rate: u32, limit: usize) -> Self {
        Self { rate, limit, used: 0, left_out: 0 }
    }

    /// The address of a recording inside of the page; `None` if it does not fit any more.
    ///
    /// # Errors
    /// Those of reading it, as text.
    pub fn uri(&mut self, utterance: &Utterance) -> Result<Option<String>, String> {
        let conversion = Conversion { channel: Channel::Mix, resample: true };
        let (audio, _) = utterance.audio_as(self.rate, &conversion).map_err(|error| error.to_string())?;
        let size = (HEADER + 2 * audio.samples.len()).div_ceil(3) * 4;
        if size > self.limit.saturating_sub(self.used) || size > u32::MAX as usize {
            self.left_out += 1;
            return Ok(None);
        }
        self.used += size;
        Ok(Some("data:audio/wav;base64,".to_owned() + &BASE64_STANDARD.encode(wav(&audio))))
    }
}

/// One channel of 16 bits, of less than 4 GiB.
fn wav(audio: &Audio) -> Vec<u8> {
    let (rate, data) = (audio.sample_rate, 2 * audio.samples.len() as u32);
    let mut bytes = Vec::with_capacity(HEADER + data as usize);
    bytes.extend(b"RIFF");
    bytes.extend((data + HEADER as u32 - 8).to_le_bytes());
    bytes.extend(b"WAVEfmt ");
    bytes.extend(16u32.to_le_bytes());
    // Linear PCM, one channel; rate, bytes a second, bytes and bits of a sample.
    [1u16, 1].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    [rate, 2 * rate].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    [2u16, 16].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    bytes.extend(b"data");
    bytes.extend(data.to_le_bytes());
    bytes.extend(audio.i16_samples().flat_map(i16::to_le_bytes));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_a_wav_file_that_others_read() {
        let audio = Audio { samples: vec![0.0, 0.5, -1.0, 1.0, 0.25], sample_rate: 8000 };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.wav");
        std::fs::write(&path, wav(&audio)).unwrap();
        let read = speech::read_audio(&path).unwrap();
        // 1 is beyond the largest sample.
        assert_eq!(read, Audio { samples: vec![0.0, 0.5, -1.0, 32767.0 / 32768.0, 0.25], sample_rate: 8000 });
    }
}
