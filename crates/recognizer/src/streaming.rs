//! Recognition while sound arrives: words as soon as they are complete, and what seems to come.
pub(crate) mod chunked;
pub(crate) mod encoder;
mod search;
mod speech_gate;

use decoding::Emitted;
use speech::Tokenizer;

use crate::recognizer::Recognizer;
use crate::streaming::chunked::{ChunkedEncoder, WindowConfig};
use crate::streaming::encoder::{StreamId, StreamingEncoder};
use crate::transcription::{Transcription, Writer};
use crate::words::groups;
use crate::{Error, Result};
use search::StreamingSearch;
use speech_gate::SpeechGate;

/// Most labels that wait for the silence filter or for the end of their word.
const MAX_HELD: usize = 1000;

/// When an utterance is thought to be over, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EndpointConfig {
    /// Time without a label after some.
    pub silence_after_words: f64,
    /// Time without a label where there was none.
    pub silence_without_words: f64,
    /// Longest utterance; its last word, which may go on, is then part of the next.
    pub max_seconds: f64,
}

/// 1.2 s after words, 2.4 s without any, 20 s in all: the rules of Kaldi's online decoders.
impl Default for EndpointConfig {
    fn default() -> Self {
        EndpointConfig { silence_after_words: 1.2, silence_without_words: 2.4, max_seconds: 20.0 }
    }
}

/// What is new after a piece of sound.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StreamingUpdate {
    /// Words that are complete, with their tokens; they do not change any more.
    pub new: Transcription,
    /// The last word so far, which may go on, words that are not believed yet, and those of a beam's best hypothesis that others
    /// do not share.
    pub partial: String,
    /// Whether words were left out, since none of them was believed.
    pub has_discarded: bool,
    /// Whether an utterance is over; after a pause, all of its words are complete then.
    pub endpoint: bool,
}

impl StreamingUpdate {
    /// Successive updates as one.
    fn join(updates: Vec<StreamingUpdate>) -> StreamingUpdate {
        let mut all = StreamingUpdate::default();
        for update in updates {
            all.new.append(update.new);
            all.endpoint |= update.endpoint;
            (all.partial, all.has_discarded) = (update.partial, update.has_discarded);
        }
        all
    }
}

/// A recording that is recognised while it is being heard, in memory that does not grow with its length.
///
/// The words do not depend on how the recording is cut into pieces: all decisions are made after frames, not at the ends of pieces.
/// Without endpoints and [`StreamingOptions::latest`], the words of a one-way model are those of the whole recording; a two-way model
/// reads overlapping windows ([`ChunkedEncoder`]), and its words come as much later. The recognizer's search keeps its state between
/// pieces: a greedy one, or a beam (modified or mAES). A beam's words are complete when all of its hypotheses share them; at a pause,
/// after [`StreamingOptions::latest`], and where a thousand labels are open, the best hypothesis is chosen.
///
/// Words are held until one of them reaches the least posterior of [`Recognizer::with_silence`]; after it, all are passed on. Held
/// words are discarded at a pause, at the end, and when there are a thousand labels of them. A word of more than a thousand
/// labels is cut.
///
/// ```no_run
/// use recognizer::{StreamingOptions, Recognizer};
///
/// let recognizer = Recognizer::load("streaming.safetensors".as_ref())?;
/// let mut live = recognizer.stream(&StreamingOptions::default())?;
/// let mut source = speech::PcmReader::new(std::io::stdin());
/// while let Some(samples) = source.read_chunk()? {
///     for word in live.push(&samples)?.new.words {
///         println!("{:.2} {}", word.start, word.text);
///     }
/// }
/// let rest = live.finish()?;
/// # Ok::<(), recognizer::Error>(())
/// ```
pub struct StreamingRecognizer {
    ears: EncoderInput,
    search: StreamingSearch,
    tokenizer: Tokenizer,
    writer: Writer,
    endpoint: Option<EndpointConfig>,
    gate: SpeechGate,
    /// Labels of words that are not given yet; and whether some were left out.
    held: Vec<Emitted>,
    has_discarded: bool,
    rows: Vec<f32>,
    /// First frame of the utterance, and its labels.
    first: usize,
    labels: usize,
}

/// What makes rows of samples.
enum EncoderInput {
    OneWay(Box<StreamingEncoder>, StreamId),
    ChunkedEncoder(Box<ChunkedEncoder>),
}

/// Options of [`Recognizer::stream`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StreamingOptions {
    /// How sound is cut for models that hear both ways.
    pub window: WindowConfig,
    /// When an utterance is over; none: never. The search goes on as if nothing had happened, only its words are complete then.
    pub endpoint: Option<EndpointConfig>,
    /// Seconds after which a beam decides for a label, though its hypotheses do not agree on it; none: never, so that words are those
    /// of the whole recording, however late. Two hypotheses that differ in a label of long ago may live side by side for minutes.
    pub latest: Option<f64>,
}

