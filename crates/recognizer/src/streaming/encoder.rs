//! `StreamingEncoder`: from samples of several open streams to projected encoder rows.
use std::collections::BTreeMap;
use std::sync::Arc;

use decoding::AffineLayer;
use serde::{Deserialize, Serialize};
use speech::{FeatureStream, FrontEnd, Normalization, StackStream};

use crate::{Error, Result};
use model::Model;
use model::encoders::{EncoderChunk, EncoderState, EncoderStream};

/// Streams any number of utterances through front end, encoder and projection.
///
/// ```text
/// push: samples ──► frames ──► pending stacked rows
/// encode: pending rows of all utterances in one batch ──► projected rows [n, H]
/// ```
/// n: new rows of a stream; H: width of the joint network, in a CTC model the number of classes.
///
/// The rows of a stream have the bits of [`Model::encode`] on the whole utterance, independent of
/// its chunks, of the other streams and of the number of threads.
///
/// A row is available with the last sample of its last frame, `(stack - 1) hop + window` after its
/// start (with time reduction, that of the last row of its group).
///
/// Memory: the input of the next [`StreamingEncoder::encode`], and for each stream less than a
/// window and a hop of samples, `stack` frames and the encoder state, for any length of audio.
///
/// ```no_run
/// use recognizer::{Recognizer, StreamingEncoder};
/// use speech::{AudioChunks, Conversion};
///
/// let recognizer = Recognizer::load("streaming.safetensors".as_ref())?;
/// let mut encoder = StreamingEncoder::new(recognizer.model())?;
/// let stream = encoder.open();
/// for samples in AudioChunks::open("long.flac".as_ref(), 16_000, &Conversion::default())? {
///     encoder.push(stream, &samples?)?;
///     for chunk in encoder.encode()? {
///         let width = encoder.width();
///         println!("{} new rows of {width} values", chunk.rows.len() / width);
///     }
/// }
/// encoder.finish(stream)?;
/// let rest = encoder.encode()?; // the last rows; the stream is closed
/// # Ok::<(), recognizer::Error>(())
/// ```
pub struct StreamingEncoder {
    front_end: FrontEnd,
    /// The stacking state at the start of a stream.
    initial_stack: StackStream,
    encoder: Arc<dyn EncoderStream>,
    projection: AffineLayer,
    /// Checksum of weights and features; states of another model are rejected.
    model_checksum: u32,
    streams: BTreeMap<u64, OpenStream>,
    /// Id of the next stream that is opened.
    next_id: u64,
}

/// A stream with its input that is not encoded yet.
struct OpenStream {
    state: StreamState,
    /// Stacked rows that are not encoded yet.
    pending_rows: Vec<f32>,
    /// Whether the signal has ended.
    has_ended: bool,
}

/// Identifies an open stream of a [`StreamingEncoder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

/// The serializable state of a stream.
///
/// A stream can be resumed in another process with the same model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamState {
    model: u32,
    features: FeatureStream,
    stack: StackStream,
    encoder: EncoderState,
}

impl StreamState {
    /// Returns the number of samples so far.
    pub fn samples(&self) -> u64 {
        self.features.samples()
    }
}

/// New rows of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedChunk {
    /// The stream.
    pub stream: StreamId,
    /// Projected encoder rows `[n, H]`, as [`Model::project_frames`] returns; n may be 0.
    pub rows: Vec<f32>,
    /// Whether the stream has ended with these rows.
    pub last: bool,
}

impl StreamingEncoder {
    /// Copies and packs the current weights of a model's encoder.
    ///
    /// # Errors
    /// [`Error::NotStreaming`] if the encoder is not causal or its features are normalized by whole
    /// utterances.
    pub fn new(model: &Model) -> Result<Self> {
        let input = &model.config().input;
        let front_end = FrontEnd::new(&input.features)?;
        let not_streaming = |found: &str| Error::NotStreaming { found: found.into() };
        let encoder = model
            .stream_encoder()?
            .ok_or_else(|| not_streaming("an encoder that needs the whole utterance"))?;
        if front_end.stream().is_err() {
            return Err(not_streaming(match input.features.normalize {
                Normalization::Utterance | Normalization::Standard | Normalization::Sample => {
                    "features that are normalized by the whole utterance"
                }
                Normalization::Running | Normalization::None => "features that need the whole utterance",
            }));
        }
        Ok(StreamingEncoder {
            initial_stack: StackStream::new(input.rows.stack, input.rows.stride, input.features.mels)
                .with_min_dim(input.rows.channels),
            front_end,
            encoder,
            projection: model.packed_projection()?,
            model_checksum: compute_model_checksum(model)?,
            streams: BTreeMap::new(),
            next_id: 0,
        })
    }

