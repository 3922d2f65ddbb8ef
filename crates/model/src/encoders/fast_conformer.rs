//! The FastConformer encoder: its layers over ragged batches, without padding.
mod config;
mod inference;
mod layer;
mod subsampling;

pub use layers::attention_limits::AttentionLimits;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
pub use config::{BatchNormMode, ConvolutionNorm, DepthwiseSubsamplingConfig, FastConformerEncoderConfig};
pub use inference::{FastConformerStream, PackedFastConformer};
use layer::{FastConformerLayer, RelativePositions};
use subsampling::DepthwiseSubsampling;

use super::Encoder;
use crate::config::adapter::AdapterConfig;
use crate::{Result, tensors};
use layers::footprint;
use layers::relative_attention::DistanceRange;
use layers::training_pass::TrainingPass;

/// The FastConformer encoder (Rekesh et al., arXiv 2305.05084), as in NeMo.
///
/// ```text
/// x ← subsampling(frames)        depthwise-separable convolutions, a row of 8 frames
/// x ← x + ½ feed_forward(x)      linear, SiLU, linear
/// x ← x + attention(x)           heads with relative positions
/// x ← x + convolution(x)         linear, GLU, depthwise, norm, SiLU, linear
/// x ← x + ½ feed_forward(x)
/// x ← layer_norm(x)              and one in front of each module
/// ```
/// The norm of the convolution module is a layer norm, or a batch norm: with constant statistics,
/// or in training with those of the batch's rows without padding ([`BatchNormMode`]).
/// Weights are those of NeMo, with its names and layouts; a trailing axis of length 1 is dropped.
///
/// Dropout follows the subsampling, the first linear layer of a feed-forward module, and each
/// module; attention weights have no dropout.
///
/// W is the width of the rows, F that of the feed-forward modules, H the heads, k the taps of the
/// depthwise convolution, C the channels of the subsampling, M' the mel bins after it.
///
/// | parameter | shape |
/// |---|---|
/// | `pre_encode.conv.0` | `[C, 1, 3, 3]` |
/// | `pre_encode.conv.2`, `conv.3`; `conv.5`, `conv.6`; ... | `[C, 1, 3, 3]`, `[C, C]` |
/// | `pre_encode.out` | `[W, C · M']`, bins innermost |
/// | `layers.N.norm_feed_forward1`, `norm_self_att`, `norm_conv`, `norm_feed_forward2`, `norm_out`, `conv.batch_norm` | `[W]` |
/// | `layers.N.feed_forward1.linear1`, `linear2`, and `feed_forward2` | `[F, W]`, `[W, F]` |
/// | `layers.N.self_attn.linear_q`, `linear_k`, `linear_v`, `linear_out` | `[W, W]` |
/// | `layers.N.self_attn.linear_pos`, without bias | `[W, W]` |
/// | `layers.N.self_attn.pos_bias_u`, `pos_bias_v`: without `weight` and `bias` | `[H, W / H]` |
/// | `layers.N.conv.pointwise_conv1`, `depthwise_conv`, `pointwise_conv2` | `[2W, W]`, `[W, k]`, `[W, W]` |
/// | `layers.N.conv.batch_norm.running_mean`, `running_var`: without gradients, of a batch norm only | `[W]` |
///
/// An adapter of rank r adds `lora_a` `[r, D]` and `lora_b` `[O, r]` to layers `[O, D]` of
/// `self_attn` and of feed-forward modules.
///
/// Each name has a `weight` of this shape and a `bias`; without `bias` in the recipe, linear layers
/// and convolutions of the layers have none. `conv.batch_norm` is the name of both norms.
///
/// Cost per row: `8 W F + 15 W² + 6 W K + 2 W k` multiply-adds, K the rows in attention; twice that
/// in the backward pass.
#[derive(Debug, Clone)]
pub struct FastConformerEncoder {
    config: FastConformerEncoderConfig,
    subsampling: DepthwiseSubsampling,
    layers: Vec<FastConformerLayer>,
}

