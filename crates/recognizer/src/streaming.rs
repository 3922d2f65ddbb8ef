//! `StreamingRecognizer`: final words and partial texts while audio arrives.
//!
//! samples → [`EncodingStream`] → encoder rows → [`StreamingSearch`] → labels → [`SpeechGate`] (the
//! silence filter) → words. Endpoint rules end an utterance at a pause.
pub(crate) mod chunked;
pub(crate) mod encoder;
mod search;
mod speech_gate;

use decoding::DecodedToken;
use speech::Tokenizer;

use crate::recognizer::Recognizer;
use crate::streaming::chunked::{ChunkedEncoder, WindowConfig};
use crate::streaming::encoder::{StreamId, StreamingEncoder};
use crate::transcription::{Transcription, TranscriptionBuilder};
use crate::words::word_ranges;
use crate::{Error, Result};
use search::StreamingSearch;
use speech_gate::SpeechGate;

/// Largest number of labels without a decision of the silence filter.
const MAX_PENDING_LABELS: usize = 1000;

/// Rules that end an utterance, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EndpointConfig {
    /// Time without a label after a label.
    pub silence_after_words: f64,
    /// Time without a label if there is none.
    pub silence_without_words: f64,
    /// Longest utterance; an incomplete last word then belongs to the next one.
    pub max_seconds: f64,
}

/// The rules of Kaldi's online decoders.
///
/// An utterance ends 1.2 s after words, after 2.4 s without words, or after 20 s.
impl Default for EndpointConfig {
    fn default() -> Self {
        EndpointConfig { silence_after_words: 1.2, silence_without_words: 2.4, max_seconds: 20.0 }
    }
}

/// New results of a stream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StreamingUpdate {
    /// Final words with their tokens.
    pub final_words: Transcription,
    /// Words that are not final.
    ///
    /// The last, possibly incomplete word, words that the silence filter has not accepted, and the
    /// words of a beam's best hypothesis that other hypotheses do not share.
    pub partial: String,
    /// Whether words were discarded as silence.
    pub has_discarded: bool,
    /// Whether an utterance has ended; after a pause, all of its words are final.
    pub endpoint: bool,
}

impl StreamingUpdate {
    /// Merges successive updates.
    fn join(updates: Vec<StreamingUpdate>) -> StreamingUpdate {
        let mut merged = StreamingUpdate::default();
        for update in updates {
            merged.final_words.append(update.final_words);
            merged.endpoint |= update.endpoint;
            (merged.partial, merged.has_discarded) = (update.partial, update.has_discarded);
        }
        merged
    }
}

/// Recognizes a recording while it arrives, in constant memory.
///
/// The words do not depend on the chunks of the recording: all decisions are made after frames, not
/// after chunks. Without endpoints and [`StreamingOptions::latest`], the words of a causal model
/// are those of offline recognition; other models process overlapping windows ([`ChunkedEncoder`]),
/// which delays their words. The recognizer's search, greedy or a beam (modified or mAES),
/// continues across chunks. A beam's words are final once all hypotheses share them; at a pause,
/// after [`StreamingOptions::latest`], and with a thousand pending labels, the best hypothesis is
/// chosen.
///
/// Words are pending until one of them reaches the smallest posterior of
/// [`Recognizer::with_silence`]; after that, all words are returned. Pending words are discarded at
/// a pause, at the end, and when they have a thousand labels. A word of more than a thousand labels
/// is split.
///
/// ```no_run
/// use recognizer::{Recognizer, StreamingOptions};
///
/// let recognizer = Recognizer::load("streaming.safetensors".as_ref())?;
/// let mut stream = recognizer.stream(&StreamingOptions::default())?;
/// let mut source = speech::PcmReader::new(std::io::stdin());
/// while let Some(samples) = source.read_chunk()? {
///     for word in stream.push(&samples)?.final_words.words {
///         println!("{:.2} {}", word.start, word.text);
///     }
/// }
/// let rest = stream.finish()?;
/// # Ok::<(), recognizer::Error>(())
/// ```
pub struct StreamingRecognizer {
    encoder: EncodingStream,
    search: StreamingSearch,
    tokenizer: Tokenizer,
    builder: TranscriptionBuilder,
    endpoint_rules: Option<EndpointConfig>,
    gate: SpeechGate,
    /// Labels of words that are incomplete or not accepted yet.
    pending_labels: Vec<DecodedToken>,
    has_discarded: bool,
    /// Encoder rows that are not decoded yet.
    pending_rows: Vec<f32>,
    /// First encoder frame of the current utterance.
    utterance_start: usize,
    /// Number of labels of the current utterance so far.
    num_utterance_labels: usize,
}

