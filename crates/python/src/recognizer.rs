//! Speech recognition: recordings and streams, with the results of `panda transcribe`.
use std::{error::Error, io, path::PathBuf};

use dlpark::ffi::DLDataType;
use pyo3::{
    Bound, FromPyObject, PyAny, PyErr, PyResult, Python,
    exceptions::{
        PyFileNotFoundError, PyIsADirectoryError, PyMemoryError, PyOSError, PyPermissionError, PyValueError,
    },
    pyclass, pymethods,
};
use recognizer::{
    EndpointConfig, StreamingOptions, StreamingRecognizer, StreamingUpdate, Transcription, WindowConfig,
};
use speech::{Audio, AudioChunks, ResampleStream};

use crate::{
    arrays::Borrowed,
    process_mutex::ProcessMutex,
    recognizer_options::{FusionSources, RecognizerOptions},
    threads,
};

/// Samples of a long array that are processed at a time.
const SAMPLES_PER_CHUNK: usize = 1 << 16;
/// Size of a step of 16-bit samples: they are numbers from -1 to 1.
const INT16_STEP: f32 = 1.0 / 32768.0;

/// Text, start, end and confidence of a word.
type WordTuple = (String, f64, f64, f64);
/// Text, start, end, log-probability and confidence of a token.
type TokenTuple = (String, f64, f64, f64, f64);
/// Text, score and log-probability of an alternative.
type AlternativeTuple = (String, f64, f64);
/// Text, words, tokens, n-best texts, and whether it is silence.
type TranscriptTuple = (String, Vec<WordTuple>, Vec<TokenTuple>, Vec<AlternativeTuple>, bool);
/// New final words, partial text, and whether an utterance has ended.
type UpdateTuple = (TranscriptTuple, String, bool);

/// A recording as an argument: samples with their name and rate, or a file.
#[derive(FromPyObject)]
enum RecordingArgument<'py> {
    Samples(String, Bound<'py, PyAny>, u32),
    #[pyo3(transparent)]
    File(PathBuf),
}

/// A recording.
enum Recording {
    Samples { name: String, audio: Audio },
    File(PathBuf),
}