    /// Returns the width H of the rows.
    pub fn width(&self) -> usize {
        self.projection.outputs()
    }

    /// Returns the sample rate of the input.
    pub fn sample_rate(&self) -> u32 {
        self.front_end.config().sample_rate
    }

    /// Opens a stream.
    pub fn open(&mut self) -> StreamId {
        // `new` has checked that the features can be streamed.
        let features = self.front_end.stream().expect("running normalization");
        let state = StreamState {
            model: self.model_checksum,
            features,
            stack: self.initial_stack.clone(),
            encoder: self.encoder.start(),
        };
        self.add_stream(state)
    }

    /// Resumes a stream from its state.
    ///
    /// # Errors
    /// [`Error::StreamState`] for the state of another model, or an invalid one.
    pub fn resume(&mut self, state: StreamState) -> Result<StreamId> {
        let mismatch = |expected: String, found: String| Err(Error::StreamState { expected, found });
        if state.model != self.model_checksum {
            return mismatch(
                format!("a state of model {:08x}", self.model_checksum),
                format!("a state of {:08x}", state.model),
            );
        }
        if !state.stack.is_compatible(&self.initial_stack) {
            return mismatch("stacking as in the recipe".into(), "another".into());
        }
        let mut features = state.features.clone();
        if let Err(error) = self.front_end.push(&mut features, &[], &mut Vec::new()) {
            return mismatch("features of this front end".into(), error.to_string());
        }
        if let Err(error) = self.encoder.check(&state.encoder) {
            return mismatch("a state of this encoder".into(), error.to_string());
        }
        Ok(self.add_stream(state))
    }

    /// Adds a stream with a new id.
    fn add_stream(&mut self, state: StreamState) -> StreamId {
        let id = self.next_id;
        self.next_id += 1;
        self.streams.insert(id, OpenStream { state, pending_rows: Vec::new(), has_ended: false });
        StreamId(id)
    }