impl Recognizer {
    /// Listens to a recording that is still arriving.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) for another search than a greedy one or a beam by the joint network alone, windows that are too short, or a time
    /// that is none; [`Error::Decoding`](model::Error::Decoding) for a kind of beam search that knows no streams; those of the front end.
    pub fn stream(&self, options: &StreamingOptions) -> Result<StreamingRecognizer> {
        if options.latest.is_some_and(|latest| latest.is_nan() || latest < 0.0) {
            let expected = "a number of seconds from 0 on, or none";
            return Err(Error::shape("latest", expected, "another"));
        }
        let search = StreamingSearch::new(self, options.latest)?;
        let ears = match StreamingEncoder::new(self.model()) {
            Ok(mut listener) => {
                let stream = listener.open();
                EncoderInput::OneWay(Box::new(listener), stream)
            }
            Err(Error::NotStreaming { .. }) => {
                EncoderInput::ChunkedEncoder(Box::new(ChunkedEncoder::new(self.model(), options.window)?))
            }
            Err(error) => return Err(error),
        };
        Ok(StreamingRecognizer {
            ears,
            search,
            tokenizer: self.tokenizer().clone(),
            writer: self.writer(),
            endpoint: options.endpoint,
            gate: SpeechGate::new(self.silence(), self.unfused_search()?),
            held: Vec::new(),
            has_discarded: false,
            rows: Vec::new(),
            first: 0,
            labels: 0,
        })
    }

    /// Recognises a long recording piece by piece, in memory that does not grow with the sound: [`Recognizer::stream`] without a word
    /// before the end.
    ///
    /// # Errors
    /// Those of [`Recognizer::stream`], of the pieces, and of [`StreamingRecognizer::push`].
    pub fn transcribe_pieces(
        &self,
        pieces: impl IntoIterator<Item = speech::Result<Vec<f32>>>,
        window: WindowConfig,
    ) -> Result<Transcription> {
        let mut live = self.stream(&StreamingOptions { window, ..StreamingOptions::default() })?;
        let mut all = Transcription::default();
        for piece in pieces {
            all.append(live.push(&piece?)?.new);
        }
        let rest = live.finish()?;
        all.silence = rest.has_discarded;
        all.append(rest.new);
        Ok(all)
    }
}

impl StreamingRecognizer {
    /// Samples per second that it listens to.
    pub fn sample_rate(&self) -> u32 {
        match &self.ears {
            EncoderInput::OneWay(listener, _) => listener.sample_rate(),
            EncoderInput::ChunkedEncoder(windows) => windows.sample_rate(),
        }
    }

    /// Whether the model hears one way, so that words come at once; otherwise they come window by window.
    pub fn is_immediate(&self) -> bool {
        matches!(self.ears, EncoderInput::OneWay(..))
    }

    /// Takes the next samples, any number of them.
    ///
    /// # Errors
    /// [`Error::Speech`](model::Error::Speech) for a sample that is no number, [`Error::Decoding`](model::Error::Decoding) if the model yields scores that are none.
    ///
    /// Cost: that of features, encoder and search for as many rows as are complete with them.
    pub fn push(&mut self, samples: &[f32]) -> Result<StreamingUpdate> {
        Ok(StreamingUpdate::join(self.push_split(samples)?))
    }

