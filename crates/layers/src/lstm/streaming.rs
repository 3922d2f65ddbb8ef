//! `StreamingLstm`: inference with a direction of an LSTM layer, in chunks or whole utterances.
//!
//! ```text
//! a = x W_ihᵀ + b       blocks of rows
//! steps                 a task for each group, from h and c of each utterance to its next h and c
//! ```
//! x are input rows, a gates before their nonlinearity, h and c hidden and cell states; rows are
//! packed as in `layout.rs`. In `f32`, the sums and their order are those of `direction.rs`. The
//! results of chunks have the bits of those of the whole utterance, with any other utterances in
//! the batch.
use decoding::AffineLayer;
use kernels::packed::NumberFormat;
use kernels::{PackedRecurrentWeight, items_mut, par_for};
use serde::{Deserialize, Serialize};

use super::LstmWeights;
use super::direction::{for_each_row, split_by_group};
use super::layout::{self, TapeLayout};
use super::quantized_steps::QuantizedRecurrentWeight;
use super::steps::{self, InitialStates};
use crate::linear::pack_as;
use crate::tensors::to_vec;
use crate::{Error, Result};

/// A direction of an LSTM layer with packed weights.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use layers::lstm::{Lstm, LstmState};
///
/// let map = candle_nn::VarMap::new();
/// let vb = candle_nn::VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
/// let layer = Lstm::new(3, 4, 0, false, &vb)?;
/// let x: Vec<f32> = (0..15).map(|i| (i as f32).sin()).collect();
/// let full = layer.forward(&Tensor::from_slice(&x, (1, 5, 3), &Device::Cpu)?, &[5])?;
///
/// let streaming = layer.streaming()?.expect("one direction");
/// let mut states = [LstmState::new(4)];
/// let mut rows = streaming.forward(&x[..6], &[2], &mut states)?;
/// rows.extend(streaming.forward(&x[6..], &[3], &mut states)?);
/// assert_eq!(rows, full.flatten_all()?.to_vec1::<f32>()?);
/// # Ok::<(), layers::Error>(())
/// ```
#[derive(Debug)]
pub struct StreamingLstm {
    input: AffineLayer,
    recurrent: RecurrentWeight,
    hidden: usize,
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

impl StreamingLstm {
    /// Packs a copy of the weights, which must be `f32`.
    ///
    /// # Errors
    /// [`Error::Shape`] for another format than `f32` and 8-bit blocks, and for numbers above 8e6
    /// in blocks; errors of candle.
    pub(super) fn new(weights: &LstmWeights, format: NumberFormat) -> Result<Self> {
        let (_, hidden) = weights.recurrent.dims2()?;
        let input = pack_as(format, "weight_ih", &weights.input, &weights.bias)?;
        let recurrent = to_vec::<f32>(&weights.recurrent)?;
        let recurrent = match format {
            NumberFormat::F32 => {
                RecurrentWeight::F32(PackedRecurrentWeight::for_forward(None, &recurrent, hidden))
            }
            NumberFormat::Q8 => RecurrentWeight::Q8(QuantizedRecurrentWeight::new(&recurrent, hidden)?),
            NumberFormat::Bf16 => return Err(Error::shape("format", "f32 or q8", "bf16")),
        };
        Ok(StreamingLstm { input, recurrent, hidden })
    }

    /// Returns the width D of the input rows.
    pub fn input(&self) -> usize {
        self.input.inputs()
    }

    /// Returns the width H of the states and of the output rows.
    pub fn width(&self) -> usize {
        self.hidden
    }

    /// Applies the layer to each utterance's next rows.
    ///
    /// States are updated.
    ///
    /// # Shapes
    /// `x [Σ n, D]`, one utterance after another without padding, `n` of `lengths` each, which may
    /// be 0; one state for each. Returns `[Σ n, H]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if lengths, states and rows do not match; no state has changed then.
    ///
    /// Cost: `O(Σ n · (D + H) · H)` time, `O(Σ n · (D + H))` memory.
    pub fn forward(&self, x: &[f32], lengths: &[usize], states: &mut [LstmState]) -> Result<Vec<f32>> {
        self.run(x, lengths, states, false)
    }

    /// Applies the layer to whole utterances, from their ends to their starts.
    ///
    /// # Shapes
    /// As in [`Self::forward`]. Row t of the result depends on rows t and later.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_reversed(&self, x: &[f32], lengths: &[usize]) -> Result<Vec<f32>> {
        self.run(x, lengths, &mut vec![LstmState::new(self.hidden); lengths.len()], true)
    }

    fn run(
        &self,
        x: &[f32],
        lengths: &[usize],
        states: &mut [LstmState],
        is_reverse: bool,
    ) -> Result<Vec<f32>> {
        let (input_width, hidden) = (self.input(), self.hidden);
        let rows: usize = lengths.iter().sum();
        let check = |argument: &str, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(Error::shape(argument, expected.to_string(), found.to_string())),
        };
        check("x: values", rows * input_width, x.len())?;
        check("states", lengths.len(), states.len())?;
        for state in &*states {
            check("states: width of h", hidden, state.h.len())?;
            check("states: width of c", hidden, state.c.len())?;
        }

        // Pack the rows, and multiply them with the input's weight.
        let blocking = layout::select_blocking(lengths.len(), 1, hidden);
        let layout = TapeLayout::new(lengths, blocking, is_reverse);
        let first_rows: Vec<usize> = lengths
            .iter()
            .scan(0, |end, length| {
                *end += length;
                Some(*end - length)
            })
            .collect();
        let source_row = |row: usize| {
            let (b, t) = layout.frame(row);
            first_rows[b] + t
        };
        let mut packed_x = vec![0.0; rows * input_width];
        for_each_row(&mut packed_x, input_width, |row, packed| {
            packed.copy_from_slice(&x[source_row(row) * input_width..][..input_width]);
        });
        let mut gates = self.input.forward_rows(&packed_x);

        // Run the steps of each group from the states of its utterances.
        let zeros = || vec![0.0; rows * hidden];
        let (mut cell, mut state) = (zeros(), zeros());
        let initial_states: Vec<[Vec<f32>; 2]> = layout
            .groups
            .iter()
            .map(|group| {
                let gather = |part: fn(&LstmState) -> &[f32]| {
                    group.utterances().flat_map(|(b, _)| part(&states[b]).iter().copied()).collect()
                };
                [gather(|state| &state.h), gather(|state| &state.c)]
            })
            .collect();
        let mut groups = split_by_group(&layout, hidden, &mut gates, &mut cell, &mut state);
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

        // Unpack the rows, and store the last state of each utterance.
        let mut out = zeros();
        for (b, (last_state, &length)) in states.iter_mut().zip(lengths).enumerate() {
            let offset = |t: usize| layout.row(b, t).expect("a frame of the utterance") * hidden;
            for t in 0..length {
                out[(first_rows[b] + t) * hidden..][..hidden].copy_from_slice(&state[offset(t)..][..hidden]);
            }
            // A reversed direction has no next rows.
            if is_reverse {
                continue;
            }
            if let Some(last_offset) = length.checked_sub(1).map(offset) {
                last_state.h.copy_from_slice(&state[last_offset..][..hidden]);
                last_state.c.copy_from_slice(&cell[last_offset..][..hidden]);
            }
        }
        Ok(out)
    }
}
