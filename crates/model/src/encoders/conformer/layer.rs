//! One Conformer layer: feed-forward, self-attention, convolution, feed-forward, layer norm.
//!
//! "Ragged rows" are the frames of all utterances, packed without padding: `[Σ T_b, W]`. T_b:
//! frames of utterance b; W: width of a row; k: taps of the depthwise convolution.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use super::ConformerEncoderConfig;
use crate::config::adapter::{AdapterConfig, AdapterModule};
use crate::encoders::feed_forward::{FeedForward, FeedForwardShape, RowDropout};
use crate::{Linear, random};
use layers::Result;
use layers::activations::{glu, silu};
use layers::attention;
use layers::attention::{ChunkSizes, attention};
use layers::depthwise::depthwise;
use layers::footprint::{self, Footprint};
use layers::layer_norm::LayerNorm;
use layers::linear::linear;
use layers::ragged::Ragged;
use layers::recompute::recompute;
use layers::training_pass::TrainingPass;

/// The parameters of one layer.
#[derive(Debug, Clone)]
pub(super) struct ConformerLayer {
    pub feed_forward1: FeedForward,
    pub attention: SelfAttention,
    pub convolution: Convolution,
    pub feed_forward2: FeedForward,
    pub norm_out: LayerNorm,
    dropout: f32,
}

/// The self-attention module with its layer norm.
#[derive(Debug, Clone)]
pub(super) struct SelfAttention {
    pub norm: LayerNorm,
    /// The projections to q, k and v.
    pub projections: [Linear; 3],
    pub out: Linear,
    pub heads: usize,
    pub chunks: Option<ChunkSizes>,
}

/// The convolution module with its layer norms.
#[derive(Debug, Clone)]
pub(super) struct Convolution {
    pub norm: LayerNorm,
    pub pointwise1: Linear,
    /// Weight `[W, k]` and bias `[W]`.
    pub depthwise: [Tensor; 2],
    /// Taps of the depthwise convolution that apply to earlier frames.
    pub past_taps: usize,
    pub inner_norm: LayerNorm,
    pub pointwise2: Linear,
}

impl ConformerLayer {
    pub(super) fn new(
        config: &ConformerEncoderConfig,
        adapter: Option<&AdapterConfig>,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let width = config.width;
        let norm = |name: &str| LayerNorm::new(width, &vb.pp(name));
        let linear = |name: &str, inputs: usize, outputs: usize| Linear::new(inputs, outputs, &vb.pp(name));
        let low_rank = |module| adapter.and_then(|adapter| adapter.low_rank(module));
        let feed_forward = FeedForwardShape {
            width,
            inner_width: config.feed_forward,
            has_bias: true,
            low_rank: low_rank(AdapterModule::FeedForward),
        };
        let projection = |part: &str| {
            let vb = vb.pp(format!("self_attn.linear_{part}"));
            Linear::new(width, width, &vb)?.with_low_rank(low_rank(AdapterModule::Attention), &vb)
        };
        let depthwise = vb.pp("conv.depthwise_conv");
        let chunks = config.attention.chunks();
        Ok(ConformerLayer {
            feed_forward1: FeedForward::new(1, feed_forward, vb)?,
            attention: SelfAttention {
                norm: norm("norm_self_att")?,
                projections: [projection("q")?, projection("k")?, projection("v")?],
                out: projection("out")?,
                heads: config.heads,
                chunks,
            },
            convolution: Convolution {
                norm: norm("norm_conv")?,
                pointwise1: linear("conv.pointwise_conv1", width, 2 * width)?,
                depthwise: [
                    depthwise.get_with_hints(
                        (width, config.kernel),
                        "weight",
                        random::uniform(config.kernel),
                    )?,
                    depthwise.get_with_hints(width, "bias", Init::Const(0.0))?,
                ],
                past_taps: config.past_taps(),
                inner_norm: norm("conv.norm")?,
                pointwise2: linear("conv.pointwise_conv2", width, width)?,
            },
            feed_forward2: FeedForward::new(2, feed_forward, vb)?,
            norm_out: norm("norm_out")?,
            dropout: config.dropout,
        })
    }