    /// Iterates over open streams in the order of opening.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.streams.keys().map(|&id| StreamId(id))
    }

    /// Consumes the next samples of a stream.
    ///
    /// # Errors
    /// [`Error::Speech`](model::Error::Speech) for an invalid sample, in which case the stream is
    /// unchanged; [`Error::NoStream`] for a stream that is not open or was finished.
    ///
    /// Cost: that of [`FrontEnd::push`].
    pub fn push(&mut self, stream: StreamId, samples: &[f32]) -> Result<()> {
        let Self { front_end, streams, .. } = self;
        let OpenStream { state, pending_rows, .. } = Self::find_open(streams, stream)?;
        let mut frames = Vec::new();
        front_end.push(&mut state.features, samples, &mut frames)?;
        state.stack.push(&frames, pending_rows);
        Ok(())
    }

    /// Ends a stream: the next [`StreamingEncoder::encode`] returns its last rows.
    ///
    /// # Errors
    /// [`Error::NoStream`] as in [`StreamingEncoder::push`].
    pub fn finish(&mut self, stream: StreamId) -> Result<()> {
        let Self { front_end, streams, .. } = self;
        let OpenStream { state, pending_rows, has_ended } = Self::find_open(streams, stream)?;
        let mut frames = Vec::new();
        front_end.finish(&mut state.features, &mut frames)?;
        state.stack.push(&frames, pending_rows);
        state.stack.finish(pending_rows);
        *has_ended = true;
        Ok(())
    }

    /// Drops a stream.
    ///
    /// # Errors
    /// [`Error::NoStream`] if it does not exist.
    pub fn close(&mut self, stream: StreamId) -> Result<()> {
        let num_open = self.streams.len();
        self.streams.remove(&stream.0).map(drop).ok_or(Error::NoStream { id: stream.0, open: num_open })
    }

    /// Returns the state of a stream, after encoding its pending rows.
    ///
    /// # Errors
    /// [`Error::NoStream`] as in [`StreamingEncoder::push`]; those of the encoder.
    pub fn state(&mut self, stream: StreamId) -> Result<(StreamState, Vec<f32>)> {
        let Self { encoder, projection, streams, .. } = self;
        let open_stream = Self::find_open(streams, stream)?;
        let rows =
            encode_pending(encoder.as_ref(), projection, &mut [open_stream])?.pop().unwrap_or_default();
        Ok((open_stream.state.clone(), rows))
    }

    /// Encodes the pending rows of all streams in one batch.
    ///
    /// Streams without new rows are omitted, unless they have ended.
    ///
    /// # Errors
    /// Those of the encoder.
    ///
    /// Cost: that of the encoder for these rows; memory for them.
    pub fn encode(&mut self) -> Result<Vec<EncodedChunk>> {
        let has_output = |stream: &OpenStream| stream.has_ended || !stream.pending_rows.is_empty();
        let (ids, mut streams): (Vec<u64>, Vec<&mut OpenStream>) = self
            .streams
            .iter_mut()
            .filter(|(_, stream)| has_output(stream))
            .map(|(&id, stream)| (id, stream))
            .unzip();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = encode_pending(self.encoder.as_ref(), &self.projection, &mut streams)?;
        let is_last: Vec<bool> = streams.iter().map(|stream| stream.has_ended).collect();
        self.streams.retain(|_, stream| !stream.has_ended);
        let chunks = ids.into_iter().zip(rows).zip(is_last);
        Ok(chunks.map(|((id, rows), last)| EncodedChunk { stream: StreamId(id), rows, last }).collect())
    }

    /// Returns a stream that accepts samples.
    fn find_open(streams: &mut BTreeMap<u64, OpenStream>, stream: StreamId) -> Result<&mut OpenStream> {
        let id = stream.0;
        let num_open = streams.values().filter(|stream| !stream.has_ended).count();
        let open_stream = streams.get_mut(&id).filter(|stream| !stream.has_ended);
        open_stream.ok_or(Error::NoStream { id, open: num_open })
    }
}

/// Encodes and projects the pending rows of streams; returns the rows of each.
fn encode_pending(
    encoder: &dyn EncoderStream,
    projection: &AffineLayer,
    streams: &mut [&mut OpenStream],
) -> Result<Vec<Vec<f32>>> {
    let chunks = streams.iter_mut().map(|OpenStream { state, pending_rows, has_ended }| EncoderChunk {
        state: &mut state.encoder,
        rows: pending_rows,
        is_last: *has_ended,
    });
    let encoded = encoder.step(&mut chunks.collect::<Vec<_>>())?;
    streams.iter_mut().for_each(|stream| stream.pending_rows = Vec::new());
    // One matrix product projects the rows of all streams; they are then divided again.
    let projected = projection.forward_rows(&encoded.concat());
    let mut remaining = &projected[..];
    let mut take_projected = |encoder_rows: Vec<f32>| {
        let num_rows = encoder_rows.len() / encoder.width();
        let (stream_rows, tail) = remaining.split_at(num_rows * projection.outputs());
        remaining = tail;
        stream_rows.to_vec()
    };
    Ok(encoded.into_iter().map(&mut take_projected).collect())
}

/// Returns the CRC-32 of features, stacking and weights, which determine stream states.
fn compute_model_checksum(model: &Model) -> Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let settings = serde_json::to_vec(&(&model.config().input, &model.config().encoder));
    hasher.update(
        &settings.map_err(|error| Error::shape("config", "serializable settings", error.to_string()))?,
    );
    for (name, checksum) in model.weight_checksums()? {
        hasher.update(name.as_bytes());
        hasher.update(&checksum.to_le_bytes());
    }
    Ok(hasher.finalize())
}
