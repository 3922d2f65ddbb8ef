//! The parameters of an LSTM layer.
use std::borrow::Cow;

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use super::{LstmContext, LstmWeights, Shelves, StreamingLstm, lstm_on};
use crate::gradients::GradientHooks;
use crate::{Result, random};

/// An LSTM layer of one direction or two, its parameters named and laid out as those of
/// [`candle_nn::LSTM`].
///
/// | parameter of layer N | shape |
/// |---|---|
/// | `weight_ih_lN`, `weight_ih_lN_reverse` | `[4H, D]` |
/// | `weight_hh_lN`, `weight_hh_lN_reverse` | `[4H, H]` |
/// | `bias_ih_lN`, `bias_ih_lN_reverse` | `[4H]` |
/// | `bias_hh_lN`, `bias_hh_lN_reverse`: with two biases only; without, the one is the sum of both of other toolkits | `[4H]` |
#[derive(Debug, Clone)]
pub struct Lstm {
    directions: Vec<LstmWeights>,
    /// The second bias of each direction, or none at all.
    hidden_biases: Vec<Tensor>,
    hidden: usize,
    shelves: Shelves,
}

impl Lstm {
    /// Layer number `layer` from rows of width `input` to states of width `hidden`, with a second
    /// direction or without.
    ///
    /// DirectionWeights start uniform in ±1/√H, biases at 0; see
    /// [`Parameters::start`](crate::Parameters::start).
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
        let start = random::uniform(hidden);
        let direction = |suffix: &&str| -> Result<LstmWeights> {
            let name = |what: &str| format!("{what}_l{layer}{suffix}");
            Ok(LstmWeights {
                input: vb.get_with_hints((4 * hidden, input), &name("weight_ih"), start)?,
                recurrent: vb.get_with_hints((4 * hidden, hidden), &name("weight_hh"), start)?,
                bias: vb.get_with_hints(4 * hidden, &name("bias_ih"), Init::Const(0.0))?,
            })
        };
        let directions = suffixes.iter().map(direction).collect::<Result<_>>()?;
        Ok(Lstm { directions, hidden_biases: Vec::new(), hidden, shelves: Shelves::default() })
    }

    /// The same with a second bias, as other toolkits have: as a function the layer is no richer,
    /// but both are trained.
    ///
    /// # Errors
    /// Those of the builder.
    pub fn with_two_biases(mut self, layer: usize, vb: &VarBuilder) -> Result<Self> {
        let bias = |suffix: &str| {
            vb.get_with_hints(4 * self.hidden, &format!("bias_hh_l{layer}{suffix}"), Init::Const(0.0))
        };
        let suffixes = ["", "_reverse"].into_iter().take(self.directions.len());
        self.hidden_biases = suffixes.map(bias).collect::<candle_core::Result<_>>()?;
        Ok(self)
    }

    /// Layers that run one after another, with one set of buffers for all of them in place of one
    /// for each.
    ///
    /// Buffers stay from call to call: a step of training whose shapes, or larger ones, have been
    /// seen asks for no memory but that of its results. They are freed with the last of the layers
    /// and of the graphs that they made.
    pub fn with_shared_buffers(mut layers: Vec<Lstm>) -> Vec<Lstm> {
        let shelves = Shelves::default();
        layers.iter_mut().for_each(|layer| layer.shelves = shelves.clone());
        layers
    }

    /// Width of the output rows: H, or 2H with two directions.
    pub fn width(&self) -> usize {
        self.hidden * self.directions.len()
    }

    /// The weights of each direction, two biases added up.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn directions(&self) -> Result<Cow<'_, [LstmWeights]>> {
        if self.hidden_biases.is_empty() {
            return Ok(Cow::Borrowed(&self.directions));
        }
        let both = self.directions.iter().zip(&self.hidden_biases);
        let both =
            both.map(|(weights, bias)| Ok(LstmWeights { bias: (&weights.bias + bias)?, ..weights.clone() }));
        Ok(Cow::Owned(both.collect::<Result<_>>()?))
    }

    /// [`lstm()`](super::lstm()) with these weights.
    ///
    /// # Errors
    /// Those of [`lstm()`](super::lstm()).
    pub fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        self.forward_with_hooks(x, lengths, None)
    }

    /// [`forward`](Self::forward), whose backward sends the gradients of the weights as soon as
    /// they are final.
    ///
    /// # Errors
    /// Those of [`lstm()`](super::lstm()).
    pub fn forward_with_hooks(
        &self,
        x: &Tensor,
        lengths: &[usize],
        hooks: Option<&GradientHooks>,
    ) -> Result<Tensor> {
        lstm_on(LstmContext { shelves: Some(&self.shelves), hooks }, x, lengths, &self.directions()?)
    }

    /// The same layer with its state in the caller's hands, if it has one direction; a copy of the
    /// weights.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn streaming(&self) -> Result<Option<StreamingLstm>> {
        match &self.directions()?[..] {
            [only] => StreamingLstm::new(only).map(Some),
            _ => Ok(None),
        }
    }
}
