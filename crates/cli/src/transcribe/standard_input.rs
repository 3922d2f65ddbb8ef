//! Raw samples from standard input, which may be silent for long.
use std::io::{Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use speech::PcmReader;

use crate::error::{Error, Result};

/// How long a wish to stop may go unheard.
const PATIENCE: Duration = Duration::from_millis(50);

/// Files that are no plain samples, by how they begin.
const FILES: [(&[u8], &str); 10] = [
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

/// Samples as they come, until their end or until somebody asks to stop.
pub struct StdinChunks {
    /// From a thread that waits for them and that nobody waits for; none is the end.
    from: Receiver<Option<Result<Vec<f32>>>>,
    stop: Arc<AtomicBool>,
}

impl StdinChunks {
    /// Of standard input.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn new(stop: Arc<AtomicBool>) -> Result<Self> {
        let (to, from) = sync_channel(1);
        std::thread::Builder::new().name("standard input".to_owned()).spawn(move || {
            let mut reader = match not_a_file(std::io::stdin().lock()) {
                Ok(source) => PcmReader::new(source),
                Err(error) => return drop(to.send(Some(Err(error)))),
            };
            loop {
                let piece = reader.read_chunk().map_err(Error::from).transpose();
                let over = !matches!(piece, Some(Ok(_)));
                if to.send(piece).is_err() || over {
                    return;
                }
            }
        })?;
        Ok(Self { from, stop })
    }
}

impl Iterator for StdinChunks {
    type Item = Result<Vec<f32>>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.stop.load(Ordering::Relaxed) {
            match self.from.recv_timeout(PATIENCE) {
                Ok(piece) => return piece,
                Err(RecvTimeoutError::Timeout) => {}
                // After its end, or after an error, nobody asks again.
                Err(RecvTimeoutError::Disconnected) => {
                    let source = std::io::Error::other("whoever reads it has ended");
                    return Some(Err(speech::Error::Raw { source }.into()));
                }
            }
        }
        None
    }
}

/// The same bytes, unless they begin as a file that has its samples in another form.
fn not_a_file(mut source: impl Read) -> Result<impl Read> {
    let mut first = Vec::new();
    let read = source.by_ref().take(4).read_to_end(&mut first);
    read.map_err(|source| speech::Error::Raw { source })?;
    match FILES.iter().find(|(begins, _)| first.starts_with(begins)) {
        Some((_, found)) => Err(Error::NotRaw { found }),
        None => Ok(Cursor::new(first).chain(source)),
    }
}
