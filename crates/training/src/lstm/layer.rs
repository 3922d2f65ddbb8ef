//! The parameters of an LSTM layer.
use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use super::{CarriedLstm, LstmWeights, lstm};
use crate::{Result, init};

/// An LSTM layer of one direction or two, its parameters named and laid out as those of [`candle_nn::LSTM`].
///
/// | parameter of layer N | shape |
/// |---|---|
/// | `weight_ih_lN`, `weight_ih_lN_reverse` | `[4H, D]` |
/// | `weight_hh_lN`, `weight_hh_lN_reverse` | `[4H, H]` |
/// | `bias_ih_lN`, `bias_ih_lN_reverse` | `[4H]`, the sum of both biases of other toolkits |
#[derive(Debug, Clone)]
pub struct Lstm {
    directions: Vec<LstmWeights>,
    hidden: usize,
}

impl Lstm {
    /// Layer number `layer` from rows of width `input` to states of width `hidden`, with a second direction or without.
    ///
    /// Weights start uniform in ±1/√H, biases at 0; see [`Parameters::open_forget_gates`](crate::Parameters::open_forget_gates).
    ///
    /// # Errors
    /// Those of the builder.
    pub fn new(
        input: usize,
        hidden: usize,
        layer: usize,
        bidirectional: bool,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let suffixes: &[&str] = if bidirectional { &["", "_reverse"] } else { &[""] };
        let start = init::uniform(hidden);
        let direction = |suffix: &&str| -> Result<LstmWeights> {
            let name = |what: &str| format!("{what}_l{layer}{suffix}");
            Ok(LstmWeights {
                input: vb.get_with_hints((4 * hidden, input), &name("weight_ih"), start)?,
                recurrent: vb.get_with_hints((4 * hidden, hidden), &name("weight_hh"), start)?,
                bias: vb.get_with_hints(4 * hidden, &name("bias_ih"), Init::Const(0.0))?,
            })
        };
        Ok(Lstm { directions: suffixes.iter().map(direction).collect::<Result<_>>()?, hidden })
    }

    /// Width of the output rows: H, or 2H with two directions.
    pub fn width(&self) -> usize {
        self.hidden * self.directions.len()
    }

    /// The weights of each direction.
    pub fn directions(&self) -> &[LstmWeights] {
        &self.directions
    }

    /// [`lstm()`] with these weights.
    ///
    /// # Errors
    /// Those of [`lstm()`].
    pub fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        lstm(x, lengths, &self.directions)
    }

    /// The same layer with its state in the caller's hands, if it has one direction; a copy of the weights.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn carried(&self) -> Result<Option<CarriedLstm>> {
        match &self.directions[..] {
            [only] => CarriedLstm::new(only).map(Some),
            _ => Ok(None),
        }
    }
}
