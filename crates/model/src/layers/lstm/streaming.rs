//! One direction whose states are carried from piece to piece of each utterance: inference alone.
//!
//! ```text
//! a = x W_ihᵀ + b       blocks of rows
//! steps                 a task a group, from h and c of each utterance to h and c of each
//! ```
//! The sums are those of `direction.rs`, in the same order, whoever else is in the batch: pieces
//! have the bits of the whole.
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

/// An LSTM layer of one direction, its weights packed once, that goes on where it stopped.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use model::{Lstm, LstmState};
///
/// let vb = candle_nn::VarBuilder::from_varmap(&candle_nn::VarMap::new(), DType::F32, &Device::Cpu);
/// let layer = Lstm::new(3, 4, 0, false, &vb)?;
/// let x: Vec<f32> = (0..15).map(|i| (i as f32).sin()).collect();
/// let full = layer.forward(&Tensor::from_slice(&x, (1, 5, 3), &Device::Cpu)?, &[5])?;
///
/// let carried = layer.streaming()?.expect("one direction");
/// let mut states = [LstmState::new(4)];
/// let mut rows = carried.forward(&x[..6], &[2], &mut states)?;
/// rows.extend(carried.forward(&x[6..], &[3], &mut states)?);
/// assert_eq!(rows, full.flatten_all()?.to_vec1::<f32>()?);
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Debug)]
pub struct StreamingLstm {
    input: AffineLayer,
    recurrent: PackedGates<f32>,
    hidden: usize,
}

/// h and c of one utterance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LstmState {
    /// `[H]`
    pub h: Vec<f32>,
    /// `[H]`
    pub c: Vec<f32>,
}

impl LstmState {
    /// Zeros, as before the first frame.
    pub fn new(hidden: usize) -> Self {
        LstmState { h: vec![0.0; hidden], c: vec![0.0; hidden] }
    }
}

impl StreamingLstm {
    /// Copies and packs the weights, which are `f32`.
    pub(super) fn new(weights: &LstmWeights) -> Result<Self> {
        let (_, hidden) = weights.recurrent.dims2()?;
        Ok(StreamingLstm {
            input: packed("weight_ih", &weights.input, &weights.bias)?,
            recurrent: PackedGates::forth(None, &to_vec::<f32>(&weights.recurrent)?, hidden),
            hidden,
        })
    }

    /// Width D of the input rows.
    pub fn input(&self) -> usize {
        self.input.inputs()
    }

    /// Width H of the states and of the output rows.
    pub fn width(&self) -> usize {
        self.hidden
    }

    /// [`lstm()`](crate::lstm()) of the next rows of each utterance, from the state of each, which
    /// becomes that after its last row.
    ///
    /// # Shapes
    /// `x [Σ n, D]`, utterance after utterance without padding, `n` of `lengths` each, 0 included;
    /// as many states. Returns `[Σ n, H]`.
    ///
    /// # Errors
    /// [`Error::Shape`] if lengths, states and rows do not fit; no state has changed then.
    ///
    /// Cost: `O(Σ n · (D + H) · H)` time, `O(Σ n · (D + H))` memory.
    pub fn forward(&self, x: &[f32], lengths: &[usize], states: &mut [LstmState]) -> Result<Vec<f32>> {
        let (d, h) = (self.input(), self.hidden);
        let rows: usize = lengths.iter().sum();
        let expect = |argument: &str, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(Error::shape(argument, expected.to_string(), found.to_string())),
        };
        expect("x: values", rows * d, x.len())?;
        expect("states", lengths.len(), states.len())?;
        for state in &*states {
            expect("states: width of h", h, state.h.len())?;
            expect("states: width of c", h, state.c.len())?;
        }
        let layout = TapeLayout::new(lengths, layout::cut(lengths.len(), 1, h), false);
        let firsts: Vec<usize> = lengths
            .iter()
            .scan(0, |next, length| {
                *next += length;
                Some(*next - length)
            })
            .collect();
        let place = |row: usize| {
            let (b, t) = layout.frame(row);
            firsts[b] + t
        };
        let mut packed = vec![0.0; rows * d];
        each_row(&mut packed, d, |row, packed| packed.copy_from_slice(&x[place(row) * d..][..d]));
        let mut gates = self.input.rows(&packed);
        let zeros = || vec![0.0; rows * h];
        let (mut cell, mut state) = (zeros(), zeros());
        let carried: Vec<[Vec<f32>; 2]> = layout
            .groups
            .iter()
            .map(|group| {
                let of = |part: fn(&LstmState) -> &[f32]| {
                    group.utterances().flat_map(|(b, _)| part(&states[b]).iter().copied()).collect()
                };
                [of(|state| &state.h), of(|state| &state.c)]
            })
            .collect();
        let mut tasks = tasks(&layout, h, [&mut gates, &mut cell, &mut state]);
        par_for(items_mut(&mut tasks), |at, rows| {
            let carried = [&carried[at][0][..], &carried[at][1]];
            steps::forward(
                (&layout.groups[at], h, None),
                &self.recurrent,
                Some(carried),
                rows,
                layout.shared(),
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
