//! One layer of the Conformer for inference: packed weights, whole utterances or streams.
//!
//! The caller owns the state of each utterance in the layer (`LayerState`). W: width of a row; k:
//! taps of the depthwise convolution; m: chunks of left context in the state.
use std::borrow::Cow;

use decoding::AffineLayer;
use kernels::packed::{NumberFormat, RowBits};
use kernels::{par_for, parts, parts_mut};

use super::layer::{ConformerLayer, Convolution, SelfAttention};
use crate::Result;
use crate::encoders::feed_forward::FeedForward;
use layers::activations::{glu_rows, silu_rows};
use layers::attention;
use layers::attention::{AttentionInput, ChunkSizes, HeadShape};
use layers::depthwise;
use layers::layer_norm::InferenceNorm;
use layers::linear::pack_as;
use layers::ragged::Ragged;
use layers::tensors::to_vec;

/// [`ConformerLayer`] with packed weights.
pub(super) struct PackedConformerLayer {
    feed_forward1: FeedForwardModule,
    attention: AttentionModule,
    convolution: ConvolutionModule,
    feed_forward2: FeedForwardModule,
    norm_out: InferenceNorm,
}

struct FeedForwardModule {
    norm: InferenceNorm,
    layers: [AffineLayer; 2],
}

struct AttentionModule {
    norm: InferenceNorm,
    /// The projections to q, k and v.
    qkv: AffineLayer,
    out: AffineLayer,
    heads: HeadShape,
    chunks: Option<ChunkSizes>,
}

struct ConvolutionModule {
    norm: InferenceNorm,
    pointwise: [AffineLayer; 2],
    /// Taps that apply to earlier frames.
    past_taps: usize,
    /// `[k, W]`
    weight: Vec<f32>,
    bias: Vec<f32>,
    inner_norm: InferenceNorm,
}

/// The state of an utterance in one layer.
pub(super) struct LayerState<'a> {
    /// Keys and values of the chunks before the next one, `[m, 2W]`.
    pub keys: &'a mut Vec<f32>,
    /// Rows before the next one in the depthwise window.
    ///
    /// `[at most k - 1, W]`
    pub tail: &'a mut Vec<f32>,
}

/// Values that a task of [`add_scaled`] processes.
const VALUES_PER_TASK: usize = 1 << 14;

/// Returns `x + factor · y`.
fn add_scaled(mut x: Vec<f32>, factor: f32, y: &[f32]) -> Vec<f32> {
    par_for((parts_mut(&mut x, VALUES_PER_TASK), parts(y, VALUES_PER_TASK)), |_, (x, y)| {
        kernels::add_scaled(x, factor, y);
    });
    x
}

impl PackedConformerLayer {
    pub(super) fn new(layer: &ConformerLayer, format: NumberFormat) -> Result<Self> {
        let feed_forward = |module: &FeedForward| -> Result<FeedForwardModule> {
            let layers =
                [module.linear1.pack_as(format, "linear1")?, module.linear2.pack_as(format, "linear2")?];
            Ok(FeedForwardModule { norm: module.norm.for_inference()?, layers })
        };
        Ok(PackedConformerLayer {
            feed_forward1: feed_forward(&layer.feed_forward1)?,
            attention: AttentionModule::new(&layer.attention, format)?,
            convolution: ConvolutionModule::new(&layer.convolution, format)?,
            feed_forward2: feed_forward(&layer.feed_forward2)?,
            norm_out: layer.norm_out.for_inference()?,
        })
    }

    /// Computes the next rows of each utterance: whole chunks, or its end.
    ///
    /// Without chunks, these are all rows of each utterance.
    ///
    /// The modules and factors are those of [`super::ConformerEncoder`].
    ///
    /// `x` has the rows of one utterance after another, `lengths` their numbers. States are
    /// updated.
    pub(super) fn step(&self, x: Vec<f32>, lengths: &[usize], states: &mut [LayerState]) -> Vec<f32> {
        let y = self.feed_forward1.apply(&x);
        let x = add_scaled(x, 0.5, &y);
        let y = self.attention.step(&x, lengths, states);
        let x = add_scaled(x, 1.0, &y);
        let y = self.convolution.step(&x, lengths, states);
        let x = add_scaled(x, 1.0, &y);
        let y = self.feed_forward2.apply(&x);
        self.norm_out.apply(&add_scaled(x, 0.5, &y))
    }
}

