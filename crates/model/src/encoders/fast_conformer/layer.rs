//! One FastConformer layer: feed-forward, self-attention, convolution, feed-forward, layer norm.
//!
//! "Ragged rows" are the rows of all utterances, packed without padding: `[Σ T_b, W]`. T_b: rows of
//! utterance b; W: width of a row; k: taps of the depthwise convolution; H: heads.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use super::{AttentionLimits, BatchNormMode, ConvolutionNorm, FastConformerEncoderConfig};
use crate::config::adapter::{AdapterConfig, AdapterModule};
use crate::encoders::feed_forward::{FeedForward, FeedForwardShape, RowDropout};
use crate::{Linear, random};
use layers::Result;
use layers::activations::{glu, silu};
use layers::batch_norm::BatchNorm;
use layers::depthwise::depthwise;
use layers::footprint::{self, Footprint};
use layers::layer_norm::LayerNorm;
use layers::linear::linear;
use layers::ragged::Ragged;
use layers::recompute::recompute;
use layers::relative_attention::{self, DistanceRange, relative_attention};
use layers::training_pass::TrainingPass;

/// The parameters of one layer.
#[derive(Debug, Clone)]
pub(super) struct FastConformerLayer {
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
    /// The projection of sinusoids, without bias.
    pub positions: Linear,
    /// The biases of keys and of positions, `[H, W / H]` each.
    pub position_biases: [Tensor; 2],
    pub heads: usize,
}

/// The convolution module with its norms.
#[derive(Debug, Clone)]
pub(super) struct Convolution {
    pub norm: LayerNorm,
    pub pointwise1: Linear,
    /// Weight `[W, k]` and bias `[W]`.
    pub depthwise: [Tensor; 2],
    /// Taps of the depthwise convolution that apply to earlier rows.
    pub past_taps: usize,
    pub inner_norm: InnerNorm,
    pub pointwise2: Linear,
}

/// The norm after the depthwise convolution.
#[derive(Debug, Clone)]
pub(super) enum InnerNorm {
    Batch(BatchNorm),
    Layer(LayerNorm),
}

/// RelativePositions that all layers share.
#[derive(Debug)]
pub(super) struct RelativePositions {
    /// Sines and cosines of each distance, `[n, W]`.
    pub sinusoids: Tensor,
    pub limits: AttentionLimits,
}

impl FastConformerLayer {
    pub(super) fn new(
        config: &FastConformerEncoderConfig,
        adapter: Option<&AdapterConfig>,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let (width, has_bias) = (config.width, config.bias);
        let low_rank = adapter.and_then(|adapter| adapter.low_rank(AdapterModule::FeedForward));
        let feed_forward = FeedForwardShape { width, inner_width: config.feed_forward, has_bias, low_rank };
        Ok(FastConformerLayer {
            feed_forward1: FeedForward::new(1, feed_forward, vb)?,
            attention: SelfAttention::new(config, adapter, vb)?,
            convolution: Convolution::new(config, vb)?,
            feed_forward2: FeedForward::new(2, feed_forward, vb)?,
            norm_out: LayerNorm::new(width, &vb.pp("norm_out"))?,
            dropout: config.dropout,
        })
    }

    /// Applies the layer to ragged rows `[Σ T_b, W]`.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        ragged: &Arc<Ragged>,
        positions: &RelativePositions,
        pass: Option<&mut TrainingPass>,
    ) -> Result<Tensor> {
        let mut dropout = RowDropout { pass, ragged, rate: self.dropout };
        let x = self.feed_forward1.forward(x, &mut dropout)?;
        let x = (&x + dropout.apply(self.attention.forward(&x, ragged, positions)?)?)?;
        let convolved = self.convolution.forward(&x, ragged, dropout.pass.as_deref_mut())?;
        let x = (&x + dropout.apply(convolved)?)?;
        let x = self.feed_forward2.forward(&x, &mut dropout)?;
        self.norm_out.apply(&x)
    }

    /// Applies the layer as [`Self::forward`], and saves only `x`.
    pub(super) fn forward_recomputed(
        &self,
        x: &Tensor,
        ragged: &Arc<Ragged>,
        positions: &Arc<RelativePositions>,
        pass: Option<&mut TrainingPass>,
    ) -> Result<Tensor> {
        let (layer, ragged, positions) = (self.clone(), ragged.clone(), positions.clone());
        recompute(x, &self.parameters(), pass, move |x, pass| layer.forward(x, &ragged, &positions, pass))
    }

    /// Returns all parameters.
    fn parameters(&self) -> Vec<&Tensor> {
        let Self { feed_forward1, attention, convolution, feed_forward2, norm_out, .. } = self;
        let SelfAttention { norm: attention_norm, projections: [q, k, v], out, .. } = attention;
        let SelfAttention { positions, position_biases, .. } = attention;
        let Convolution { norm, pointwise1, depthwise, inner_norm, pointwise2, .. } = convolution;
        let inner_norm = match inner_norm {
            InnerNorm::Batch(norm) => [&norm.weight, &norm.bias],
            InnerNorm::Layer(norm) => [&norm.weight, &norm.bias],
        };
        let norms = [attention_norm, norm, norm_out].into_iter().flat_map(|norm| [&norm.weight, &norm.bias]);
        let linear_layers = [q, k, v, out, positions, pointwise1, pointwise2];
        let mut all: Vec<&Tensor> = linear_layers.into_iter().flat_map(Linear::parameters).collect();
        all.extend(norms.chain(inner_norm).chain(position_biases).chain(depthwise));
        all.extend([feed_forward1, feed_forward2].into_iter().flat_map(FeedForward::parameters));
        all
    }

    /// Returns an upper bound of the memory of a padded batch.
    ///
    /// ```text
    /// saved       values of a row: feed_forward 2 x (W, masks)   attention 8W   convolution 10W
    ///             norm W; masks: a byte for each of W + F values; positions W for each distance
    /// temporary   the inner rows and gradients of a feed-forward module, or the gradients and
    ///             scores of attention: q|k|v and positions, each by heads and in rows
    /// ```
    /// W is the width of rows, F the inner width. Parameters are counted where operations
    /// concatenate them or return their gradients, and again where an adapter updates them.
    pub(super) fn footprint(&self, batch: usize, rows: usize, limits: AttentionLimits) -> Footprint {
        let width = self.norm_out.bias.elem_count();
        let inner = self.feed_forward1.inner_width();
        let all_rows = batch * rows;
        let distances = DistanceRange::new(limits, rows).count();
        let parameters = 4 * width * inner + 3 * width * width + 4 * inner + 18 * width;
        let scores = 2 * relative_attention::max_scores_in_memory(batch * self.attention.heads, rows, limits);
        // Gradients of positions: of each utterance, their sum, and that before the projection.
        let positions = (batch + 4) * distances * width;
        let temporary =
            all_rows * (20 * width + 4 * inner) + 7 * width * inner + 14 * width * width + scores + positions;
        let updated = self.attention.updated_values()
            + self.feed_forward1.updated_values()
            + self.feed_forward2.updated_values();
        // 21 W values, and the bytes of two masks: at most W + F / 2 values.
        let saved_per_row = 22 * width + inner.div_ceil(2);
        let saved = all_rows * saved_per_row + distances * width + parameters + updated;
        footprint::from_values(saved, temporary + updated)
    }
}

