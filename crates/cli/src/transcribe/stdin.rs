//! Reads raw samples from standard input; a signal ends the wait for more.
use std::io::{Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use speech::PcmReader;

use crate::error::{Error, Result};

/// Interval between checks of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// First bytes of audio formats that are not raw samples.
const FILE_SIGNATURES: [(&[u8], &str); 10] = [
    (b"RIFF", "a WAV file"),
    (b"RIFX", "a WAV file"),
    (b"RF64", "a WAV file"),
    (b"fLaC", "a FLAC file"),
    (b"OggS", "an Ogg file"),
    (b"FORM", "an AIFF file"),
    (b"caff", "a CAF file"),
    (b".snd", "an AU file"),
    (b"ID3", "an MP3 file"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM file"),
];

/// Length of the longest signature.
const SIGNATURE_BYTES: u64 = 4;

/// Iterator over chunks of samples, until the end or the stop flag.
pub(super) struct StdinChunks {
    /// Receives chunks from the detached reader thread; none is the end of the input.
    receiver: Receiver<Option<Result<Vec<f32>>>>,
    stop: Arc<AtomicBool>,
}

impl StdinChunks {
    /// Starts the reader thread.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub(super) fn new(stop: Arc<AtomicBool>) -> Result<Self> {
        let (sender, receiver) = sync_channel(1);
        std::thread::Builder::new().name("standard input".to_owned()).spawn(move || {
            let mut reader = match reject_audio_files(std::io::stdin().lock()) {
                Ok(source) => PcmReader::new(source),
                Err(error) => return drop(sender.send(Some(Err(error)))),
            };
            loop {
                let chunk = reader.read_chunk().map_err(Error::from).transpose();
                let is_last = !matches!(chunk, Some(Ok(_)));
                if sender.send(chunk).is_err() || is_last {
                    return;
                }
            }
        })?;
        Ok(Self { receiver, stop })
    }
}

impl Iterator for StdinChunks {
    type Item = Result<Vec<f32>>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.stop.load(Ordering::Relaxed) {
            match self.receiver.recv_timeout(POLL_INTERVAL) {
                Ok(chunk) => return chunk,
                Err(RecvTimeoutError::Timeout) => {}
                // The iterator is not used after its end or an error.
                Err(RecvTimeoutError::Disconnected) => {
                    let source = std::io::Error::other("the reader thread has ended");
                    return Some(Err(speech::Error::RawAudio { source }.into()));
                }
            }
        }
        None
    }
}

/// Returns a reader of the same bytes; fails if they start an audio file.
fn reject_audio_files(mut source: impl Read) -> Result<impl Read> {
    let mut first_bytes = Vec::new();
    let read = source.by_ref().take(SIGNATURE_BYTES).read_to_end(&mut first_bytes);
    read.map_err(|source| speech::Error::RawAudio { source })?;
    match FILE_SIGNATURES.iter().find(|(signature, _)| first_bytes.starts_with(signature)) {
        Some((_, found)) => Err(Error::EncodedStdin { found }),
        None => Ok(Cursor::new(first_bytes).chain(source)),
    }
}