impl FeedForwardModule {
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let [inner, outer] = &self.layers;
        outer.forward_rows(&silu_rows(&inner.forward_rows(&self.norm.apply(x))))
    }
}

impl AttentionModule {
    fn new(module: &SelfAttention, format: NumberFormat) -> Result<Self> {
        let [weight, bias] = module.concatenate_qkv()?;
        let heads = HeadShape { count: module.heads, total_width: module.out.weight().dim(0)? };
        let qkv = pack_as(format, "linear_qkv", &weight, &bias)?;
        let out = module.out.pack_as(format, "linear_out")?;
        let [qkv, out] = [qkv, out].map(|linear| linear.with_row_bits(RowBits::Sixteen));
        let (norm, chunks) = (module.norm.for_inference()?, module.chunks);
        Ok(AttentionModule { norm, qkv, out, heads, chunks })
    }

    fn step(&self, x: &[f32], lengths: &[usize], states: &mut [LayerState]) -> Vec<f32> {
        let width = self.heads.total_width;
        let (keys_width, qkv_width) = (2 * width, 3 * width);
        let new_qkv = self.qkv.forward_rows(&self.norm.apply(x));
        let ragged = Ragged::new(lengths);
        // Earlier rows are keys and values only, without a query.
        let qkv_with_context = |(b, state): (usize, &LayerState)| {
            let new_rows = ragged.utterance(&new_qkv, qkv_width, b);
            if state.keys.is_empty() {
                return Cow::Borrowed(new_rows);
            }
            let context = state.keys.chunks_exact(keys_width);
            let context = context.flat_map(|keys| std::iter::repeat_n(&0.0, width).chain(keys));
            Cow::Owned(context.chain(new_rows).copied().collect::<Vec<f32>>())
        };
        let qkv: Vec<Cow<[f32]>> = states.iter().enumerate().map(qkv_with_context).collect();
        let context_rows = states.iter().map(|state| state.keys.len() / keys_width);
        let utterances: Vec<AttentionInput<f32>> = qkv
            .iter()
            .zip(context_rows)
            .map(|(qkv, context_rows)| AttentionInput { qkv, context_rows })
            .collect();
        let out = attention::forward(&utterances, self.heads, self.chunks);
        let max_context = self.chunks.map_or(0, |chunks| chunks.left_chunks * chunks.chunk_rows);
        // The last rows become the context of the next chunk.
        for (state, qkv) in states.iter_mut().zip(&qkv) {
            let rows = qkv.len() / qkv_width;
            let next_context = qkv.chunks_exact(qkv_width).skip(rows.saturating_sub(max_context));
            *state.keys = next_context.flat_map(|row| row[width..].iter().copied()).collect();
        }
        self.out.forward_rows(&out)
    }
}

impl ConvolutionModule {
    fn new(module: &Convolution, format: NumberFormat) -> Result<Self> {
        let [weight, bias] = &module.depthwise;
        let (weight, taps) = (to_vec::<f32>(weight)?, weight.dim(1)?);
        Ok(ConvolutionModule {
            norm: module.norm.for_inference()?,
            pointwise: [
                module.pointwise1.pack_as(format, "pointwise_conv1")?,
                module.pointwise2.pack_as(format, "pointwise_conv2")?,
            ]
            .map(|linear| linear.with_row_bits(RowBits::Sixteen)),
            past_taps: module.past_taps,
            weight: depthwise::transpose_weight(&weight, taps),
            bias: to_vec(bias)?,
            inner_norm: module.inner_norm.for_inference()?,
        })
    }

    fn step(&self, x: &[f32], lengths: &[usize], states: &mut [LayerState]) -> Vec<f32> {
        let (width, past_taps) = (self.bias.len(), self.past_taps);
        let [first, second] = &self.pointwise;
        let gated = glu_rows(&first.forward_rows(&self.norm.apply(x)), width);
        let ragged = Ragged::new(lengths);
        for (b, state) in states.iter_mut().enumerate() {
            state.tail.extend_from_slice(ragged.utterance(&gated, width, b));
        }
        let rows: Vec<&[f32]> = states.iter().map(|state| &state.tail[..]).collect();
        let convolved = depthwise::last_rows(&ragged, &rows, &self.weight, &self.bias, past_taps);
        for state in states {
            let rows = state.tail.len() / width;
            state.tail.drain(..rows.saturating_sub(past_taps) * width);
        }
        second.forward_rows(&silu_rows(&self.inner_norm.apply(&convolved)))
    }
}
