//! `FastConformerStream`: cache-aware streaming with the packed encoder.
//!
//! Rows equal those of [`PackedFastConformer::encode`], in `f32` bit for bit. Chunks of attention
//! are encoded when they are complete. With a window of `right` later rows, each layer delays its
//! rows by `right`, so that a row of the encoder needs `right` later rows for each layer.
use std::ops::Range;
use std::sync::Arc;

use kernels::{items_mut, par_for};

use super::PackedFastConformer;
use super::attention::AttentionRows;
use super::layer::PackedLayer;
use super::positions::{DistanceInterval, PositionKeys};
use super::subsampling::{StageFrames, SubsamplingScratch};
use super::weights::unquantized;
use super::workspace::Workspace;
use crate::encoders::fast_conformer::{AttentionLimits, FastConformerEncoderConfig};
use crate::encoders::stream::{self, PartSizes};
use crate::encoders::{EncoderChunk, EncoderState, EncoderStream};
use crate::{Error, Result};
use layers::ragged::Ragged;

/// The part of a state with the rows of an incomplete chunk.
const WAITING_ROWS: &str = "waiting";

/// A streaming encoder with packed weights, and states that callers own.
///
/// W is the width of encoder rows, k the taps of the depthwise convolution, r the later rows in a
/// window of attention.
///
/// | state | size |
/// |---|---|
/// | `subsampling.S`: frames of stage S in the window of its next result, none at the start | 0 to 2 frames |
/// | `waiting`: rows of an incomplete chunk of attention | fewer than the chunk, `[W]` each |
/// | `layers.N.keys`: keys and values that later rows attend to | `[up to left + r, 2W]` |
/// | `layers.N.pending`: rows that wait for later ones, and their queries | `[up to r, 2W]` |
/// | `layers.N.tail`: rows in the window of the depthwise convolution | `[up to k - 1, W]` |
pub struct FastConformerStream {
    encoder: Arc<PackedFastConformer>,
    /// Rows of a chunk of attention; 1 for a window.
    chunk_rows: usize,
    /// Later rows in a window of attention.
    right_rows: usize,
    /// The keys of all distances, for each layer.
    positions: Vec<Arc<PositionKeys>>,
    /// The names of the frames of each stage.
    stage_names: Vec<String>,
    /// The names of keys, pending rows and tail of each layer.
    layer_names: Vec<[String; 3]>,
    part_sizes: PartSizes,
}

/// The state of an utterance in one layer.
struct LayerState {
    keys: Vec<f32>,
    pending: Vec<f32>,
    tail: Vec<f32>,
    is_last: bool,
}

/// Rows that a layer can complete.
struct ReadyRows {
    /// Positions of the queries among the keys.
    queries: Range<usize>,
    /// Number of keys.
    keys: usize,
}

