//! `LstmStream`: streaming inference with an LSTM encoder of one direction.
use std::sync::Arc;

use super::packed_lstm::PackedLstm;
use super::stream::PartSizes;
use super::{EncoderChunk, EncoderState, EncoderStream, InferenceEncoder, stream};
use crate::Result;
use layers::lstm::LstmState;

/// [`super::LstmEncoder`] for streaming: packed weights, and states that callers own.
///
/// N is the index of a layer, H the width of its states.
///
/// | state | size |
/// |---|---|
/// | `layers.N.h`, `layers.N.c` | `[H]` |
/// | `reduction.rows`: rows of an incomplete group for the time reduction | fewer than the factor |
/// | the states of the subsampling | |
pub(super) struct LstmStream {
    encoder: Arc<PackedLstm>,
    /// The names of each layer's h and c in an [`EncoderState`].
    ///
    /// h is the hidden state, c the cell state.
    part_names: Vec<[String; 2]>,
    /// The allowed lengths of each part of a state.
    part_sizes: PartSizes,
}

/// The part of a state with the rows of an incomplete group.
const WAITING_ROWS: &str = "reduction.rows";

impl LstmStream {
    /// Creates the encoder; none for layers of two directions, or without layers.
    pub(super) fn new(encoder: Arc<PackedLstm>) -> Option<Self> {
        let PackedLstm { config, subsampling, layers } = &*encoder;
        if layers.is_empty() || layers.iter().any(|layer| layer.directions() != 1) {
            return None;
        }
        let part_names: Vec<[String; 2]> =
            (0..layers.len()).map(|layer| ["h", "c"].map(|part| format!("layers.{layer}.{part}"))).collect();
        let layer_parts = part_names.iter().zip(layers);
        let mut part_sizes: PartSizes = layer_parts
            .flat_map(|(names, layer)| names.iter().map(|name| (name.clone(), vec![layer.width()])))
            .collect();
        if let Some(reduction) = &config.time_reduction {
            // `after_layer` is the index of the layer whose input rows are the concatenated ones.
            let width = layers[reduction.after_layer].input() / reduction.factor;
            part_sizes.insert(WAITING_ROWS.into(), (0..reduction.factor).map(|rows| rows * width).collect());
        }
        if let Some(subsampling) = subsampling {
            part_sizes.extend(subsampling.part_sizes());
        }
        Some(LstmStream { encoder, part_names, part_sizes })
    }

    /// Applies one layer to the rows of all utterances.
    fn apply_layer(
        &self,
        layer: usize,
        chunks: &mut [EncoderChunk],
        rows: Vec<Vec<f32>>,
    ) -> Result<Vec<Vec<f32>>> {
        let (lstm, [h_name, c_name]) = (&self.encoder.layers[layer], &self.part_names[layer]);
        let lengths: Vec<usize> = rows.iter().map(|rows| rows.len() / lstm.input()).collect();
        let take_values = |chunk: &mut EncoderChunk, name: &str| {
            chunk.state.values.get_mut(name).map(std::mem::take).unwrap_or_default()
        };
        let mut states: Vec<LstmState> = chunks
            .iter_mut()
            .map(|chunk| LstmState { h: take_values(chunk, h_name), c: take_values(chunk, c_name) })
            .collect();
        let out = lstm.step(&rows.concat(), &lengths, &mut states);
        for (chunk, LstmState { h, c }) in chunks.iter_mut().zip(states) {
            chunk.state.values.extend([(h_name.clone(), h), (c_name.clone(), c)]);
        }
        let out = out?;
        Ok(stream::split_rows(&out, &lengths, lstm.width()))
    }
}

impl EncoderStream for LstmStream {
    fn input(&self) -> usize {
        self.encoder.input_width()
    }

    fn width(&self) -> usize {
        self.encoder.width()
    }

    fn start(&self) -> EncoderState {
        EncoderState::initial(&self.part_sizes)
    }

    fn check(&self, state: &EncoderState) -> Result<()> {
        state.check(&self.part_sizes)
    }

    fn step(&self, chunks: &mut [EncoderChunk]) -> Result<Vec<Vec<f32>>> {
        stream::check_chunks(self, chunks)?;
        let mut rows: Vec<Vec<f32>> = match &self.encoder.subsampling {
            Some(subsampling) => subsampling.step(chunks),
            None => chunks.iter().map(|chunk| chunk.rows.to_vec()).collect(),
        };
        for layer in 0..self.encoder.layers.len() {
            // Concatenate rows; the rows of an incomplete group wait for the next chunk.
            if self.encoder.config.reduction_before(layer).is_some() {
                let width = self.encoder.layers[layer].input();
                for (chunk, rows) in chunks.iter_mut().zip(&mut rows) {
                    let Some(waiting) = chunk.state.values.get_mut(WAITING_ROWS) else { continue };
                    *rows = take_complete_rows(waiting, rows, width, chunk.is_last);
                }
            }
            rows = self.apply_layer(layer, chunks, rows)?;
        }
        // After the last chunk, the state is that of a new utterance.
        for chunk in chunks.iter_mut().filter(|chunk| chunk.is_last) {
            *chunk.state = self.start();
        }
        Ok(rows)
    }
}

/// Returns complete rows of `width` values from waiting and new values.
///
/// Values of an incomplete row stay in `waiting`; at the end, zeros complete the row.
fn take_complete_rows(waiting: &mut Vec<f32>, rows: &[f32], width: usize, is_last: bool) -> Vec<f32> {
    let mut values = std::mem::take(waiting);
    values.extend_from_slice(rows);
    if is_last {
        values.resize(values.len().next_multiple_of(width), 0.0);
    }
    *waiting = values.split_off(values.len() / width * width);
    values
}
