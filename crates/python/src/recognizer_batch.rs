//! Recordings of a call, transcribed in one batch.
use std::path::PathBuf;

use pyo3::{Bound, FromPyObject, PyAny, PyResult};
use recognizer::{CoverageOptions, Transcription};
use speech::{Audio, AudioChunks};

use crate::recognizer::{Recognizer, named_error, read_samples, to_python_error};

/// Samples of a long array that are processed at a time.
const SAMPLES_PER_CHUNK: usize = 1 << 16;

/// A recording as an argument: samples with their name and rate, or a file.
#[derive(FromPyObject)]
pub enum RecordingArgument<'py> {
    /// Name, array and sample rate.
    Samples(String, Bound<'py, PyAny>, u32),
    /// A file.
    #[pyo3(transparent)]
    File(PathBuf),
}

/// A recording.
pub enum Recording {
    /// Samples with their name.
    Samples {
        /// Name in errors.
        name: String,
        /// Samples and their rate.
        audio: Audio,
    },
    /// A file.
    File(PathBuf),
}

impl Recording {
    /// Reads the samples of an array.
    ///
    /// # Errors
    /// Those of [`read_samples`].
    pub fn new(argument: RecordingArgument) -> PyResult<Self> {
        Ok(match argument {
            RecordingArgument::File(path) => Recording::File(path),
            RecordingArgument::Samples(name, array, sample_rate) => {
                let samples = read_samples(&name, &array)?;
                Recording::Samples { name, audio: Audio { samples, sample_rate } }
            }
        })
    }

    /// Name in errors.
    fn name(&self) -> String {
        match self {
            Recording::Samples { name, .. } => name.clone(),
            Recording::File(path) => path.display().to_string(),
        }
    }
}

/// A recording that was read.
enum LoadedRecording {
    Short(Audio),
    /// The transcription of a recording that was processed in parts.
    Long(Box<Transcription>),
}

/// A call that transcribes recordings.
pub struct Batch<'a> {
    /// The recognizer.
    pub recognizer: &'a Recognizer,
    /// Options of the coverage, if requested.
    pub coverage: Option<CoverageOptions>,
}

impl Batch<'_> {
    /// Transcribes short recordings in one batch, and long ones one by one.
    ///
    /// # Errors
    /// `ValueError`, `OSError` or `MemoryError` for the first recording that cannot be transcribed.
    pub fn transcribe(&self, recordings: Vec<Recording>) -> PyResult<Vec<Transcription>> {
        let names: Vec<String> = recordings.iter().map(Recording::name).collect();
        let (mut short_recordings, mut long_transcriptions) = (Vec::new(), Vec::new());
        for recording in recordings {
            long_transcriptions.push(match self.load(recording)? {
                LoadedRecording::Short(audio) => {
                    short_recordings.push(audio);
                    None
                }
                LoadedRecording::Long(transcription) => Some(*transcription),
            });
        }
        let short_transcriptions = self.recognizer.recognizer.transcribe_all(&short_recordings);
        let mut short_transcriptions = short_recordings.iter().zip(short_transcriptions);
        let transcription = |(name, long): (String, Option<Transcription>)| match long {
            Some(transcription) => Ok(transcription),
            None => short_transcriptions
                .next()
                .map_or(Ok(Transcription::default()), |(audio, transcription)| {
                    self.cover(audio, transcription?)
                })
                .map_err(|error| named_error(&name, error)),
        };
        names.into_iter().zip(long_transcriptions).map(transcription).collect()
    }

    /// Adds the coverage to a transcription, if requested.
    fn cover(&self, audio: &Audio, transcription: Transcription) -> recognizer::Result<Transcription> {
        match &self.coverage {
            Some(options) => self.recognizer.recognizer.cover(audio, transcription, options),
            None => Ok(transcription),
        }
    }

    /// Reads a recording, and transcribes it if it is long.
    fn load(&self, recording: Recording) -> PyResult<LoadedRecording> {
        let (rate, recognizer) = (self.recognizer.sample_rate(), &self.recognizer.recognizer);
        let max_samples = match recognizer.supports_streams() {
            true => (self.recognizer.long_seconds * f64::from(rate)) as usize,
            false => usize::MAX,
        };
        match recording {
            Recording::Samples { name, audio } => {
                let audio = self.recognizer.with_model_rate(&name, audio)?;
                if audio.samples.len() <= max_samples {
                    return Ok(LoadedRecording::Short(audio));
                }
                let transcription = self.transcribe_long(&audio);
                let transcription = transcription.map_err(|error| named_error(&name, error))?;
                Ok(LoadedRecording::Long(Box::new(transcription)))
            }
            Recording::File(path) => {
                let open = || {
                    let chunks = AudioChunks::open(&path, rate, recognizer.conversion());
                    chunks.map_err(|error| to_python_error(error.into()))
                };
                let samples = open()?.read_up_to(max_samples);
                let samples = samples.map_err(|error| to_python_error(error.into()))?;
                if samples.len() <= max_samples {
                    return Ok(LoadedRecording::Short(Audio { samples, sample_rate: rate }));
                }
                // The file is read again instead of being kept in memory.
                drop(samples);
                let transcription = self.transcribe_long_file(open()?, rate);
                let transcription = transcription.map_err(|error| match error {
                    // These errors contain the path.
                    error @ recognizer::Error::Model(model::Error::Speech(_)) => to_python_error(error),
                    error => named_error(&path.display().to_string(), error),
                });
                Ok(LoadedRecording::Long(Box::new(transcription?)))
            }
        }
    }

    /// Transcribes the samples of a long recording in parts.
    fn transcribe_long(&self, audio: &Audio) -> recognizer::Result<Transcription> {
        let (recognizer, window) = (&self.recognizer.recognizer, self.recognizer.window);
        let chunks = audio.samples.chunks(SAMPLES_PER_CHUNK).map(|chunk| Ok(chunk.to_vec()));
        self.cover(audio, recognizer.transcribe_chunks(chunks, window)?)
    }

    /// Transcribes a long file in parts; the coverage needs all of its samples in memory.
    fn transcribe_long_file(
        &self,
        mut chunks: AudioChunks,
        sample_rate: u32,
    ) -> recognizer::Result<Transcription> {
        if self.coverage.is_none() {
            return self.recognizer.recognizer.transcribe_chunks(chunks, self.recognizer.window);
        }
        let samples = chunks.read_up_to(usize::MAX)?;
        self.transcribe_long(&Audio { samples, sample_rate })
    }
}