/// The encoder of a stream, which computes encoder rows from samples.
enum EncodingStream {
    Causal(Box<StreamingEncoder>, StreamId),
    Chunked(Box<ChunkedEncoder>),
}

/// Options of [`Recognizer::stream`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StreamingOptions {
    /// Windows for models that are not causal.
    pub window: WindowConfig,
    /// Rules that end an utterance; `None` never ends one.
    ///
    /// The search continues across endpoints; they only make words final.
    pub endpoint: Option<EndpointConfig>,
    /// Commits labels after this many seconds without agreement of the beam.
    ///
    /// `None` waits, so that words are those of offline recognition; two hypotheses that differ in
    /// an old label may coexist for minutes.
    pub latest: Option<f64>,
}

impl Recognizer {
    /// Starts streaming recognition.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) for a search other than greedy (in a CTC model, with
    /// its head) or a beam with the joint network only, windows that are too short, or an invalid
    /// time; [`Error::Decoding`](model::Error::Decoding) for a kind of beam search that cannot
    /// stream; those of the front end.
    pub fn stream(&self, options: &StreamingOptions) -> Result<StreamingRecognizer> {
        if options.latest.is_some_and(|latest| latest.is_nan() || latest < 0.0) {
            let expected = "a number of seconds, at least 0, or none";
            return Err(Error::shape("latest", expected, "another"));
        }
        let search = StreamingSearch::new(self, options.latest)?;
        let encoder = match StreamingEncoder::new(self.model()) {
            Ok(mut encoder) => {
                let stream = encoder.open();
                EncodingStream::Causal(Box::new(encoder), stream)
            }
            Err(Error::NotStreaming { .. }) => {
                EncodingStream::Chunked(Box::new(ChunkedEncoder::new(self.model(), options.window)?))
            }
            Err(error) => return Err(error),
        };
        Ok(StreamingRecognizer {
            encoder,
            search,
            tokenizer: self.tokenizer().clone(),
            builder: self.transcription_builder(),
            endpoint_rules: options.endpoint,
            gate: SpeechGate::new(self.min_posterior(), self.new_unfused_search()?),
            pending_labels: Vec::new(),
            has_discarded: false,
            pending_rows: Vec::new(),
            utterance_start: 0,
            num_utterance_labels: 0,
        })
    }

    /// Recognizes a long recording chunk by chunk, in constant memory.
    ///
    /// The result is that of [`Recognizer::stream`], returned at the end.
    ///
    /// # Errors
    /// Those of [`Recognizer::stream`], of the chunks, and of [`StreamingRecognizer::push`].
    pub fn transcribe_chunks(
        &self,
        chunks: impl IntoIterator<Item = speech::Result<Vec<f32>>>,
        window: WindowConfig,
    ) -> Result<Transcription> {
        let mut stream = self.stream(&StreamingOptions { window, ..StreamingOptions::default() })?;
        let mut transcription = Transcription::default();
        for chunk in chunks {
            transcription.append(stream.push(&chunk?)?.final_words);
        }
        let rest = stream.finish()?;
        transcription.is_discarded = rest.has_discarded;
        transcription.append(rest.final_words);
        Ok(transcription)
    }
}

