//! One layer of a Conformer with chunks, its weights packed, whose utterances go on where they
//! stopped.
use decoding::AffineLayer;

use super::block::{ConformerLayer, Convolution, FeedForward, SelfAttention};
use crate::Result;
use crate::layers::attention;
use crate::layers::attention::{AttentionInput, Chunks, HeadCount};
use crate::layers::depthwise;
use crate::layers::gates::{glu_rows, silu_rows};
use crate::layers::layer_norm::FixedNorm;
use crate::layers::linear::packed;
use crate::layers::ragged::Ragged;
use crate::tensors::to_vec;

pub(super) struct FixedBlock {
    feed_forward1: FixedFeedForward,
    attention: FixedAttention,
    convolution: FixedConvolution,
    feed_forward2: FixedFeedForward,
    norm_out: FixedNorm,
}

struct FixedFeedForward {
    norm: FixedNorm,
    layers: [AffineLayer; 2],
}

struct FixedAttention {
    norm: FixedNorm,
    inputs: AffineLayer,
    out: AffineLayer,
    heads: HeadCount,
    chunks: Option<Chunks>,
}

struct FixedConvolution {
    norm: FixedNorm,
    pointwise: [AffineLayer; 2],
    /// `[k, W]`
    weight: Vec<f32>,
    bias: Vec<f32>,
    inner_norm: FixedNorm,
}

/// What a layer remembers of an utterance.
pub(super) struct Memory<'a> {
    /// Rows k|v of the chunks that the next one sees, `[m, 2W]`.
    pub keys: &'a mut Vec<f32>,
    /// Rows that the depthwise convolution sees before the next one, `[at most k - 1, W]`.
    pub tail: &'a mut Vec<f32>,
}

fn add(mut x: Vec<f32>, factor: f32, y: &[f32]) -> Vec<f32> {
    kernels::add_scaled(&mut x, factor, y);
    x
}

impl FixedBlock {
    pub fn new(block: &ConformerLayer) -> Result<Self> {
        let feed_forward = |from: &FeedForward| -> Result<FixedFeedForward> {
            let layers = [from.linear1.packed("linear1")?, from.linear2.packed("linear2")?];
            Ok(FixedFeedForward { norm: from.norm.fixed()?, layers })
        };
        Ok(FixedBlock {
            feed_forward1: feed_forward(&block.feed_forward1)?,
            attention: FixedAttention::new(&block.attention)?,
            convolution: FixedConvolution::new(&block.convolution)?,
            feed_forward2: feed_forward(&block.feed_forward2)?,
            norm_out: block.norm_out.fixed()?,
        })
    }

    /// The next rows of each utterance, one utterance after another, `lengths` each: whole chunks,
    /// or the end.
    pub fn step(&self, x: Vec<f32>, lengths: &[usize], memories: &mut [Memory]) -> Vec<f32> {
        let y = self.feed_forward1.rows(&x);
        let x = add(x, 0.5, &y);
        let y = self.attention.step(&x, lengths, memories);
        let x = add(x, 1.0, &y);
        let y = self.convolution.step(&x, lengths, memories);
        let x = add(x, 1.0, &y);
        let y = self.feed_forward2.rows(&x);
        self.norm_out.rows(&add(x, 0.5, &y))
    }
}

impl FixedFeedForward {
    fn rows(&self, x: &[f32]) -> Vec<f32> {
        let [first, second] = &self.layers;
        second.rows(&silu_rows(&first.rows(&self.norm.rows(x))))
    }
}

impl FixedAttention {
    fn new(from: &SelfAttention) -> Result<Self> {
        let [weight, bias] = from.joined()?;
        let heads = HeadCount { count: from.heads, width: from.out.weight().dim(0)? };
        let (inputs, out) = (packed("linear_qkv", &weight, &bias)?, from.out.packed("linear_out")?);
        Ok(FixedAttention { norm: from.norm.fixed()?, inputs, out, heads, chunks: from.chunks })
    }

    fn step(&self, x: &[f32], lengths: &[usize], memories: &mut [Memory]) -> Vec<f32> {
        let width = self.heads.width;
        let qkv = self.inputs.rows(&self.norm.rows(x));
        let ragged = Ragged::new(lengths);
        // Rows that are keys alone have no query.
        let with_known = |b: usize, memory: &Memory| {
            let known = memory.keys.chunks_exact(2 * width);
            let known = known.flat_map(|keys| std::iter::repeat_n(&0.0, width).chain(keys)).copied();
            known.chain(ragged.of(&qkv, 3 * width, b).iter().copied()).collect::<Vec<f32>>()
        };
        let all: Vec<Vec<f32>> =
            memories.iter().enumerate().map(|(b, memory)| with_known(b, memory)).collect();
        let known = memories.iter().map(|memory| memory.keys.len() / (2 * width));
        let utterances: Vec<AttentionInput<f32>> =
            all.iter().zip(known).map(|(qkv, known)| AttentionInput { qkv, known }).collect();
        let out = attention::forward(&utterances, self.heads, self.chunks);
        let most = self.chunks.map_or(0, |chunks| chunks.left * chunks.chunk);
        for (memory, qkv) in memories.iter_mut().zip(&all) {
            let rows = qkv.len() / (3 * width);
            let kept = qkv.chunks_exact(3 * width).skip(rows.saturating_sub(most));
            *memory.keys = kept.flat_map(|row| row[width..].iter().copied()).collect();
        }
        self.out.rows(&out)
    }
}

impl FixedConvolution {
    fn new(from: &Convolution) -> Result<Self> {
        let [weight, bias] = &from.depthwise;
        let (weight, taps) = (to_vec::<f32>(weight)?, weight.dim(1)?);
        Ok(FixedConvolution {
            norm: from.norm.fixed()?,
            pointwise: [
                from.pointwise1.packed("pointwise_conv1")?,
                from.pointwise2.packed("pointwise_conv2")?,
            ],
            weight: depthwise::by_taps(&weight, taps),
            bias: to_vec(bias)?,
            inner_norm: from.inner_norm.fixed()?,
        })
    }

    fn step(&self, x: &[f32], lengths: &[usize], memories: &mut [Memory]) -> Vec<f32> {
        let width = self.bias.len();
        let before = self.weight.len() / width - 1;
        let [first, second] = &self.pointwise;
        let gated = glu_rows(&first.rows(&self.norm.rows(x)), width);
        let ragged = Ragged::new(lengths);
        let mut mixed = vec![0.0; gated.len()];
        for (b, (memory, out)) in memories.iter_mut().zip(ragged.cut(&mut mixed, width)).enumerate() {
            let known = memory.tail.len() / width;
            memory.tail.extend_from_slice(ragged.of(&gated, width, b));
            depthwise::rows(memory.tail, known, &self.weight, &self.bias, before, out);
            let rows = memory.tail.len() / width;
            memory.tail.drain(..rows.saturating_sub(before) * width);
        }
        second.rows(&silu_rows(&self.inner_norm.rows(&mixed)))
    }
}
