//! Parts of Conformer and FastConformer layers: the feed-forward module, dropout of rows.
use candle_core::Tensor;
use candle_nn::VarBuilder;

use layers::Result;
use layers::feed_forward::feed_forward;
use layers::layer_norm::LayerNorm;
use layers::low_rank::LowRankConfig;
use layers::ragged::Ragged;
use layers::training_pass::{DropoutMask, TrainingPass};

use crate::Linear;

/// A feed-forward module with its layer norm.
#[derive(Debug, Clone)]
pub(super) struct FeedForward {
    pub norm: LayerNorm,
    pub linear1: Linear,
    pub linear2: Linear,
}

/// The widths of a feed-forward module, its biases and its adapter.
#[derive(Debug, Clone, Copy)]
pub(super) struct FeedForwardShape {
    pub width: usize,
    pub inner_width: usize,
    pub has_bias: bool,
    /// The updates of an adapter.
    pub low_rank: Option<LowRankConfig>,
}

/// Dropout of ragged rows, if it is enabled.
pub(super) struct RowDropout<'a> {
    pub pass: Option<&'a mut TrainingPass>,
    pub ragged: &'a Ragged,
    pub rate: f32,
}

impl FeedForward {
    /// Creates the parameters `norm_feed_forwardN` and `feed_forwardN.*` of module N.
    pub(super) fn new(number: usize, shape: FeedForwardShape, vb: &VarBuilder) -> Result<Self> {
        let FeedForwardShape { width, inner_width, has_bias, low_rank } = shape;
        let name = format!("feed_forward{number}");
        let linear = |layer: &str, inputs: usize, outputs: usize| {
            let vb = vb.pp(&name).pp(layer);
            Linear::with_optional_bias(inputs, outputs, has_bias, &vb)?.with_low_rank(low_rank, &vb)
        };
        Ok(FeedForward {
            norm: LayerNorm::new(width, &vb.pp(format!("norm_{name}")))?,
            linear1: linear("linear1", width, inner_width)?,
            linear2: linear("linear2", inner_width, width)?,
        })
    }

    /// Adds half of the module's result to `x`.
    pub(super) fn forward(&self, x: &Tensor, dropout: &mut RowDropout) -> Result<Tensor> {
        let masks = [dropout.mask(self.inner_width()), dropout.mask(x.dim(1)?)];
        feed_forward(x, &self.norm, &self.linear1, &self.linear2, masks)
    }

    /// Returns the number of values of updated weights; 0 without an adapter.
    pub(super) fn updated_values(&self) -> usize {
        self.linear1.updated_values() + self.linear2.updated_values()
    }

    /// Returns all parameters.
    pub(super) fn parameters(&self) -> Vec<&Tensor> {
        let Self { norm, linear1, linear2 } = self;
        let linear_layers = [linear1, linear2].into_iter().flat_map(Linear::parameters);
        [&norm.weight, &norm.bias].into_iter().chain(linear_layers).collect()
    }

    pub(super) fn inner_width(&self) -> usize {
        self.linear1.bias().elem_count()
    }
}

impl RowDropout<'_> {
    pub(super) fn apply(&mut self, x: Tensor) -> Result<Tensor> {
        match self.pass.as_deref_mut() {
            Some(pass) => pass.apply_ragged(&x, self.ragged, self.rate),
            None => Ok(x),
        }
    }

    /// Returns a mask of rows of `width` values.
    fn mask(&mut self, width: usize) -> Option<DropoutMask> {
        let value_counts = || self.ragged.lengths().iter().map(|rows| rows * width).collect::<Vec<_>>();
        self.pass.as_deref_mut().and_then(|pass| pass.mask(&value_counts(), self.rate))
    }
}