impl Recording {
    fn new(argument: RecordingArgument) -> PyResult<Self> {
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

/// A recognizer; calls of several threads take turns.
#[pyclass(frozen, module = "panda_rnnt._native")]
pub struct Recognizer {
    recognizer: recognizer::Recognizer,
    long_seconds: f64,
    window: WindowConfig,
    warnings: Vec<String>,
    /// Locked outside of the thread pool: a task that waits in it could hold the lock that another
    /// task on the same thread waits for.
    turn: ProcessMutex<()>,
}

#[pymethods]
impl Recognizer {
    #[new]
    #[pyo3(signature = (path, options, lm, minus_lm, phrases))]
    fn new(
        py: Python,
        path: PathBuf,
        options: &str,
        lm: Option<PathBuf>,
        minus_lm: Option<PathBuf>,
        phrases: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        let options = RecognizerOptions::parse(options)?;
        let sources = FusionSources { lm, minus_lm, phrases };
        let (recognizer, mut warnings) = py.detach(|| {
            threads::install(|| {
                let recognizer = match options.encoder_format()? {
                    Some(format) => recognizer::Recognizer::load_as(&path, format),
                    None => recognizer::Recognizer::load(&path),
                };
                let recognizer = recognizer.map_err(to_python_error)?;
                options.apply(recognizer, &sources)
            })?
        })?;
        warnings.extend(recognizer.warning().map(str::to_owned));
        Ok(Self {
            recognizer,
            long_seconds: options.long,
            window: options.window(),
            warnings,
            turn: ProcessMutex::new(()),
        })
    }

    /// Warnings about the checkpoint, phrases and n-grams.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// Sample rate of the model in hertz.
    #[getter]
    fn sample_rate(&self) -> u32 {
        self.recognizer.model().config().input.features.sample_rate
    }

    /// Seconds from one encoder frame to the next.
    #[getter]
    fn frame_seconds(&self) -> f64 {
        self.recognizer.model().config().frame_ms() / 1000.0
    }

    /// Texts of the labels.
    #[getter]
    fn tokens(&self) -> Vec<String> {
        self.recognizer.tokenizer().tokens().to_vec()
    }

    /// Transcribes recordings in one batch.
    fn transcribe(&self, py: Python, recordings: Vec<RecordingArgument>) -> PyResult<Vec<TranscriptTuple>> {
        let recordings: Vec<Recording> =
            recordings.into_iter().map(Recording::new).collect::<PyResult<_>>()?;
        let transcriptions =
            py.detach(|| self.turn.with(|()| threads::install(|| self.transcribe_batch(recordings))?))?;
        Ok(transcriptions.into_iter().map(transcript_tuple).collect())
    }

    /// Starts a stream of samples at a rate; a pause or latest of 0 is none.
    fn stream(&self, py: Python, sample_rate: u32, pause: f64, latest: f64) -> PyResult<Stream> {
        let endpoint = EndpointConfig { silence_after_words: pause, ..EndpointConfig::default() };
        let options = StreamingOptions {
            window: self.window,
            endpoint: (pause > 0.0).then_some(endpoint),
            latest: (latest > 0.0).then_some(latest),
        };
        let model_rate = self.sample_rate();
        let mut resampler = None;
        if sample_rate != model_rate {
            self.expect_resampling(sample_rate)?;
            let stream = ResampleStream::new(sample_rate, model_rate);
            resampler = Some(stream.map_err(|error| to_python_error(error.into()))?);
        }
        let recognizer = py.detach(|| threads::install(|| self.recognizer.stream(&options)))?;
        let recognizer = recognizer.map_err(to_python_error)?;
        Ok(Stream {
            is_immediate: recognizer.is_immediate(),
            state: ProcessMutex::new(Some(StreamState { recognizer, resampler })),
        })
    }
}

impl Recognizer {
    /// Transcribes short recordings in one batch, and long ones one by one.
    fn transcribe_batch(&self, recordings: Vec<Recording>) -> PyResult<Vec<Transcription>> {
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
        let mut short_transcriptions = self.recognizer.transcribe_all(&short_recordings).into_iter();
        let transcription = |(name, long): (String, Option<Transcription>)| match long {
            Some(transcription) => Ok(transcription),
            None => short_transcriptions
                .next()
                .unwrap_or_else(|| Ok(Transcription::default()))
                .map_err(|error| named_error(&name, error)),
        };
        names.into_iter().zip(long_transcriptions).map(transcription).collect()
    }

    /// Reads a recording, and transcribes it if it is long.
    fn load(&self, recording: Recording) -> PyResult<LoadedRecording> {
        let rate = self.sample_rate();
        let supports_streams = self.recognizer.supports_streams();
        let max_samples = match supports_streams {
            true => (self.long_seconds * f64::from(rate)) as usize,
            false => usize::MAX,
        };
        match recording {
            Recording::Samples { name, audio } => {
                let audio = self.with_model_rate(&name, audio)?;
                if audio.samples.len() <= max_samples {
                    return Ok(LoadedRecording::Short(audio));
                }
                let chunks = audio.samples.chunks(SAMPLES_PER_CHUNK).map(|chunk| Ok(chunk.to_vec()));
                let transcription = self.recognizer.transcribe_chunks(chunks, self.window);
                let transcription = transcription.map_err(|error| named_error(&name, error))?;
                Ok(LoadedRecording::Long(Box::new(transcription)))
            }
            Recording::File(path) => {
                let open = || {
                    let chunks = AudioChunks::open(&path, rate, self.recognizer.conversion());
                    chunks.map_err(|error| to_python_error(error.into()))
                };
                let samples = open()?.read_up_to(max_samples);
                let samples = samples.map_err(|error| to_python_error(error.into()))?;
                if samples.len() <= max_samples {
                    return Ok(LoadedRecording::Short(Audio { samples, sample_rate: rate }));
                }
                // The file is read again instead of being kept in memory.
                drop(samples);
                let transcription = self.recognizer.transcribe_chunks(open()?, self.window);
                let transcription = transcription.map_err(|error| match error {
                    // These errors contain the path.
                    error @ recognizer::Error::Model(model::Error::Speech(_)) => to_python_error(error),
                    error => named_error(&path.display().to_string(), error),
                });
                Ok(LoadedRecording::Long(Box::new(transcription?)))
            }
        }
    }

    /// Converts samples to the model's rate.
    fn with_model_rate(&self, name: &str, audio: Audio) -> PyResult<Audio> {
        let rate = self.sample_rate();
        if audio.sample_rate == rate {
            return Ok(audio);
        }
        self.expect_resampling(audio.sample_rate)?;
        speech::resample(&audio, rate).map_err(|error| named_error(name, error.into()))
    }

    /// Fails unless the recognizer resamples.
    fn expect_resampling(&self, found: u32) -> PyResult<()> {
        if self.recognizer.conversion().resample {
            return Ok(());
        }
        let expected = self.sample_rate();
        Err(PyValueError::new_err(format!(
            "sample_rate: expected {expected}, that of the model, found {found}; resample=True converts it"
        )))
    }
}

/// A stream of samples; none after its end.
#[pyclass(frozen, module = "panda_rnnt._native")]
pub struct Stream {
    state: ProcessMutex<Option<StreamState>>,
    is_immediate: bool,
}

/// Recognizer of a stream, and the conversion to its sample rate.
struct StreamState {
    recognizer: StreamingRecognizer,
    resampler: Option<ResampleStream>,
}

impl StreamState {
    fn push(&mut self, samples: &[f32]) -> recognizer::Result<Vec<StreamingUpdate>> {
        let Some(resampler) = &mut self.resampler else { return self.recognizer.push_split(samples) };
        let mut resampled = Vec::new();
        resampler.push(samples, &mut resampled)?;
        self.recognizer.push_split(&resampled)
    }

    fn finish(mut self) -> recognizer::Result<Vec<StreamingUpdate>> {
        let mut updates = Vec::new();
        if let Some(resampler) = self.resampler {
            let mut resampled = Vec::new();
            resampler.finish(&mut resampled)?;
            updates = self.recognizer.push_split(&resampled)?;
        }
        updates.extend(self.recognizer.finish_split()?);
        Ok(updates)
    }
}

#[pymethods]
impl Stream {
    /// Whether words arrive without the delay of windows.
    #[getter]
    fn is_immediate(&self) -> bool {
        self.is_immediate
    }

    /// Processes samples; returns an update for each endpoint, and one for the rest.
    fn push(&self, py: Python, samples: &Bound<PyAny>) -> PyResult<Vec<UpdateTuple>> {
        let samples = read_samples("samples", samples)?;
        let updates = py.detach(|| {
            self.state.with(|state| {
                let state = state.as_mut().ok_or_else(ended_error)?;
                threads::install(|| state.push(&samples))?.map_err(to_python_error)
            })
        })?;
        Ok(updates.into_iter().map(update_tuple).collect())
    }

    /// Ends the stream; returns its last updates.
    fn finish(&self, py: Python) -> PyResult<Vec<UpdateTuple>> {
        let updates = py.detach(|| {
            self.state.with(|state| {
                let state = state.take().ok_or_else(ended_error)?;
                threads::install(|| state.finish())?.map_err(to_python_error)
            })
        })?;
        Ok(updates.into_iter().map(update_tuple).collect())
    }

    /// Ends the stream without results.
    fn close(&self, py: Python) -> PyResult<()> {
        py.detach(|| {
            self.state.with(|state| {
                *state = None;
                Ok(())
            })
        })
    }
}

/// Copies samples of float32, float64 or int16 as numbers from -1 to 1.
///
/// `name` is that of the recording in errors.
fn read_samples(name: &str, array: &Bound<PyAny>) -> PyResult<Vec<f32>> {
    let array = Borrowed::new("samples", array, 1)?;
    let samples: Vec<f32> = match array.dtype() {
        DLDataType::F32 => array.elements::<f32>()?.to_vec(),
        DLDataType::F64 => array.elements::<f64>()?.iter().map(|&sample| sample as f32).collect(),
        DLDataType::I16 => {
            array.elements::<i16>()?.iter().map(|&sample| f32::from(sample) * INT16_STEP).collect()
        }
        _ => return Err(array.dtype_error("float32, float64 or int16")),
    };
    speech::check_samples(0, &samples).map_err(|error| named_error(name, error.into()))?;
    Ok(samples)
}

fn ended_error() -> PyErr {
    PyValueError::new_err("stream: expected an open stream, found one that was finished or closed")
}

/// Converts an error of the recognizer.
///
/// Errors of the system become `OSError` or a subclass, others `ValueError` or `MemoryError`.
pub fn to_python_error(error: recognizer::Error) -> PyErr {
    let message = error.to_string();
    new_python_error(&error, message)
}

/// Converts an error about a recording.
fn named_error(name: &str, error: recognizer::Error) -> PyErr {
    let message = format!("{name}: {error}");
    new_python_error(&error, message)
}

fn new_python_error(error: &recognizer::Error, message: String) -> PyErr {
    use recognizer::Error::Model;
    match error {
        Model(model::Error::Memory { .. } | model::Error::Speech(speech::Error::Memory { .. })) => {
            return PyMemoryError::new_err(message);
        }
        Model(model::Error::Speech(speech::Error::FileRate { .. })) => {
            return PyValueError::new_err(format!("{message}; resample=True converts it"));
        }
        _ => {}
    }
    match system_error_kind(error) {
        None => PyValueError::new_err(message),
        Some(io::ErrorKind::NotFound) => PyFileNotFoundError::new_err(message),
        Some(io::ErrorKind::PermissionDenied) => PyPermissionError::new_err(message),
        Some(io::ErrorKind::IsADirectory) => PyIsADirectoryError::new_err(message),
        Some(_) => PyOSError::new_err(message),
    }
}

/// Returns the kind of the underlying error of the system, if any.
fn system_error_kind(error: &recognizer::Error) -> Option<io::ErrorKind> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        next = error.source();
    }
    None
}

fn transcript_tuple(transcription: Transcription) -> TranscriptTuple {
    let Transcription { text, words, tokens, nbest, is_discarded, .. } = transcription;
    (
        text,
        words.into_iter().map(|word| (word.text, word.start, word.end, word.confidence)).collect(),
        tokens
            .into_iter()
            .map(|token| (token.text, token.start, token.end, token.log_prob, token.confidence))
            .collect(),
        nbest.into_iter().map(|ranked| (ranked.text, ranked.score, ranked.log_prob)).collect(),
        is_discarded,
    )
}

fn update_tuple(update: StreamingUpdate) -> UpdateTuple {
    (transcript_tuple(update.final_words), update.partial, update.endpoint)
}