impl FastConformerStream {
    /// Creates a streaming encoder; none if rows depend on the whole utterance.
    ///
    /// Rows depend on few later ones if subsampling and convolutions are causal and attention is
    /// limited on both sides.
    pub(super) fn new(
        encoder: Arc<PackedFastConformer>,
        config: &FastConformerEncoderConfig,
    ) -> Option<Self> {
        let (chunk_rows, left_rows, right_rows) = match config.attention {
            AttentionLimits::Chunks { chunk, left: Some(left) } => (chunk, left, 0),
            AttentionLimits::Window { left: Some(left), right: Some(right) } => (1, left, right),
            _ => return None,
        };
        if !(config.subsampling.causal && config.causal_convolution) || encoder.layers.is_empty() {
            return None;
        }
        let width = config.width;
        let tile = super::attention::queries_per_tile(unquantized(encoder.format));
        let range = DistanceInterval {
            min: -((right_rows + chunk_rows + tile) as i64),
            max: (left_rows + chunk_rows + tile) as i64,
        };
        let workspace = encoder.workspaces.acquire(encoder.format, 0, width);
        let table = encoder.position_table(range, &workspace.tasks);
        let keys = |layer: &PackedLayer| {
            layer.attention.positions.keys(&encoder.sinusoids, &table, &workspace.tasks)
        };
        let positions = encoder.layers.iter().map(keys).collect();
        let stage_names: Vec<String> =
            (0..encoder.subsampling.stages()).map(|stage| format!("subsampling.{stage}")).collect();
        let layer_name =
            |layer: usize| ["keys", "pending", "tail"].map(|part| format!("layers.{layer}.{part}"));
        let layer_names: Vec<_> = (0..encoder.layers.len()).map(layer_name).collect();
        let sizes = |rows: usize, width: usize| (0..=rows).map(|count| count * width).collect::<Vec<_>>();
        let mut part_sizes = PartSizes::new();
        for (stage, name) in stage_names.iter().enumerate() {
            part_sizes.insert(name.clone(), sizes(2, encoder.subsampling.frame_width(stage)));
        }
        part_sizes.insert(WAITING_ROWS.into(), sizes(chunk_rows - 1, width));
        for [keys, pending, tail] in &layer_names {
            part_sizes.insert(keys.clone(), sizes(left_rows + right_rows, 2 * width));
            part_sizes.insert(pending.clone(), sizes(right_rows, 2 * width));
            part_sizes.insert(tail.clone(), sizes(config.kernel - 1, width));
        }
        encoder.workspaces.release(workspace);
        Some(FastConformerStream {
            encoder,
            chunk_rows,
            right_rows,
            positions,
            stage_names,
            layer_names,
            part_sizes,
        })
    }

    /// Computes the next rows after the subsampling.
    fn subsample(
        &self,
        state: &mut EncoderState,
        frames: &[f32],
        is_last: bool,
        scratch: &mut SubsamplingScratch,
    ) -> Vec<f32> {
        let subsampling = &self.encoder.subsampling;
        let mut input = frames.to_vec();
        for (stage, name) in self.stage_names.iter().enumerate() {
            let width = subsampling.frame_width(stage);
            let Some(waiting) = state.values.get_mut(name) else { continue };
            // Two frames of zeros precede the first one, and one follows the last one.
            if waiting.is_empty() && !input.is_empty() {
                waiting.resize(2 * width, 0.0);
            }
            waiting.append(&mut input);
            if is_last && !waiting.is_empty() {
                waiting.resize(waiting.len() + width, 0.0);
            }
            let available = waiting.len() / width;
            let results = available.saturating_sub(1) / 2;
            input = vec![0.0; results * subsampling.frame_width(stage + 1)];
            // The window of result 1 begins at frame 0: two frames precede an utterance.
            let frames = StageFrames { values: waiting, first: 0, total: available };
            subsampling.compute_results(stage, frames, 1..results + 1, &mut input, scratch);
            waiting.drain(..2 * results * width);
        }
        input
    }

