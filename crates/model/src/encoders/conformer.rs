//! The Conformer encoder: its layers over ragged batches, without padding.
mod config;
mod layer;
mod packed;
mod packed_layer;
mod stream;

use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;
pub use config::{AttentionKind, ChunkedAttention, ConformerEncoderConfig};
use layer::ConformerLayer;
use packed::{PackedConformer, PackedInputLayer};
use packed_layer::PackedConformerLayer;

use super::subsampling::Subsampling;
use super::{Encoder, EncoderStream, InferenceEncoder, NumberFormat};
use crate::config::adapter::AdapterConfig;
use crate::{Linear, Result};
use layers::footprint;
use layers::ragged::Ragged;
use layers::training_pass::TrainingPass;

/// The Conformer encoder (Gulati et al., arXiv 2005.08100), without inner padding.
///
/// ```text
/// x ← x + ½ feed_forward(x)      linear, SiLU, linear
/// x ← x + attention(x)           heads with rotary positions
/// x ← x + convolution(x)         linear, GLU, depthwise, layer norm, SiLU, linear
/// x ← x + ½ feed_forward(x)
/// x ← layer_norm(x)              and one in front of each module
/// ```
/// There are two differences to the paper: positions are rotary, and the convolution module has a
/// layer norm instead of the batch norm. With a batch norm, a row would depend on the other
/// utterances of its batch, and training would differ from evaluation.
///
/// Dropout follows the first linear layer of a feed-forward module, and each module; attention
/// weights have no dropout.
///
/// With chunks, attention is limited to the frame's own chunk and some before it, and the depthwise
/// convolution to earlier frames: rows of a chunk depend on no later rows, and [`Encoder::stream`]
/// returns them as soon as the chunk is complete.
///
/// W is the width of the rows, F that of the feed-forward modules, k the taps of the depthwise
/// convolution, D the width of input rows, C the channels of the subsampling.
///
/// | parameter | shape |
/// |---|---|
/// | `pre_encode.conv.0`, `pre_encode.conv.2`: with subsampling | `[C, 1, 3, 3]`, `[C, C, 3, 3]` |
/// | `pre_encode.norm`: with subsampling | `[⌈⌈D/2⌉/2⌉ · C]` |
/// | `pre_encode.out` | `[W, ⌈⌈D/2⌉/2⌉ · C]`, without subsampling `[W, D]` |
/// | `layers.N.norm_feed_forward1`, `norm_self_att`, `norm_conv`, `norm_feed_forward2`, `norm_out`, `conv.norm` | `[W]` |
/// | `layers.N.feed_forward1.linear1`, `linear2`, and `feed_forward2` | `[F, W]`, `[W, F]` |
/// | `layers.N.self_attn.linear_q`, `linear_k`, `linear_v`, `linear_out` | `[W, W]` |
/// | `layers.N.conv.pointwise_conv1`, `depthwise_conv`, `pointwise_conv2` | `[2W, W]`, `[W, k]`, `[W, W]` |
///
/// An adapter of rank r adds `lora_a` `[r, D]` and `lora_b` `[O, r]` to layers `[O, D]` of
/// `self_attn` and of feed-forward modules.
///
/// Each name has a `weight` of this shape and a `bias`. Names are those of NeMo, whose batch norm
/// is `conv.batch_norm`.
///
/// Cost per row: `8 W F + 14 W² + 4 W K + 2 W k` multiply-adds, K the rows in attention; twice that
/// in the backward pass.
#[derive(Debug, Clone)]
pub struct ConformerEncoder {
    config: ConformerEncoderConfig,
    input_layer: InputLayer,
    layers: Vec<ConformerLayer>,
}

/// The layer from input rows to rows of width W.
#[derive(Debug, Clone)]
enum InputLayer {
    Linear(Linear),
    Subsampling(Box<Subsampling>),
}

impl InputLayer {
    /// Creates the layer; `vb` is the builder of the encoder.
    fn new(config: &ConformerEncoderConfig, input_width: usize, vb: &VarBuilder) -> Result<Self> {
        let (vb, width) = (vb.pp("pre_encode"), config.width);
        Ok(match &config.subsampling {
            None => InputLayer::Linear(Linear::new(input_width, width, &vb.pp("out"))?),
            Some(subsampling) => {
                InputLayer::Subsampling(Box::new(Subsampling::new(subsampling, input_width, width, &vb)?))
            }
        })
    }