impl StreamingRecognizer {
    /// Returns the sample rate of the input.
    pub fn sample_rate(&self) -> u32 {
        match &self.encoder {
            EncodingStream::Causal(encoder, _) => encoder.sample_rate(),
            EncodingStream::Chunked(encoder) => encoder.sample_rate(),
        }
    }

    /// Returns whether words arrive without the delay of windows.
    pub fn is_immediate(&self) -> bool {
        matches!(self.encoder, EncodingStream::Causal(..))
    }

    /// Processes the next samples.
    ///
    /// # Errors
    /// [`Error::Speech`](model::Error::Speech) for an invalid sample,
    /// [`Error::Decoding`](model::Error::Decoding) if the model computes invalid scores.
    ///
    /// Cost: that of features, encoder and search for the new rows.
    pub fn push(&mut self, samples: &[f32]) -> Result<StreamingUpdate> {
        Ok(StreamingUpdate::join(self.push_split(samples)?))
    }

    /// Processes the next samples; returns a separate update for each endpoint.
    ///
    /// The last update follows the last endpoint. Utterances then do not depend on the chunk
    /// lengths.
    ///
    /// # Errors
    /// Those of [`Self::push`].
    pub fn push_split(&mut self, samples: &[f32]) -> Result<Vec<StreamingUpdate>> {
        if samples.is_empty() {
            return self.decode(false);
        }
        self.gate.push_samples(samples);
        match &mut self.encoder {
            EncodingStream::Causal(encoder, stream) => {
                encoder.push(*stream, samples)?;
                encoder.encode()?.into_iter().for_each(|chunk| self.pending_rows.extend(chunk.rows));
            }
            EncodingStream::Chunked(encoder) => encoder.push(samples, &mut self.pending_rows).map(drop)?,
        }
        self.decode(false)
    }

    /// Ends the recording and returns its remaining words.
    ///
    /// # Errors
    /// Those of [`Self::push`].
    pub fn finish(self) -> Result<StreamingUpdate> {
        Ok(StreamingUpdate::join(self.finish_split()?))
    }

    /// Ends the recording; returns a separate update for each endpoint and a last one.
    ///
    /// # Errors
    /// Those of [`Self::push`].
    pub fn finish_split(mut self) -> Result<Vec<StreamingUpdate>> {
        match &mut self.encoder {
            EncodingStream::Causal(encoder, stream) => {
                // An empty recording has no rows.
                if self.gate.has_samples() {
                    encoder.finish(*stream)?;
                }
                encoder.encode()?.into_iter().for_each(|chunk| self.pending_rows.extend(chunk.rows));
            }
            EncodingStream::Chunked(encoder) => encoder.finish(&mut self.pending_rows).map(drop)?,
        }
        self.decode(true)
    }

    /// Decodes the pending rows; returns an update for each endpoint and for the rest.
    fn decode(&mut self, is_end: bool) -> Result<Vec<StreamingUpdate>> {
        let rows = std::mem::take(&mut self.pending_rows);
        let (mut updates, mut final_words, mut start) = (Vec::new(), Transcription::default(), 0);
        while start < rows.len() {
            let end = if self.must_decode_by_frame() { start + self.search.row_width() } else { rows.len() };
            let is_endpoint = self.decode_rows(&rows[start..end], &mut final_words)?;
            start = end;
            if is_endpoint {
                updates.push(self.new_update(std::mem::take(&mut final_words), true)?);
            }
        }
        if is_end {
            let last_labels = self.search.commit(true)?;
            self.add_labels(last_labels);
            final_words.append(self.take_final_words(true)?);
        }
        updates.push(self.new_update(final_words, false)?);
        Ok(updates)
    }

    /// Returns whether decisions depend on the grouping of rows, unlike greedy labels.
    fn must_decode_by_frame(&self) -> bool {
        self.search.is_beam() || self.endpoint_rules.is_some() || !self.gate.is_open()
    }