    /// Computes the rows that a layer can complete, and their numbers.
    fn step_layer(
        &self,
        index: usize,
        mut x: Vec<f32>,
        lengths: &[usize],
        states: &mut [LayerState],
        workspace: &mut Workspace,
    ) -> (Vec<f32>, Vec<usize>) {
        let (layer, width) = (&self.encoder.layers[index], self.encoder.width);
        let module = &layer.attention;
        layer.feed_forward1.forward(&mut x, workspace);

        // Append queries, keys and values to the state.
        let ragged = Ragged::new(lengths);
        let mut qkv = vec![0.0; 3 * x.len()];
        if !x.is_empty() {
            module.qkv.pack_rows(&mut workspace.packed, ragged.rows(), &workspace.tasks, |rows, values| {
                module.norm.apply(&x[rows.start * width..rows.end * width], values);
            });
            module.qkv.forward(&workspace.packed, &mut qkv, &workspace.tasks);
        }
        for (b, state) in states.iter_mut().enumerate() {
            let qkv = ragged.utterance(&qkv, 3 * width, b).chunks_exact(3 * width);
            let x = ragged.utterance(&x, width, b).chunks_exact(width);
            for (x, qkv) in x.zip(qkv) {
                state.pending.extend(x.iter().chain(&qkv[..width]));
                state.keys.extend_from_slice(&qkv[width..]);
            }
        }
        let ready: Vec<ReadyRows> = states.iter().map(|state| self.ready_rows(state)).collect();
        let ready_lengths: Vec<usize> = ready.iter().map(|ready| ready.queries.len()).collect();
        let ragged = Ragged::new(&ready_lengths);

        // Attention of rows with all of their keys.
        let rows = states.iter().zip(&ready).filter(|(_, ready)| !ready.queries.is_empty());
        let utterances: Vec<AttentionRows> = rows
            .map(|(state, ready)| AttentionRows {
                queries: &state.pending[width..2 * ready.queries.len() * width],
                query_stride: 2 * width,
                first_query: ready.queries.start,
                keys: &state.keys,
                key_stride: 2 * width,
                rows: ready.keys,
            })
            .collect();
        let mut results = vec![0.0; ragged.rows() * width];
        module.heads.forward(&utterances, &self.positions[index], &mut results, &workspace.attention);
        let mut x = Vec::with_capacity(results.len());
        for (state, ready) in states.iter_mut().zip(&ready) {
            let ready_rows = state.pending.drain(..2 * ready.queries.len() * width).collect::<Vec<f32>>();
            ready_rows.chunks_exact(2 * width).for_each(|row| x.extend_from_slice(&row[..width]));
            let next = module.heads.limits.keys(ready.queries.end, ready.queries.end + 1).start;
            state.keys.drain(..2 * next.min(ready.keys) * width);
        }
        if x.is_empty() {
            return (x, ready_lengths);
        }
        let Workspace { packed, tasks, .. } = &mut *workspace;
        module.add_results(&results, 0..ragged.rows(), &mut x, packed, tasks);

        // The convolution module, whose window begins with the tail.
        let convolution = &layer.convolution;
        let mut gated = vec![0.0; x.len()];
        let (packed, tasks) = (&mut workspace.packed, &workspace.tasks);
        convolution.gated.pack_rows(packed, ragged.rows(), tasks, |rows, values| {
            convolution.norm.apply(&x[rows.start * width..rows.end * width], values);
        });
        convolution.gated.forward_glu(&workspace.packed, &mut gated, &workspace.tasks);
        let mut convolved = vec![0.0; x.len()];
        for (b, (state, out)) in states.iter_mut().zip(ragged.split_mut(&mut convolved, width)).enumerate() {
            let tail_rows = state.tail.len() / width;
            state.tail.extend_from_slice(ragged.utterance(&gated, width, b));
            let rows = state.tail.len() / width;
            convolution.depthwise.apply(&state.tail, tail_rows..rows, out);
            state.tail.drain(..rows.saturating_sub(convolution.depthwise.past_taps) * width);
        }
        convolution.out.pack_slice(&mut workspace.packed, &convolved);
        convolution.out.forward_add(&workspace.packed, &mut x, &workspace.tasks);
        layer.feed_forward2.forward(&mut x, workspace);
        layer.normalize(&mut x, workspace);
        (x, ready_lengths)
    }

    /// Returns the pending rows with all of their keys.
    fn ready_rows(&self, state: &LayerState) -> ReadyRows {
        let row = 2 * self.encoder.width;
        let (keys, pending) = (state.keys.len() / row, state.pending.len() / row);
        let first = keys - pending;
        let end = if state.is_last { keys } else { keys.saturating_sub(self.right_rows).max(first) };
        ReadyRows { queries: first..end, keys }
    }
}

impl EncoderStream for FastConformerStream {
    fn input(&self) -> usize {
        self.encoder.input_width
    }

