//! `PackedLstmLayer`: inference with an LSTM layer, in chunks or whole utterances.
//!
//! ```text
//! a = x W_ihᵀ + b       blocks of rows
//! steps                 a task for each group, from h and c of each utterance to its next h and c
//! ```
//! x are input rows, a gates before their nonlinearity, h and c hidden and cell states; rows are
//! packed as in `layout.rs`. In `f32`, the sums and their order are those of `direction.rs`. The
//! results of chunks have the bits of those of the whole utterance, with any other utterances in
//! the batch.
use decoding::{AffineLayer, NetworkScratch};
use kernels::packed::{NumberFormat, PackedOperand, RowBits};
use kernels::{BufferPool, PackedRecurrentWeight, PooledBuffer, items_mut, par_for};
use serde::{Deserialize, Serialize};

use super::direction::{for_each_row, split_by_group};
use super::layout::{self, TapeLayout};
use super::quantized_steps::QuantizedRecurrentWeight;
use super::steps::{self, InitialStates};
use super::{LstmWeights, run_directions};
use crate::linear::pack_as;
use crate::ragged::Ragged;
use crate::tensors::to_vec;
use crate::{Error, Result};

/// Rows that a task of [`PackedLstmLayer::unpack`] copies.
const ROWS_PER_TASK: usize = 64;

/// An LSTM layer with packed weights.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use kernels::packed::NumberFormat;
/// use layers::lstm::{Lstm, LstmState};
///
/// let map = candle_nn::VarMap::new();
/// let vb = candle_nn::VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
/// let layer = Lstm::new(3, 4, 0, false, &vb)?;
/// let x: Vec<f32> = (0..15).map(|i| (i as f32).sin()).collect();
/// let full = layer.forward(&Tensor::from_slice(&x, (1, 5, 3), &Device::Cpu)?, &[5])?;
/// let full = full.flatten_all()?.to_vec1::<f32>()?;
///
/// let packed = layer.pack(NumberFormat::F32)?;
/// assert_eq!(packed.encode(&x, &[5])?, full);
/// let mut states = [LstmState::new(4)];
/// let mut rows = packed.step(&x[..6], &[2], &mut states)?;
/// rows.extend(packed.step(&x[6..], &[3], &mut states)?);
/// assert_eq!(rows, full);
/// # Ok::<(), layers::Error>(())
/// ```
#[derive(Debug)]
pub struct PackedLstmLayer {
    /// The forward direction, and the backward one of a bidirectional layer.
    directions: Vec<PackedDirection>,
    input: usize,
    hidden: usize,
    /// Buffers between calls.
    pool: BufferPool<f32>,
}

/// A direction of a layer with packed weights.
#[derive(Debug)]
struct PackedDirection {
    input: AffineLayer,
    recurrent: RecurrentWeight,
}

/// A packed recurrent weight.
#[derive(Debug)]
enum RecurrentWeight {
    F32(PackedRecurrentWeight<f32>),
    Q8(QuantizedRecurrentWeight),
}

/// The state of one utterance: h and c.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LstmState {
    /// The hidden state `[H]`.
    pub h: Vec<f32>,
    /// The cell state `[H]`.
    pub c: Vec<f32>,
}

impl LstmState {
    /// Returns the state before the first frame, zeros.
    pub fn new(hidden: usize) -> Self {
        LstmState { h: vec![0.0; hidden], c: vec![0.0; hidden] }
    }
}

impl PackedLstmLayer {
    /// Packs a copy of the weights of one or two directions.
    ///
    /// They must be `f32`.
    ///
    /// # Errors
    /// [`Error::Shape`] for another format than `f32` and 8-bit blocks, and for numbers above 8e6
    /// in blocks; errors of candle.
    pub(super) fn new(directions: &[LstmWeights], format: NumberFormat) -> Result<Self> {
        let (_, input) = directions[0].input.dims2()?;
        let (_, hidden) = directions[0].recurrent.dims2()?;
        let directions = directions.iter().map(|weights| PackedDirection::new(weights, format));
        let directions = directions.collect::<Result<_>>()?;
        Ok(PackedLstmLayer { directions, input, hidden, pool: BufferPool::new() })
    }

    /// Returns this layer with the buffers of a pool.
    ///
    /// Layers that are applied one after another can share its buffers.
    pub fn with_pool(self, pool: BufferPool<f32>) -> Self {
        Self { pool, ..self }
    }