    /// Decodes rows and appends final words; returns whether an utterance has ended.
    fn decode_rows(&mut self, rows: &[f32], final_words: &mut Transcription) -> Result<bool> {
        let labels = self.search.advance(rows)?;
        self.gate.push_rows(rows)?;
        let has_labels = !labels.is_empty();
        self.add_labels(labels);
        let (is_pause, is_endpoint) = self.detect_endpoint();
        if is_pause {
            let committed_labels = self.search.commit(false)?;
            self.add_labels(committed_labels);
        }
        // An open gate returns nothing without new labels or a pause.
        if has_labels || is_pause || !self.gate.is_open() {
            final_words.append(self.take_final_words(is_pause)?);
        }
        if is_endpoint {
            (self.utterance_start, self.num_utterance_labels) =
                (self.search.frames(), self.pending_labels.len());
        }
        Ok(is_endpoint)
    }

    /// Creates an update with new final words and the present partial text.
    fn new_update(&self, final_words: Transcription, endpoint: bool) -> Result<StreamingUpdate> {
        let partial_ids: Vec<u32> = self
            .pending_labels
            .iter()
            .chain(self.search.unstable_labels())
            .map(|label| label.label)
            .collect();
        Ok(StreamingUpdate {
            final_words,
            partial: self.builder.text(&self.tokenizer, &partial_ids)?,
            has_discarded: self.has_discarded,
            endpoint,
        })
    }

    /// Removes and returns the final words, once the gate accepts words.
    ///
    /// `is_over` is true at a pause and at the end: all words are then final.
    fn take_final_words(&mut self, is_over: bool) -> Result<Transcription> {
        let ids: Vec<u32> = self.pending_labels.iter().map(|label| label.label).collect();
        let words = word_ranges(&self.tokenizer, &ids);
        // 1. Complete words: without a pause, the last word may continue. A single word with too
        // many labels is split.
        let must_split_word = words.len() == 1 && self.pending_labels.len() > MAX_PENDING_LABELS;
        let num_complete = words.len() - usize::from(!is_over && !must_split_word && !words.is_empty());
        // 2. The silence filter.
        let must_decide = is_over || self.pending_labels.len() > MAX_PENDING_LABELS;
        self.gate.update(&self.tokenizer, &self.pending_labels, &words[..num_complete], must_decide);
        // 3. Labels of final words become text; those of discarded words are dropped.
        let num_final_labels = match words.get(num_complete) {
            _ if !self.gate.is_open() => 0,
            Some(word) => word.start,
            None => self.pending_labels.len(),
        };
        let final_words = match num_final_labels {
            0 => Transcription::default(),
            _ => self.builder.build(&self.tokenizer, &self.pending_labels[..num_final_labels])?,
        };
        self.pending_labels.drain(..num_final_labels);
        if !self.gate.is_open() && !self.pending_labels.is_empty() && must_decide {
            self.has_discarded = true;
            self.pending_labels.clear();
        }
        Ok(final_words)
    }

    /// Adds labels that the search has made final.
    fn add_labels(&mut self, labels: Vec<DecodedToken>) {
        self.num_utterance_labels += labels.len();
        self.pending_labels.extend(labels);
    }

    /// Returns whether there is a pause, and whether an utterance has ended.
    fn detect_endpoint(&self) -> (bool, bool) {
        let Some(EndpointConfig { silence_after_words, silence_without_words, max_seconds }) =
            self.endpoint_rules
        else {
            return (false, false);
        };
        let frames = self.search.frames() - self.utterance_start;
        let seconds = |frames: usize| frames as f64 * self.builder.frame_seconds();
        let silence = seconds(self.search.trailing_frames().min(frames));
        let min_pause = if self.num_utterance_labels + self.search.unstable_labels().len() > 0 {
            silence_after_words
        } else {
            silence_without_words
        };
        let is_pause = frames > 0 && silence >= min_pause;
        (is_pause, is_pause || seconds(frames) >= max_seconds)
    }
}
