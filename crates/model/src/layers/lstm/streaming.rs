//! `StreamingLstm`: inference with an LSTM layer of one direction, chunk by chunk.
//!
//! ```text
//! a = x W_ihᵀ + b       blocks of rows
//! steps                 a task for each group, from h and c of each utterance to its next h and c
//! ```
//! x are input rows, a gates before their nonlinearity; rows are packed as in `layout.rs`. The sums
//! and their order are those of `direction.rs`, with any other utterances in the batch: the results
//! of chunks have the bits of those of the whole utterance.
use decoding::AffineLayer;
use kernels::{PackedGates, items_mut, par_for};
use serde::{Deserialize, Serialize};

use super::LstmWeights;
use super::direction::{each_row, tasks};
use super::layout::{self, TapeLayout};
use super::steps;
use crate::layers::linear::packed;
use crate::tensors::to_vec;
use crate::{Error, Result};

/// A streaming LSTM layer of one direction, with packed weights.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use model::{Lstm, LstmState};
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
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Debug)]
pub struct StreamingLstm {
    input: AffineLayer,
    recurrent: PackedGates<f32>,
    hidden: usize,
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
    pub(super) fn new(weights: &LstmWeights) -> Result<Self> {
        let (_, hidden) = weights.recurrent.dims2()?;
        Ok(StreamingLstm {
            input: packed("weight_ih", &weights.input, &weights.bias)?,
            recurrent: PackedGates::for_forward(None, &to_vec::<f32>(&weights.recurrent)?, hidden),
            hidden,
        })
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
        let (d, h) = (self.input(), self.hidden);
        let rows: usize = lengths.iter().sum();
        let check = |argument: &str, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(Error::shape(argument, expected.to_string(), found.to_string())),
        };
        check("x: values", rows * d, x.len())?;
        check("states", lengths.len(), states.len())?;
        for state in &*states {
            check("states: width of h", h, state.h.len())?;
            check("states: width of c", h, state.c.len())?;
        }
        let layout = TapeLayout::new(lengths, layout::blocking(lengths.len(), 1, h), false);
        let firsts: Vec<usize> = lengths
            .iter()
            .scan(0, |next, length| {
                *next += length;
                Some(*next - length)
            })
            .collect();
        let source_row = |row: usize| {
            let (b, t) = layout.frame(row);
            firsts[b] + t
        };
        let mut packed = vec![0.0; rows * d];
        each_row(&mut packed, d, |row, packed| packed.copy_from_slice(&x[source_row(row) * d..][..d]));
        let mut gates = self.input.rows(&packed);
        let zeros = || vec![0.0; rows * h];
        let (mut cell, mut state) = (zeros(), zeros());
        let initial: Vec<[Vec<f32>; 2]> = layout
            .groups
            .iter()
            .map(|group| {
                let gather = |part: fn(&LstmState) -> &[f32]| {
                    group.utterances().flat_map(|(b, _)| part(&states[b]).iter().copied()).collect()
                };
                [gather(|state| &state.h), gather(|state| &state.c)]
            })
            .collect();
        let mut tasks = tasks(&layout, h, [&mut gates, &mut cell, &mut state]);
        par_for(items_mut(&mut tasks), |at, rows| {
            let initial = [&initial[at][0][..], &initial[at][1]];
            steps::forward(
                &layout.groups[at],
                h,
                None,
                &self.recurrent,
                Some(initial),
                rows,
                layout.shares_frames(),
            );
        });
        let mut out = zeros();
        for (b, (to, &length)) in states.iter_mut().zip(lengths).enumerate() {
            let row = |t: usize| layout.row(b, t).expect("a frame of the utterance") * h;
            for t in 0..length {
                out[(firsts[b] + t) * h..][..h].copy_from_slice(&state[row(t)..][..h]);
            }
            if let Some(last) = length.checked_sub(1).map(row) {
                to.h.copy_from_slice(&state[last..][..h]);
                to.c.copy_from_slice(&cell[last..][..h]);
            }
        }
        Ok(out)
    }
}
