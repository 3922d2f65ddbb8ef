//! `Lstm`: the parameters of an LSTM layer, with candle's names and layout.
use std::borrow::Cow;

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};
use kernels::packed::NumberFormat;

use super::{BufferPools, LstmContext, LstmWeights, PackedLstmLayer, lstm_in_context};
use crate::gradient_hooks::GradientHooks;
use crate::{Result, random};

/// An LSTM layer of one direction or two.
///
/// Names and layout of parameters are those of [`candle_nn::LSTM`]. D is the width of input rows, H
/// that of the states; the gates are in the order i, f, g, o.
///
/// | parameter of layer N | shape |
/// |---|---|
/// | `weight_ih_lN`, `weight_ih_lN_reverse` | `[4H, D]` |
/// | `weight_hh_lN`, `weight_hh_lN_reverse` | `[4H, H]` |
/// | `bias_ih_lN`, `bias_ih_lN_reverse` | `[4H]` |
/// | `bias_hh_lN`, `bias_hh_lN_reverse`: with two biases only; else `bias_ih` is the sum of both | `[4H]` |
#[derive(Debug, Clone)]
pub struct Lstm {
    directions: Vec<LstmWeights>,
    /// The second bias of each direction, or none.
    hidden_biases: Vec<Tensor>,
    hidden: usize,
    pools: BufferPools,
}

impl Lstm {
    /// Creates layer number `layer`.
    ///
    /// Input rows have width `input_width`, states width `hidden`.
    ///
    /// Weights are uniform within ±1/√H, biases 0.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn new(
        input_width: usize,
        hidden: usize,
        layer: usize,
        bidirectional: bool,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let suffixes: &[&str] = if bidirectional { &["", "_reverse"] } else { &[""] };
        let init = random::uniform(hidden);
        let direction = |suffix: &&str| -> Result<LstmWeights> {
            let name = |parameter: &str| format!("{parameter}_l{layer}{suffix}");
            Ok(LstmWeights {
                input: vb.get_with_hints((4 * hidden, input_width), &name("weight_ih"), init)?,
                recurrent: vb.get_with_hints((4 * hidden, hidden), &name("weight_hh"), init)?,
                bias: vb.get_with_hints(4 * hidden, &name("bias_ih"), Init::Const(0.0))?,
            })
        };
        let directions = suffixes.iter().map(direction).collect::<Result<_>>()?;
        Ok(Lstm { directions, hidden_biases: Vec::new(), hidden, pools: BufferPools::default() })
    }

    /// Adds a second bias, as in other toolkits.
    ///
    /// The layer computes the same functions, but both biases are trained.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn with_two_biases(mut self, layer: usize, vb: &VarBuilder) -> Result<Self> {
        let bias = |suffix: &str| {
            vb.get_with_hints(4 * self.hidden, &format!("bias_hh_l{layer}{suffix}"), Init::Const(0.0))
        };
        let suffixes = ["", "_reverse"].into_iter().take(self.directions.len());
        self.hidden_biases = suffixes.map(bias).collect::<candle_core::Result<_>>()?;
        Ok(self)
    }

    /// Shares one set of buffers between layers that run one after another.
    ///
    /// Buffers are kept between calls: a training step of the same or smaller shapes allocates only
    /// its results. They are freed with the last of the layers and of their graphs.
    pub fn with_shared_buffers(mut layers: Vec<Lstm>) -> Vec<Lstm> {
        let pools = BufferPools::default();
        layers.iter_mut().for_each(|layer| layer.pools = pools.clone());
        layers
    }

    /// Returns the width of the output rows: H, or 2H with two directions.
    pub fn width(&self) -> usize {
        self.hidden * self.directions.len()
    }

    /// Returns the weights of each direction, with the sum of two biases.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn directions(&self) -> Result<Cow<'_, [LstmWeights]>> {
        if self.hidden_biases.is_empty() {
            return Ok(Cow::Borrowed(&self.directions));
        }
        let weights = self.directions.iter().zip(&self.hidden_biases);
        let weights = weights
            .map(|(weights, bias)| Ok(LstmWeights { bias: (&weights.bias + bias)?, ..weights.clone() }));
        Ok(Cow::Owned(weights.collect::<Result<_>>()?))
    }

    /// Applies the layer; see [`lstm()`](super::lstm()).
    ///
    /// # Errors
    /// Those of [`lstm()`](super::lstm()).
    pub fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        self.forward_with_hooks(x, lengths, None)
    }

    /// Applies the layer, with hooks for the gradients of the weights.
    ///
    /// # Errors
    /// Those of [`lstm()`](super::lstm()).
    pub fn forward_with_hooks(
        &self,
        x: &Tensor,
        lengths: &[usize],
        hooks: Option<&GradientHooks>,
    ) -> Result<Tensor> {
        lstm_in_context(LstmContext { pools: Some(&self.pools), hooks }, x, lengths, &self.directions()?)
    }

    /// Copies the layer for inference.
    ///
    /// Weights and products are in `f32` or in 8-bit blocks.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for another format, and for weights above 8e6 in 8-bit
    /// blocks; errors of candle.
    pub fn pack(&self, format: NumberFormat) -> Result<PackedLstmLayer> {
        PackedLstmLayer::new(&self.directions()?, format)
    }
}