    /// Returns the width D of the input rows.
    pub fn input(&self) -> usize {
        self.input
    }

    /// Returns the number of directions: 1 or 2.
    pub fn directions(&self) -> usize {
        self.directions.len()
    }

    /// Returns the width of the output rows: H, the width of the states, for each direction.
    pub fn width(&self) -> usize {
        self.directions() * self.hidden
    }

    /// Applies a layer of one direction to each utterance's next rows.
    ///
    /// States are updated.
    ///
    /// # Shapes
    /// `x [Σ n, D]`, one utterance after another without padding, `n` of `lengths` each, which may
    /// be 0; one state for each. Returns `[Σ n, H]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if lengths, states and rows do not match, or for two directions; no state
    /// has changed then.
    ///
    /// Cost: `O(Σ n · (D + H) · H)` time, `O(Σ n · (D + H))` memory.
    pub fn step(&self, x: &[f32], lengths: &[usize], states: &mut [LstmState]) -> Result<Vec<f32>> {
        let [direction] = &self.directions[..] else {
            return Err(Error::shape("directions", "1", self.directions().to_string()));
        };
        expect_count("x: values", lengths.iter().sum::<usize>() * self.input, x.len())?;
        expect_count("states", lengths.len(), states.len())?;
        for state in &*states {
            expect_count("states: width of h", self.hidden, state.h.len())?;
            expect_count("states: width of c", self.hidden, state.c.len())?;
        }
        let (ragged, layout) = (Ragged::new(lengths), self.layout(lengths, false));
        let [state, cell] = direction.run(&self.pool, &layout, x, &ragged, states);
        for (b, (last_state, &length)) in states.iter_mut().zip(lengths).enumerate() {
            if let Some(row) = length.checked_sub(1).and_then(|last| layout.row(b, last)) {
                last_state.h.copy_from_slice(&state[row * self.hidden..][..self.hidden]);
                last_state.c.copy_from_slice(&cell[row * self.hidden..][..self.hidden]);
            }
        }
        Ok(self.unpack(&[layout], &[state], &ragged))
    }

    /// Applies the layer to whole utterances.
    ///
    /// The second direction starts at the end of each utterance.
    ///
    /// # Shapes
    /// `x` as in [`Self::step`]. Returns `[Σ n, H]` for one direction and `[Σ n, 2H]` for two.
    ///
    /// # Errors
    /// [`Error::Shape`] if lengths and rows do not match.
    ///
    /// Cost: that of [`Self::step`] for each direction.
    pub fn encode(&self, x: &[f32], lengths: &[usize]) -> Result<Vec<f32>> {
        expect_count("x: values", lengths.iter().sum::<usize>() * self.input, x.len())?;
        let (ragged, initial) = (Ragged::new(lengths), vec![LstmState::new(self.hidden); lengths.len()]);
        let reversals = [false, true].into_iter().take(self.directions());
        let layouts: Vec<TapeLayout> = reversals.map(|is_reverse| self.layout(lengths, is_reverse)).collect();
        let run = |(direction, layout): (&PackedDirection, &TapeLayout)| {
            let [state, _] = direction.run(&self.pool, layout, x, &ragged, &initial);
            state
        };
        let states = run_directions(&layouts, self.directions.iter().zip(&layouts).collect(), run);
        Ok(self.unpack(&layouts, &states, &ragged))
    }

    /// Returns the numbers of values that the pool keeps after [`Self::encode`].
    ///
    /// These are packed rows, and gates, cells and states.
    pub fn pooled_values(&self, rows: usize) -> [usize; 2] {
        [self.directions() * rows * self.input, 6 * rows * self.width()]
    }

    /// Returns an upper bound of the number of other values of [`Self::encode`].
    ///
    /// These are packed rows or rows in blocks, products of few rows, results, h in blocks, and
    /// states before the first frame: h and c as arguments, by groups and in the steps.
    pub fn temporary_values(&self, utterances: usize, rows: usize) -> usize {
        let products: usize = self.directions.iter().map(|direction| direction.input.scratch_len(rows)).sum();
        let block_values = |width| {
            let blocks = PackedOperand::row_requirement(NumberFormat::Q8, RowBits::Sixteen, 1, width);
            blocks.bytes().div_ceil(size_of::<f32>())
        };
        let packed = rows * self.input.max(block_values(self.input)) + utterances * block_values(self.hidden);
        let states = utterances * (2 * self.hidden + 4 * self.width());
        self.directions() * packed + products + rows * self.width() + states
    }