    /// Packs a copy of the weights, in `f32`.
    fn pack(&self) -> Result<PackedInputLayer> {
        Ok(match self {
            InputLayer::Linear(linear) => PackedInputLayer::Linear(linear.pack("pre_encode.out")?),
            InputLayer::Subsampling(subsampling) => {
                PackedInputLayer::Subsampling(Box::new(subsampling.stream()?))
            }
        })
    }
}

impl ConformerEncoder {
    /// Creates the layers for input rows of width `input_width`.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn new(config: &ConformerEncoderConfig, input_width: usize, vb: &VarBuilder) -> Result<Self> {
        Self::with_adapter(config, input_width, None, vb)
    }

    /// Creates the layers, with low-rank adapters if there are any.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn with_adapter(
        config: &ConformerEncoderConfig,
        input_width: usize,
        adapter: Option<&AdapterConfig>,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let input_layer = InputLayer::new(config, input_width, vb)?;
        let layer = |index: usize| ConformerLayer::new(config, adapter, &vb.pp("layers").pp(index));
        let layers = (0..config.layers).map(layer).collect::<layers::Result<_>>()?;
        Ok(ConformerEncoder { config: config.clone(), input_layer, layers })
    }
}

impl Encoder for ConformerEncoder {
    fn width(&self) -> usize {
        self.config.width
    }

    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        mut pass: Option<&mut TrainingPass>,
    ) -> Result<(Tensor, Vec<usize>)> {
        let (mut x, ragged) = match &self.input_layer {
            InputLayer::Subsampling(subsampling) => subsampling.forward(x, lengths)?,
            InputLayer::Linear(linear) => {
                let ragged = Ragged::new(lengths);
                (linear.apply(&ragged.pack(x)?)?, ragged)
            }
        };
        if let Some(pass) = pass.as_deref_mut() {
            x = pass.apply_ragged(&x, &ragged, self.config.dropout)?;
        }
        for layer in &self.layers {
            let pass = pass.as_deref_mut();
            x = match pass.as_ref().is_some_and(|pass| pass.recomputes()) {
                true => layer.forward_recomputed(&x, &ragged, pass)?,
                false => layer.forward(&x, &ragged, pass)?,
            };
        }
        Ok((ragged.unpack(&x)?, ragged.lengths()))
    }

    fn bytes(&self, batch: usize, rows: usize, width: usize) -> Option<usize> {
        Some(self.footprint(batch, rows, width, false))
    }

    fn recomputed_bytes(&self, batch: usize, rows: usize, width: usize) -> Option<usize> {
        Some(self.footprint(batch, rows, width, true))
    }

    fn stream(&self) -> Result<Option<Arc<dyn EncoderStream>>> {
        if self.config.attention.chunks().is_none() {
            return Ok(None);
        }
        let input_layer = self.input_layer.pack()?;
        let layers = self.layers.iter().map(|layer| PackedConformerLayer::new(layer, NumberFormat::F32));
        let layers = layers.collect::<Result<_>>()?;
        Ok(Arc::new(PackedConformer { config: self.config.clone(), input_layer, layers }).stream())
    }
}

impl ConformerEncoder {
    /// Returns an upper bound of the bytes of a padded batch.
    fn footprint(&self, batch: usize, rows: usize, width: usize, recomputes: bool) -> usize {
        let mut rows = rows;
        let mut total = match &self.input_layer {
            InputLayer::Subsampling(subsampling) => {
                let total = subsampling.footprint(batch, rows);
                rows = rows.div_ceil(subsampling.factor());
                total
            }
            InputLayer::Linear(_) => {
                let (all_rows, out) = (batch * rows, self.config.width);
                // Packed rows and the output are saved; gradients and packed operands are not.
                let saved = all_rows * (width + out);
                footprint::from_values(saved, all_rows * (2 * width + 3 * out) + 3 * width * out)
            }
        };
        let values = batch * rows * self.config.width;
        // Dropout before the layers, and padding after them.
        total = footprint::chain(total, footprint::from_values(3 * values, 2 * values));
        let layers = self.layers.iter().map(|layer| {
            let layer = layer.footprint(batch, rows);
            if recomputes { footprint::recomputed(layer, values) } else { layer }
        });
        footprint::peak_bytes(layers.fold(total, footprint::chain))
    }
}
