//! Sound of several utterances at once, as it arrives, to projected encoder rows.
use std::collections::BTreeMap;
use std::sync::Arc;

use decoding::AffineLayer;
use serde::{Deserialize, Serialize};
use speech::{FeatureStream, FrontEnd, Normalization, StackStream};

use crate::{Error, Result};
use model::Model;
use model::encoders::{EncoderPiece, EncoderState, EncoderStream};

/// Front end, frame stacking, encoder and projection of a model, for any number of utterances that are still being said.
///
/// ```text
/// push: samples ──► frames ──► stacked rows, which wait ──► encode: all utterances in one batch ──► projected rows [n, H]
/// ```
/// However sound is cut, and whichever streams are encoded together, the rows of a stream have the bits of [`Model::encode`] on the
/// whole utterance, for every number of threads.
///
/// A row comes with the last sample of its last frame: `(stack - 1) hop + window` after it begins (with a time reduction, that of the
/// last row of its group).
///
/// Memory: what waits for the next [`StreamingEncoder::encode`], and for each stream less than a window and a hop of samples, `stack` frames
/// and the state of the encoder, however long the sound is.
///
/// ```no_run
/// use recognizer::{StreamingEncoder, Recognizer};
///
/// let recognizer = Recognizer::load("streaming.safetensors".as_ref())?;
/// let mut listener = StreamingEncoder::new(recognizer.model())?;
/// let stream = listener.open();
/// for samples in speech::AudioChunks::open("long.flac".as_ref(), 16_000, &speech::Conversion::default())? {
///     listener.push(stream, &samples?)?;
///     for heard in listener.encode()? {
///         println!("{} new rows of {} values", heard.rows.len() / listener.width(), listener.width());
///     }
/// }
/// listener.finish(stream)?;
/// let rest = listener.encode()?; // the last rows; the stream is closed
/// # Ok::<(), recognizer::Error>(())
/// ```
pub struct StreamingEncoder {
    front_end: FrontEnd,
    /// The stacking of a stream that has not begun.
    stack: StackStream,
    encoder: Arc<dyn EncoderStream>,
    projection: AffineLayer,
    /// Checksum of weights and features.
    model: u32,
    streams: BTreeMap<u64, OpenStream>,
    next: u64,
}

struct OpenStream {
    state: StreamState,
    /// Stacked rows that are not yet encoded.
    waiting: Vec<f32>,
    last: bool,
}

/// Names an open stream of a [`StreamingEncoder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

/// How far a stream has come, as a plain value: it can be written down, and go on in another process with the same model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamState {
    model: u32,
    features: FeatureStream,
    stack: StackStream,
    encoder: EncoderState,
}

impl StreamState {
    /// Samples heard so far.
    pub fn samples(&self) -> u64 {
        self.features.samples()
    }
}

/// New rows of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedChunk {
    /// Which.
    pub stream: StreamId,
    /// Projected encoder rows `[n, H]`, n may be 0.
    pub rows: Vec<f32>,
    /// Whether it has ended with them.
    pub last: bool,
}

impl StreamingEncoder {
    /// Copies and packs the current weights of a model's encoder.
    ///
    /// # Errors
    /// [`Error::NotStreaming`] if its encoder reads backwards too or its features are normalised by whole utterances.
    pub fn new(model: &Model) -> Result<Self> {
        let input = &model.config().input;
        let front_end = FrontEnd::new(&input.features)?;
        let refused = |found: &str| Error::NotStreaming { found: found.into() };
        let encoder =
            model.encoder().stream()?.ok_or_else(|| refused("an encoder that needs the whole utterance"))?;
        if front_end.stream().is_err() {
            return Err(refused(match input.features.normalise {
                Normalization::Utterance | Normalization::Standard => {
                    "features that are normalised by the whole utterance"
                }
                Normalization::Running | Normalization::None => "features that need the whole utterance",
            }));
        }
        Ok(StreamingEncoder {
            stack: StackStream::new(input.rows.stack, input.rows.stride, input.features.mels)
                .with_channels(input.rows.channels),
            front_end,
            encoder,
            projection: model.packed_projection()?,
            model: fingerprint(model)?,
            streams: BTreeMap::new(),
            next: 0,
        })
    }

    /// Width H of the rows.
    pub fn width(&self) -> usize {
        self.projection.outputs()
    }

    /// Samples per second that it listens to.
    pub fn sample_rate(&self) -> u32 {
        self.front_end.config().sample_rate
    }

    /// Begins a stream.
    pub fn open(&mut self) -> StreamId {
        // That the features can be a stream is known since `new`.
        let features = self.front_end.stream().expect("running normalisation");
        let state = StreamState {
            model: self.model,
            features,
            stack: self.stack.clone(),
            encoder: self.encoder.start(),
        };
        self.insert(state)
    }

    /// Goes on with a stream where its state was taken.
    ///
    /// # Errors
    /// [`Error::StreamState`] for the state of another model, or a damaged one.
    pub fn resume(&mut self, state: StreamState) -> Result<StreamId> {
        let wrong = |expected: String, found: String| Err(Error::StreamState { expected, found });
        if state.model != self.model {
            return wrong(format!("one of model {:08x}", self.model), format!("one of {:08x}", state.model));
        }
        if !state.stack.is_compatible(&self.stack) {
            return wrong("stacking as in the recipe".into(), "another".into());
        }
        let mut features = state.features.clone();
        if let Err(error) = self.front_end.push(&mut features, &[], &mut Vec::new()) {
            return wrong("features of this front end".into(), error.to_string());
        }
        if let Err(error) = self.encoder.check(&state.encoder) {
            return wrong("one of this encoder".into(), error.to_string());
        }
        Ok(self.insert(state))
    }