    /// Takes the next samples as [`Self::push`] does, and returns an update for each endpoint among them.
    ///
    /// The last update is what follows the last endpoint. For lines of utterances that do not depend on the lengths of pieces.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_split(&mut self, samples: &[f32]) -> Result<Vec<StreamingUpdate>> {
        if samples.is_empty() {
            return self.decode(false);
        }
        self.gate.push_samples(samples);
        match &mut self.ears {
            EncoderInput::OneWay(listener, stream) => {
                listener.push(*stream, samples)?;
                listener.encode()?.into_iter().for_each(|heard| self.rows.extend(heard.rows));
            }
            EncoderInput::ChunkedEncoder(windows) => windows.push(samples, &mut self.rows).map(drop)?,
        }
        self.decode(false)
    }

    /// Ends the recording: the rest of its words.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(self) -> Result<StreamingUpdate> {
        Ok(StreamingUpdate::join(self.finish_split()?))
    }

    /// Ends the recording as [`Self::finish`] does, and returns an update for each endpoint in its rest, and a last one.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish_split(mut self) -> Result<Vec<StreamingUpdate>> {
        match &mut self.ears {
            EncoderInput::OneWay(listener, stream) => {
                // No sound at all has no rows either.
                if self.gate.has_samples() {
                    listener.finish(*stream)?;
                }
                listener.encode()?.into_iter().for_each(|heard| self.rows.extend(heard.rows));
            }
            EncoderInput::ChunkedEncoder(windows) => windows.finish(&mut self.rows).map(drop)?,
        }
        self.decode(true)
    }

    /// Decodes the rows that wait: an update for each endpoint, and one for the rest.
    fn decode(&mut self, last: bool) -> Result<Vec<StreamingUpdate>> {
        let rows = std::mem::take(&mut self.rows);
        let (mut updates, mut new, mut at) = (Vec::new(), Transcription::default(), 0);
        while at < rows.len() {
            let end = if self.decides_at_frames() { at + self.search.row_width() } else { rows.len() };
            let is_endpoint = self.decode_rows(&rows[at..end], &mut new)?;
            at = end;
            if is_endpoint {
                updates.push(self.update(std::mem::take(&mut new), true)?);
            }
        }
        if last {
            let rest = self.search.settle(true)?;
            self.hold(rest);
            new.append(self.take_words(true)?);
        }
        updates.push(self.update(new, false)?);
        Ok(updates)
    }

    /// Whether a decision may depend on where rows are cut; greedy labels alone do not.
    fn decides_at_frames(&self) -> bool {
        self.search.is_beam() || self.endpoint.is_some() || !self.gate.is_open()
    }

    /// Decodes rows and appends the words that are complete; returns whether an utterance is over.
    fn decode_rows(&mut self, rows: &[f32], new: &mut Transcription) -> Result<bool> {
        let labels = self.search.advance(rows)?;
        self.gate.push_rows(rows)?;
        let has_labels = !labels.is_empty();
        self.hold(labels);
        let (pause, endpoint) = self.at_endpoint();
        if pause {
            let rest = self.search.settle(false)?;
            self.hold(rest);
        }
        // An open gate passes nothing on without new labels or a pause.
        if has_labels || pause || !self.gate.is_open() {
            new.append(self.take_words(pause)?);
        }
        if endpoint {
            (self.first, self.labels) = (self.search.frames(), self.held.len());
        }
        Ok(endpoint)
    }

    fn update(&self, new: Transcription, endpoint: bool) -> Result<StreamingUpdate> {
        let rest: Vec<u32> = self.held.iter().chain(self.search.open()).map(|label| label.label).collect();
        Ok(StreamingUpdate {
            new,
            partial: self.writer.text(&self.tokenizer, &rest)?,
            has_discarded: self.has_discarded,
            endpoint,
        })
    }

    /// Takes the complete words that the gate passes; after a pause or the end, all words are complete.
    fn take_words(&mut self, over: bool) -> Result<Transcription> {
        let ids: Vec<u32> = self.held.iter().map(|label| label.label).collect();
        let words = groups(&self.tokenizer, &ids);
        // Without a pause, the last word may go on; a single one with too many labels is cut.
        let is_cut = words.len() == 1 && self.held.len() > MAX_HELD;
        let complete = words.len() - usize::from(!over && !is_cut && !words.is_empty());
        let decision = over || self.held.len() > MAX_HELD;
        self.gate.update(&self.tokenizer, &self.held, &words[..complete], decision);
        let end = match words.get(complete) {
            _ if !self.gate.is_open() => 0,
            Some(word) => word.start,
            None => self.held.len(),
        };
        let new = match end {
            0 => Transcription::default(),
            _ => self.writer.write(&self.tokenizer, &self.held[..end])?,
        };
        self.held.drain(..end);
        if !self.gate.is_open() && !self.held.is_empty() && decision {
            self.has_discarded = true;
            self.held.clear();
        }
        Ok(new)
    }

    fn hold(&mut self, found: Vec<Emitted>) {
        self.labels += found.len();
        self.held.extend(found);
    }

    /// Whether there is a pause, and whether an utterance is over, by a pause or by its length.
    fn at_endpoint(&self) -> (bool, bool) {
        let Some(EndpointConfig { silence_after_words, silence_without_words, max_seconds }) = self.endpoint
        else {
            return (false, false);
        };
        let here = self.search.frames() - self.first;
        let seconds = |frames: usize| frames as f64 * self.writer.frame_seconds();
        let trailing = seconds(self.search.trailing_frames().min(here));
        let pause = if self.labels + self.search.open().len() > 0 {
            silence_after_words
        } else {
            silence_without_words
        };
        let pause = here > 0 && trailing >= pause;
        (pause, pause || seconds(here) >= max_seconds)
    }
}
