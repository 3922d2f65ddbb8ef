//! Speech recognition: recordings and streams, with the results of `panda transcribe`.
use std::path::PathBuf;

use pyo3::{Bound, PyAny, PyErr, PyResult, Python, exceptions::PyValueError, pyclass, pymethods};
use recognizer::{
    CoverageOptions, EndpointConfig, StreamingOptions, StreamingRecognizer, StreamingUpdate, Transcription,
    WindowConfig,
};
use speech::ResampleStream;

use crate::{
    process_mutex::ProcessMutex,
    recognizer_batch::{Batch, Recording, RecordingArgument, expect_resampling, read_samples},
    recognizer_errors::to_python_error,
    recognizer_options::{CoverageArgument, RecognizerOptions, SearchSources},
    threads,
};

/// Text, start, end and confidence of a word; true if it was recovered.
type WordTuple = (String, f64, f64, f64, bool);
/// Text, start, end, log-probability and confidence of a token.
type TokenTuple = (String, f64, f64, f64, f64);
/// Text, score and log-probability of an alternative.
type AlternativeTuple = (String, f64, f64);
/// Text, words, tokens, n-best texts, silence flag, coverage as JSON.
type TranscriptTuple = (String, Vec<WordTuple>, Vec<TokenTuple>, Vec<AlternativeTuple>, bool, Option<String>);
/// New final words, partial text, and whether an utterance has ended.
type UpdateTuple = (TranscriptTuple, String, bool);

/// A recognizer; calls of several threads take turns.
#[pyclass(frozen, module = "panda_rnnt._native")]
pub struct Recognizer {
    /// The recognizer of the library.
    pub recognizer: recognizer::Recognizer,
    /// Seconds from which a recording is processed in parts.
    pub long_seconds: f64,
    /// Windows of long recordings and streams.
    pub window: WindowConfig,
    warnings: Vec<String>,
    /// Locked outside of the thread pool: a task that waits in it could hold the lock that another
    /// task on the same thread waits for.
    turn: ProcessMutex<()>,
}

#[pymethods]
impl Recognizer {
    #[new]
    fn new(py: Python, path: PathBuf, options: &str, sources: SearchSources) -> PyResult<Self> {
        let options = RecognizerOptions::parse(options, sources)?;
        let (recognizer, mut warnings) = py.detach(|| {
            threads::install(|| {
                let recognizer = match options.encoder_format()? {
                    Some(format) => recognizer::Recognizer::load_as(&path, format),
                    None => recognizer::Recognizer::load(&path),
                };
                let recognizer = recognizer.map_err(to_python_error)?;
                options.apply(recognizer)
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

    /// Warnings about the checkpoint, n-grams and phrases.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// Sample rate of the model in hertz.
    #[getter]
    pub fn sample_rate(&self) -> u32 {
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

    /// Transcribes recordings in one batch, with their coverage if it has options.
    fn transcribe(
        &self,
        py: Python,
        recordings: Vec<RecordingArgument>,
        coverage: Option<CoverageArgument>,
    ) -> PyResult<Vec<TranscriptTuple>> {
        let recordings: Vec<Recording> =
            recordings.into_iter().map(Recording::new).collect::<PyResult<_>>()?;
        let batch = Batch {
            recognizer: &self.recognizer,
            long_seconds: self.long_seconds,
            window: self.window,
            coverage: coverage.map(CoverageOptions::from),
        };
        let transcriptions =
            py.detach(|| self.turn.with(|()| threads::install(|| batch.transcribe(recordings))?))?;
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
            expect_resampling(&self.recognizer, sample_rate)?;
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

impl Recognizer {}

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

fn ended_error() -> PyErr {
    PyValueError::new_err("stream: expected an open stream, found one that was finished or closed")
}

fn transcript_tuple(transcription: Transcription) -> TranscriptTuple {
    let Transcription { text, words, tokens, nbest, is_discarded, coverage } = transcription;
    (
        text,
        words
            .into_iter()
            .map(|word| (word.text, word.start, word.end, word.confidence, word.is_recovered))
            .collect(),
        tokens
            .into_iter()
            .map(|token| (token.text, token.start, token.end, token.log_prob, token.confidence))
            .collect(),
        nbest.into_iter().map(|ranked| (ranked.text, ranked.score, ranked.log_prob)).collect(),
        is_discarded,
        coverage.map(|coverage| serde_json::to_string(&coverage).expect("numbers and names are valid JSON")),
    )
}

fn update_tuple(update: StreamingUpdate) -> UpdateTuple {
    (transcript_tuple(update.final_words), update.partial, update.endpoint)
}