impl FastConformerEncoder {
    /// Creates the layers for input rows of width `input_width`.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn new(config: &FastConformerEncoderConfig, input_width: usize, vb: &VarBuilder) -> Result<Self> {
        Self::with_adapter(config, input_width, None, vb)
    }

    /// Creates the layers, with low-rank adapters if there are any.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn with_adapter(
        config: &FastConformerEncoderConfig,
        input_width: usize,
        adapter: Option<&AdapterConfig>,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let layer = |index: usize| FastConformerLayer::new(config, adapter, &vb.pp("layers").pp(index));
        Ok(FastConformerEncoder {
            config: config.clone(),
            subsampling: DepthwiseSubsampling::new(
                &config.subsampling,
                input_width,
                config.width,
                &vb.pp("pre_encode"),
            )?,
            layers: (0..config.layers).map(layer).collect::<layers::Result<_>>()?,
        })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &FastConformerEncoderConfig {
        &self.config
    }
}

/// Returns the sinusoids of distances as a tensor `[n, W]` of a dtype.
fn sinusoids(distances: DistanceRange, width: usize, dtype: DType) -> Result<Tensor> {
    let shape = (distances.count(), width);
    Ok(match dtype {
        DType::F64 => tensors::from_vec(distances.sinusoids::<f64>(width), shape)?,
        _ => tensors::from_vec(distances.sinusoids::<f32>(width), shape)?,
    })
}

impl Encoder for FastConformerEncoder {
    fn width(&self) -> usize {
        self.config.width
    }

    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        mut pass: Option<&mut TrainingPass>,
    ) -> Result<(Tensor, Vec<usize>)> {
        let FastConformerEncoderConfig { width, attention, dropout, scale_input, .. } = self.config;
        let (mut x, ragged) = self.subsampling.forward(x, lengths)?;
        if scale_input {
            x = (x * (width as f64).sqrt())?;
        }
        if let Some(pass) = pass.as_deref_mut() {
            x = pass.apply_ragged(&x, &ragged, dropout)?;
        }
        let longest = ragged.lengths().into_iter().max().unwrap_or(0);
        let distances = DistanceRange::new(attention, longest);
        let sinusoids = sinusoids(distances, width, x.dtype())?;
        let positions = Arc::new(RelativePositions { sinusoids, limits: attention });
        for layer in &self.layers {
            let pass = pass.as_deref_mut();
            x = match pass.as_ref().is_some_and(|pass| pass.recomputes()) {
                true => layer.forward_recomputed(&x, &ragged, &positions, pass)?,
                false => layer.forward(&x, &ragged, &positions, pass)?,
            };
        }
        Ok((ragged.unpack(&x)?, ragged.lengths()))
    }

    fn bytes(&self, batch: usize, rows: usize, _: usize) -> Option<usize> {
        Some(self.footprint(batch, rows, false))
    }

    fn recomputed_bytes(&self, batch: usize, rows: usize, _: usize) -> Option<usize> {
        Some(self.footprint(batch, rows, true))
    }
}

impl FastConformerEncoder {
    /// Returns an upper bound of the bytes of a padded batch.
    fn footprint(&self, batch: usize, rows: usize, recomputes: bool) -> usize {
        let FastConformerEncoderConfig { width, attention, .. } = self.config;
        let (mut total, rows) = self.subsampling.footprint(batch, rows);
        let values = batch * rows * width;
        // Scaling and dropout before the layers, and padding after them.
        total = footprint::chain(total, footprint::from_values(4 * values, 2 * values));
        let distances = DistanceRange::new(attention, rows).count();
        total = footprint::chain(total, footprint::from_values(distances * width, 0));
        let layers = self.layers.iter().map(|layer| {
            let layer = layer.footprint(batch, rows, attention);
            if recomputes { footprint::recomputed(layer, values) } else { layer }
        });
        footprint::peak_bytes(layers.fold(total, footprint::chain))
    }
}

/// Returns whether a parameter is the weight of a linear layer.
///
/// The subsampling is not included. These are almost all weights; pointwise convolutions are linear
/// layers.
pub(crate) fn is_linear_weight(name: &str) -> bool {
    const MODULES: [&str; 9] = [
        "linear1",
        "linear2",
        "linear_q",
        "linear_k",
        "linear_v",
        "linear_pos",
        "linear_out",
        "pointwise_conv1",
        "pointwise_conv2",
    ];
    let module = name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
    name.starts_with("encoder.layers.") && module.is_some_and(|module| MODULES.contains(&module))
}