    fn insert(&mut self, state: StreamState) -> StreamId {
        let id = self.next;
        self.next += 1;
        self.streams.insert(id, OpenStream { state, waiting: Vec::new(), last: false });
        StreamId(id)
    }

    /// Open streams, in the order in which they were opened.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.streams.keys().map(|&id| StreamId(id))
    }

    /// Takes the next samples of a stream, any number of them.
    ///
    /// # Errors
    /// [`Error::Speech`](model::Error::Speech) for a sample that is no number, with the stream as it was before; [`Error::NoStream`] for one that is not
    /// open or was finished.
    ///
    /// Cost: that of [`FrontEnd::push`].
    pub fn push(&mut self, stream: StreamId, samples: &[f32]) -> Result<()> {
        let Self { front_end, streams, .. } = self;
        let OpenStream { state, waiting, .. } = Self::open_one(streams, stream)?;
        let mut frames = Vec::new();
        front_end.push(&mut state.features, samples, &mut frames)?;
        state.stack.push(&frames, waiting);
        Ok(())
    }

    /// Ends a stream: the next [`StreamingEncoder::encode`] gives the last of its rows and closes it.
    ///
    /// # Errors
    /// [`Error::NoStream`] as in [`StreamingEncoder::push`].
    pub fn finish(&mut self, stream: StreamId) -> Result<()> {
        let Self { front_end, streams, .. } = self;
        let OpenStream { state, waiting, last } = Self::open_one(streams, stream)?;
        let mut frames = Vec::new();
        front_end.finish(&mut state.features, &mut frames)?;
        state.stack.push(&frames, waiting);
        state.stack.finish(waiting);
        *last = true;
        Ok(())
    }

    /// Forgets a stream.
    ///
    /// # Errors
    /// [`Error::NoStream`] if there is none.
    pub fn close(&mut self, stream: StreamId) -> Result<()> {
        let open = self.streams.len();
        self.streams.remove(&stream.0).map(drop).ok_or(Error::NoStream { id: stream.0, open })
    }

    /// How far a stream has come; rows that wait are encoded first, and given with it.
    ///
    /// # Errors
    /// [`Error::NoStream`] as in [`StreamingEncoder::push`]; those of the encoder.
    pub fn state(&mut self, stream: StreamId) -> Result<(StreamState, Vec<f32>)> {
        let Self { encoder, projection, streams, .. } = self;
        let one = Self::open_one(streams, stream)?;
        let rows = step(encoder.as_ref(), projection, &mut [one])?.pop().unwrap_or_default();
        Ok((one.state.clone(), rows))
    }

    /// Encodes what waits of all streams, in one batch; streams without anything new are left out.
    ///
    /// # Errors
    /// Those of the encoder.
    ///
    /// Cost: that of the encoder for as many rows; memory for them.
    pub fn encode(&mut self) -> Result<Vec<EncodedChunk>> {
        let ready = |stream: &OpenStream| stream.last || !stream.waiting.is_empty();
        let (ids, mut streams): (Vec<u64>, Vec<&mut OpenStream>) =
            self.streams.iter_mut().filter(|(_, stream)| ready(stream)).map(|(&id, s)| (id, s)).unzip();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = step(self.encoder.as_ref(), &self.projection, &mut streams)?;
        let last: Vec<bool> = streams.iter().map(|stream| stream.last).collect();
        self.streams.retain(|_, stream| !stream.last);
        let heard = ids.into_iter().zip(rows).zip(last);
        Ok(heard.map(|((id, rows), last)| EncodedChunk { stream: StreamId(id), rows, last }).collect())
    }

    /// A stream that takes more sound.
    fn open_one(streams: &mut BTreeMap<u64, OpenStream>, stream: StreamId) -> Result<&mut OpenStream> {
        let (id, open) = (stream.0, streams.values().filter(|stream| !stream.last).count());
        streams.get_mut(&id).filter(|stream| !stream.last).ok_or(Error::NoStream { id, open })
    }
}

/// Encodes and projects what waits.
fn step(
    encoder: &dyn EncoderStream,
    projection: &AffineLayer,
    streams: &mut [&mut OpenStream],
) -> Result<Vec<Vec<f32>>> {
    let pieces = streams.iter_mut().map(|OpenStream { state, waiting, last }| EncoderPiece {
        state: &mut state.encoder,
        rows: waiting,
        last: *last,
    });
    let rows = encoder.step(&mut pieces.collect::<Vec<_>>())?;
    streams.iter_mut().for_each(|stream| stream.waiting = Vec::new());
    let projected = projection.rows(&rows.concat());
    let mut rest = &projected[..];
    let mut next = |rows: Vec<f32>| {
        let (mine, after) = rest.split_at(rows.len() / encoder.width() * projection.outputs());
        rest = after;
        mine.to_vec()
    };
    Ok(rows.into_iter().map(&mut next).collect())
}

/// CRC-32 of what decides the state of a stream: features, stacking, and all weights.
fn fingerprint(model: &Model) -> Result<u32> {
    let mut sum = crc32fast::Hasher::new();
    let settings = serde_json::to_vec(&(&model.config().input, &model.config().encoder));
    sum.update(&settings.map_err(|error| Error::shape("config", "to be serialisable", error.to_string()))?);
    for (name, values) in model.parameters().values()? {
        sum.update(name.as_bytes());
        values.iter().for_each(|value| sum.update(&value.to_le_bytes()));
    }
    Ok(sum.finalize())
}