    /// Applies the layer to ragged rows `[Σ T_b, W]`.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        ragged: &Arc<Ragged>,
        pass: Option<&mut TrainingPass>,
    ) -> Result<Tensor> {
        let mut dropout = RowDropout { pass, ragged, rate: self.dropout };
        let x = self.feed_forward1.forward(x, &mut dropout)?;
        let x = (&x + dropout.apply(self.attention.forward(&x, ragged)?)?)?;
        let x = (&x + dropout.apply(self.convolution.forward(&x, ragged)?)?)?;
        let x = self.feed_forward2.forward(&x, &mut dropout)?;
        self.norm_out.apply(&x)
    }

    /// Applies the layer as [`Self::forward`], and saves only `x`.
    pub(super) fn forward_recomputed(
        &self,
        x: &Tensor,
        ragged: &Arc<Ragged>,
        pass: Option<&mut TrainingPass>,
    ) -> Result<Tensor> {
        let (layer, ragged) = (self.clone(), ragged.clone());
        recompute(x, &self.parameters(), pass, move |x, pass| layer.forward(x, &ragged, pass))
    }

    /// Returns all parameters.
    fn parameters(&self) -> Vec<&Tensor> {
        let Self { feed_forward1, attention, convolution, feed_forward2, norm_out, .. } = self;
        let SelfAttention { norm: attention_norm, projections: [q, k, v], out, .. } = attention;
        let Convolution { norm, pointwise1, depthwise, inner_norm, pointwise2, .. } = convolution;
        let norms = [attention_norm, norm, inner_norm, norm_out];
        let linear_layers = [q, k, v, out, pointwise1, pointwise2];
        let mut all: Vec<&Tensor> = linear_layers.into_iter().flat_map(Linear::parameters).collect();
        all.extend(norms.into_iter().flat_map(|norm| [&norm.weight, &norm.bias]).chain(depthwise));
        all.extend([feed_forward1, feed_forward2].into_iter().flat_map(FeedForward::parameters));
        all
    }

    /// Returns an upper bound of the memory of a padded batch.
    ///
    /// ```text
    /// saved       values of a row: feed_forward 2 x (W, masks)   attention 8W   convolution 10W
    ///             norm W; masks: a byte for each of W + F values
    /// temporary   the inner rows and gradients of a feed-forward module, or rotated heads, the
    ///             gradients and scores of q|k|v
    /// ```
    /// W is the width of rows, F the inner width. Parameters are counted where operations
    /// concatenate them or return their gradients, and again where an adapter updates them.
    pub(super) fn footprint(&self, batch: usize, rows: usize) -> Footprint {
        let width = self.norm_out.bias.elem_count();
        let inner = self.feed_forward1.inner_width();
        let all_rows = batch * rows;
        let parameters = 4 * width * inner + 3 * width * width + 4 * inner + 16 * width;
        let scores =
            3 * attention::max_scores_in_memory(batch * self.attention.heads, rows, self.attention.chunks);
        let temporary = all_rows * (20 * width + 4 * inner) + 7 * width * inner + 12 * width * width + scores;
        let updated = self.attention.updated_values()
            + self.feed_forward1.updated_values()
            + self.feed_forward2.updated_values();
        // 21 W values, and the bytes of two masks: at most W + F / 2 values.
        let saved_per_row = 22 * width + inner.div_ceil(2);
        footprint::from_values(all_rows * saved_per_row + parameters + updated, temporary + updated)
    }
}

impl SelfAttention {
    /// Returns the number of values of updated weights; 0 without an adapter.
    fn updated_values(&self) -> usize {
        self.projections.iter().chain([&self.out]).map(Linear::updated_values).sum()
    }

    /// Concatenates weights `[3W, W]` and biases `[3W]` of q, k and v.
    pub(super) fn concatenate_qkv(&self) -> Result<[Tensor; 2]> {
        let [q, k, v] = &self.projections;
        let weight = Tensor::cat(&[q.updated_weight()?, k.updated_weight()?, v.updated_weight()?], 0)?;
        Ok([weight, Tensor::cat(&[q.bias(), k.bias(), v.bias()], 0)?])
    }

    fn forward(&self, x: &Tensor, ragged: &Arc<Ragged>) -> Result<Tensor> {
        let [weight, bias] = self.concatenate_qkv()?;
        let qkv = linear(&self.norm.apply(x)?, &weight, &bias)?;
        self.out.apply(&attention(&qkv, ragged, self.heads, self.chunks)?)
    }
}

impl Convolution {
    fn forward(&self, x: &Tensor, ragged: &Arc<Ragged>) -> Result<Tensor> {
        let gated = glu(&self.pointwise1.apply(&self.norm.apply(x)?)?)?;
        let [weight, bias] = &self.depthwise;
        let convolved = depthwise(&gated, ragged, weight, bias, self.past_taps)?;
        self.pointwise2.apply(&silu(&self.inner_norm.apply(&convolved)?)?)
    }
}