    fn width(&self) -> usize {
        self.encoder.width
    }

    fn start(&self) -> EncoderState {
        EncoderState::initial(&self.part_sizes)
    }

    fn check(&self, state: &EncoderState) -> Result<()> {
        state.check(&self.part_sizes)?;
        for [keys, pending, _] in &self.layer_names {
            let [key_count, pending_count] = [keys, pending].map(|name| state.values[name].len());
            if pending_count > key_count {
                let expected = format!("at most {key_count} values, as in {keys}");
                return Err(Error::shape(format!("state {pending}"), expected, pending_count.to_string()));
            }
            let context = (key_count - pending_count) / (2 * self.encoder.width);
            if !context.is_multiple_of(self.chunk_rows) {
                let expected = format!("whole chunks of {} rows", self.chunk_rows);
                return Err(Error::shape(format!("state {keys}"), expected, format!("{context} rows")));
            }
        }
        Ok(())
    }

    fn step(&self, chunks: &mut [EncoderChunk]) -> Result<Vec<Vec<f32>>> {
        stream::check_chunks(self, chunks)?;
        let width = self.encoder.width;
        let mut workspace = self.encoder.workspaces.acquire(self.encoder.format, 0, width);
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); chunks.len()];
        par_for((items_mut(chunks), items_mut(&mut rows)), |_, (chunk, rows)| {
            let mut scratch = workspace.subsampling.lock();
            *rows = self.subsample(chunk.state, chunk.rows, chunk.is_last, &mut scratch);
        });

        // Project, and take complete chunks; the rows of an incomplete one wait.
        let flat_width = self.encoder.subsampling.out.inputs();
        let counts: Vec<usize> = rows.iter().map(|rows| rows.len() / flat_width).collect();
        let total: usize = counts.iter().sum();
        let mut projected = vec![0.0; total * width];
        if total > 0 {
            let flat = rows.concat();
            let out = &self.encoder.subsampling.out;
            out.pack_slice(&mut workspace.packed, &flat);
            out.forward(&workspace.packed, &mut projected, &workspace.tasks);
        }
        let mut x = Vec::new();
        let mut lengths = Vec::new();
        for (chunk, rows) in chunks.iter_mut().zip(stream::split_rows(&projected, &counts, width)) {
            let Some(waiting) = chunk.state.values.get_mut(WAITING_ROWS) else { continue };
            waiting.extend(rows);
            let count = waiting.len() / width;
            let complete = if chunk.is_last { count } else { count / self.chunk_rows * self.chunk_rows };
            x.extend(waiting.drain(..complete * width));
            lengths.push(complete);
        }

        for (index, names) in self.layer_names.iter().enumerate() {
            let mut states: Vec<LayerState> = chunks
                .iter_mut()
                .map(|chunk| {
                    let [keys, pending, tail] = names
                        .each_ref()
                        .map(|name| chunk.state.values.get_mut(name).map(std::mem::take).unwrap_or_default());
                    LayerState { keys, pending, tail, is_last: chunk.is_last }
                })
                .collect();
            (x, lengths) = self.step_layer(index, x, &lengths, &mut states, &mut workspace);
            for (chunk, state) in chunks.iter_mut().zip(states) {
                let values = [state.keys, state.pending, state.tail];
                chunk.state.values.extend(names.iter().cloned().zip(values));
            }
        }
        self.encoder.workspaces.release(workspace);
        for chunk in chunks.iter_mut().filter(|chunk| chunk.is_last) {
            *chunk.state = self.start();
        }
        Ok(stream::split_rows(&x, &lengths, width))
    }
}

impl PackedFastConformer {
    /// Returns a streaming encoder with these weights; none if rows depend on whole utterances.
    pub fn stream(self: &Arc<Self>) -> Option<FastConformerStream> {
        FastConformerStream::new(self.clone(), &self.config)
    }
}