impl SelfAttention {
    fn new(
        config: &FastConformerEncoderConfig,
        adapter: Option<&AdapterConfig>,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let FastConformerEncoderConfig { width, heads, bias, .. } = *config;
        let low_rank = adapter.and_then(|adapter| adapter.low_rank(AdapterModule::Attention));
        let module = vb.pp("self_attn");
        let projection = |part: &str| {
            let vb = module.pp(format!("linear_{part}"));
            Linear::with_optional_bias(width, width, bias, &vb)?.with_low_rank(low_rank, &vb)
        };
        let head_width = width / heads.max(1);
        let position_bias = |name: &str| {
            module.get_with_hints((heads, head_width), &format!("pos_bias_{name}"), Init::Const(0.0))
        };
        Ok(SelfAttention {
            norm: LayerNorm::new(width, &vb.pp("norm_self_att"))?,
            projections: [projection("q")?, projection("k")?, projection("v")?],
            out: projection("out")?,
            positions: Linear::without_bias(width, width, &module.pp("linear_pos"))?,
            position_biases: [position_bias("u")?, position_bias("v")?],
            heads,
        })
    }

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

    fn forward(&self, x: &Tensor, ragged: &Arc<Ragged>, positions: &RelativePositions) -> Result<Tensor> {
        let [weight, bias] = self.concatenate_qkv()?;
        let qkv = linear(&self.norm.apply(x)?, &weight, &bias)?;
        let position_rows = self.positions.apply(&positions.sinusoids)?;
        let [key_bias, position_bias] = &self.position_biases;
        let biases = Tensor::cat(&[key_bias, position_bias], 0)?;
        let rows = relative_attention(&qkv, &position_rows, &biases, ragged, self.heads, positions.limits)?;
        self.out.apply(&rows)
    }
}

impl Convolution {
    fn new(config: &FastConformerEncoderConfig, vb: &VarBuilder) -> Result<Self> {
        let FastConformerEncoderConfig { width, kernel, bias: has_bias, .. } = *config;
        let module = vb.pp("conv");
        let depthwise = module.pp("depthwise_conv");
        let bias = if has_bias {
            depthwise.get_with_hints(width, "bias", Init::Const(0.0))?
        } else {
            Tensor::zeros(width, vb.dtype(), vb.device())?
        };
        // The name of both norms, as in NeMo.
        let norm = module.pp("batch_norm");
        Ok(Convolution {
            norm: LayerNorm::new(width, &vb.pp("norm_conv"))?,
            pointwise1: Linear::with_optional_bias(
                width,
                2 * width,
                has_bias,
                &module.pp("pointwise_conv1"),
            )?,
            depthwise: [depthwise.get_with_hints((width, kernel), "weight", random::uniform(kernel))?, bias],
            past_taps: if config.causal_convolution { kernel - 1 } else { kernel / 2 },
            inner_norm: match config.convolution_norm {
                ConvolutionNorm::Batch => {
                    let is_trained = config.batch_norm == BatchNormMode::Trained;
                    InnerNorm::Batch(BatchNorm::new(width, &norm)?.with_batch_statistics(is_trained))
                }
                ConvolutionNorm::Layer => InnerNorm::Layer(LayerNorm::new(width, &norm)?),
            },
            pointwise2: Linear::with_optional_bias(width, width, has_bias, &module.pp("pointwise_conv2"))?,
        })
    }

    fn forward(&self, x: &Tensor, ragged: &Arc<Ragged>, pass: Option<&mut TrainingPass>) -> Result<Tensor> {
        let gated = glu(&self.pointwise1.apply(&self.norm.apply(x)?)?)?;
        let [weight, bias] = &self.depthwise;
        let convolved = depthwise(&gated, ragged, weight, bias, self.past_taps)?;
        let normalized = match &self.inner_norm {
            InnerNorm::Batch(norm) => norm.forward(&convolved, pass)?,
            InnerNorm::Layer(norm) => norm.apply(&convolved)?,
        };
        self.pointwise2.apply(&silu(&normalized)?)
    }
}
