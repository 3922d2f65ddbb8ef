//! `ConformerStream`: streaming inference with a Conformer encoder of chunked attention.
use std::sync::Arc;

use layers::attention::ChunkSizes;

use super::packed::{PackedConformer, PackedInputLayer};
use super::packed_layer::LayerState;
use crate::Result;
use crate::encoders::stream::PartSizes;
use crate::encoders::{EncoderChunk, EncoderState, EncoderStream, InferenceEncoder, stream};

/// [`super::ConformerEncoder`] for streaming: packed weights, and states that callers own.
///
/// A chunk of attention is encoded when it is complete, or at the end of the utterance. W is the
/// width of encoder rows, k the taps of the depthwise convolution, m at most `left`, the chunks of
/// left context.
///
/// | state | size |
/// |---|---|
/// | `layers.N.keys`: keys and values of the m chunks before the next one, before the rotary encoding | `[m · chunk, 2W]` |
/// | `layers.N.tail`: rows before the window of the depthwise convolution | `[up to k - 1, W]` |
/// | `waiting`: rows of the incomplete chunk | fewer than the chunk, `[W]` each |
/// | the states of the subsampling | |
pub(super) struct ConformerStream {
    encoder: Arc<PackedConformer>,
    /// Rows of a chunk of attention.
    chunk_rows: usize,
    /// The names of keys and tail of each layer in an [`EncoderState`].
    part_names: Vec<[String; 2]>,
    /// The allowed lengths of each part of a state.
    part_sizes: PartSizes,
}

/// The part of a state with the rows of an incomplete chunk.
const WAITING_ROWS: &str = "waiting";

impl ConformerStream {
    /// Creates the encoder; none without chunks of attention.
    pub(super) fn new(encoder: Arc<PackedConformer>) -> Option<Self> {
        let ChunkSizes { chunk_rows, left_chunks } = encoder.config.attention.chunks()?;
        let (width, past_taps) = (encoder.config.width, encoder.config.past_taps());
        let part_names: Vec<[String; 2]> = (0..encoder.layers.len())
            .map(|layer| ["keys", "tail"].map(|part| format!("layers.{layer}.{part}")))
            .collect();
        let mut part_sizes = PartSizes::new();
        for [keys, tail] in &part_names {
            let context_rows = (0..=left_chunks).map(|context_chunks| context_chunks * chunk_rows);
            part_sizes.insert(keys.clone(), context_rows.map(|rows| 2 * rows * width).collect());
            part_sizes.insert(tail.clone(), (0..=past_taps).map(|rows| rows * width).collect());
        }
        part_sizes.insert(WAITING_ROWS.into(), (0..chunk_rows).map(|rows| rows * width).collect());
        if let PackedInputLayer::Subsampling(subsampling) = &encoder.input_layer {
            part_sizes.extend(subsampling.part_sizes());
        }
        Some(ConformerStream { encoder, chunk_rows, part_names, part_sizes })
    }
}

impl EncoderStream for ConformerStream {
    fn input(&self) -> usize {
        self.encoder.input_width()
    }

    fn width(&self) -> usize {
        self.encoder.config.width
    }

    fn start(&self) -> EncoderState {
        EncoderState::initial(&self.part_sizes)
    }

    fn check(&self, state: &EncoderState) -> Result<()> {
        state.check(&self.part_sizes)
    }

    fn step(&self, chunks: &mut [EncoderChunk]) -> Result<Vec<Vec<f32>>> {
        stream::check_chunks(self, chunks)?;
        let width = self.encoder.config.width;
        let mut rows = self.encoder.input_layer.step(chunks);

        // Take complete chunks; the rows of an incomplete one wait.
        for (chunk, rows) in chunks.iter_mut().zip(&mut rows) {
            let Some(waiting) = chunk.state.values.get_mut(WAITING_ROWS) else { continue };
            waiting.append(rows);
            let complete_len = if chunk.is_last {
                waiting.len()
            } else {
                waiting.len() / width / self.chunk_rows * self.chunk_rows * width
            };
            *rows = waiting.drain(..complete_len).collect();
        }

        // Apply the layers, each with its part of the states.
        let lengths: Vec<usize> = rows.iter().map(|rows| rows.len() / width).collect();
        let mut x = rows.concat();
        for (layer, names) in self.encoder.layers.iter().zip(&self.part_names) {
            let mut state_values: Vec<[Vec<f32>; 2]> = chunks
                .iter_mut()
                .map(|chunk| {
                    names
                        .each_ref()
                        .map(|name| chunk.state.values.get_mut(name).map(std::mem::take).unwrap_or_default())
                })
                .collect();
            let mut states: Vec<LayerState> =
                state_values.iter_mut().map(|[keys, tail]| LayerState { keys, tail }).collect();
            x = layer.step(x, &lengths, &mut states);
            for (chunk, values) in chunks.iter_mut().zip(state_values) {
                chunk.state.values.extend(names.iter().cloned().zip(values));
            }
        }
        for chunk in chunks.iter_mut().filter(|chunk| chunk.is_last) {
            *chunk.state = self.start();
        }
        Ok(stream::split_rows(&x, &lengths, width))
    }
}