    /// Returns the rows of utterances: packed states of all directions, concatenated.
    fn unpack(&self, layouts: &[TapeLayout], states: &[PooledBuffer<f32>], ragged: &Ragged) -> Vec<f32> {
        let (width, hidden) = (self.width(), self.hidden);
        let mut rows = kernels::alloc(ragged.rows() * width, 0.0);
        par_for(items_mut(&mut ragged.blocks(&mut rows, width, ROWS_PER_TASK)), |_, block| {
            for (t, row) in (block.first_row..).zip(block.rows.chunks_exact_mut(width)) {
                let directions = layouts.iter().zip(states);
                for ((layout, states), row) in directions.zip(row.chunks_exact_mut(hidden)) {
                    let packed_row = layout.row(block.utterance, t).expect("a frame of the utterance");
                    row.copy_from_slice(&states[packed_row * hidden..][..hidden]);
                }
            }
        });
        rows
    }

    fn layout(&self, lengths: &[usize], is_reverse: bool) -> TapeLayout {
        let blocking = layout::select_blocking(lengths.len(), self.directions(), self.hidden);
        TapeLayout::new(lengths, blocking, is_reverse)
    }
}

fn expect_count(argument: &str, expected: usize, found: usize) -> Result<()> {
    match expected == found {
        true => Ok(()),
        false => Err(Error::shape(argument, expected.to_string(), found.to_string())),
    }
}

impl PackedDirection {
    fn new(weights: &LstmWeights, format: NumberFormat) -> Result<Self> {
        let (_, hidden) = weights.recurrent.dims2()?;
        let input = pack_as(format, "weight_ih", &weights.input, &weights.bias)?;
        let input = input.with_row_bits(RowBits::Sixteen);
        let recurrent = to_vec::<f32>(&weights.recurrent)?;
        let recurrent = match format {
            NumberFormat::F32 => {
                RecurrentWeight::F32(PackedRecurrentWeight::for_forward(None, &recurrent, hidden))
            }
            NumberFormat::Q8 => RecurrentWeight::Q8(QuantizedRecurrentWeight::new(&recurrent, hidden)?),
            NumberFormat::Bf16 => return Err(Error::shape("format", "f32 or q8", "bf16")),
        };
        Ok(PackedDirection { input, recurrent })
    }

    /// Computes hidden and cell states of all frames, packed as in `layout`.
    fn run(
        &self,
        pool: &BufferPool<f32>,
        layout: &TapeLayout,
        x: &[f32],
        ragged: &Ragged,
        initial: &[LstmState],
    ) -> [PooledBuffer<f32>; 2] {
        let (input_width, hidden, rows) = (self.input.inputs(), self.input.outputs() / 4, ragged.rows());
        let mut packed_x = pool.acquire("packed rows", rows * input_width);
        for_each_row(&mut packed_x, input_width, |row, packed| {
            let (b, t) = layout.frame(row);
            packed.copy_from_slice(&x[(ragged.range(b).start + t) * input_width..][..input_width]);
        });
        let mut gates = pool.acquire("gates of frames", rows * 4 * hidden);
        self.input.forward(&packed_x, &mut gates, &mut NetworkScratch::default());
        drop(packed_x);

        let [mut cell, mut state] = ["cells", "states"].map(|role| pool.acquire(role, rows * hidden));
        let initial_states: Vec<[Vec<f32>; 2]> = layout
            .groups
            .iter()
            .map(|group| {
                let gather = |part: fn(&LstmState) -> &[f32]| {
                    group.utterances().flat_map(|(b, _)| part(&initial[b]).iter().copied()).collect()
                };
                [gather(|state| &state.h), gather(|state| &state.c)]
            })
            .collect();
        let mut groups = split_by_group(layout, hidden, &mut gates, &mut cell, &mut state);
        par_for(items_mut(&mut groups), |group, rows| {
            let [h, c] = &initial_states[group];
            let (initial, group, is_shared) =
                (InitialStates { h, c }, &layout.groups[group], layout.uses_strips());
            match &self.recurrent {
                RecurrentWeight::F32(weight) => {
                    steps::forward(group, hidden, None, weight, Some(initial), rows, is_shared);
                }
                RecurrentWeight::Q8(weight) => weight.forward(group, initial, rows, is_shared),
            }
        });
        [state, cell]
    }
}
