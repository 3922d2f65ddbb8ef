//! Helpers of encoder tests in several crates: input rows, and small encoders.
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use model::encoders::{
    AttentionKind, AttentionLimits, BatchNormMode, ChunkedAttention, ConformerEncoderConfig, ConvolutionNorm,
    DepthwiseSubsamplingConfig, EncoderKind, FastConformerEncoderConfig, LstmEncoderConfig,
    SubsamplingConfig,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Returns uniform values within ±scale.
pub(crate) fn random(count: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| scale * (2.0 * rng.random::<f32>() - 1.0)).collect()
}

pub(crate) fn tensor(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
}

/// Copies all elements.
pub(crate) fn values(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Returns the sorted bounds of chunks of `length` elements; chunks may be empty.
pub(crate) fn cut(length: usize, cuts: &[usize]) -> Vec<usize> {
    let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut % (length + 1)).chain([0, length]).collect();
    bounds.sort_unstable();
    bounds
}

/// Creates a builder of random parameters.
pub(crate) fn builder() -> VarBuilder<'static> {
    VarBuilder::from_varmap(&candle_nn::VarMap::new(), DType::F32, &Device::Cpu)
}

/// Returns a padded batch of utterances, and their lengths.
pub(crate) fn padded(utterances: &[Vec<f32>], width: usize) -> (Tensor, Vec<usize>) {
    let lengths: Vec<usize> = utterances.iter().map(|rows| rows.len() / width).collect();
    let frames = lengths.iter().copied().max().unwrap_or(0);
    let mut batch = vec![0.0; utterances.len() * frames * width];
    for (target, rows) in batch.chunks_mut((frames * width).max(1)).zip(utterances) {
        target[..rows.len()].copy_from_slice(rows);
    }
    (tensor(&batch, &[utterances.len(), frames, width]), lengths)
}

/// Returns the rows of each utterance of a padded batch.
pub(crate) fn unpadded((x, lengths): (Tensor, Vec<usize>)) -> Vec<Vec<f32>> {
    let (_, frames, width) = x.dims3().unwrap();
    let batch = values(&x);
    let rows = |(b, &length): (usize, &usize)| batch[b * frames * width..][..length * width].to_vec();
    lengths.iter().enumerate().map(rows).collect()
}

/// Width of an input row.
pub(crate) const BINS: usize = 7;

/// Returns subsampling by a factor of 2 or 4.
pub(crate) fn subsampling(factor: usize) -> Option<SubsamplingConfig> {
    Some(SubsamplingConfig { channels: 3, factor })
}

/// Returns a small Conformer; a subsampling factor of 1 is none.
pub(crate) fn conformer(attention: AttentionKind, kernel: usize, factor: usize) -> ConformerEncoderConfig {
    ConformerEncoderConfig {
        layers: 2,
        width: 12,
        heads: 3,
        feed_forward: 20,
        kernel,
        dropout: 0.2,
        attention,
        subsampling: if factor > 1 { subsampling(factor) } else { None },
    }
}

/// Returns attention to a chunk and `left` chunks before it.
pub(crate) fn chunks(chunk: usize, left: usize) -> AttentionKind {
    AttentionKind::Chunked(ChunkedAttention { chunk, left })
}

/// Returns a small FastConformer; a causal one also has layer norms and no biases.
pub(crate) fn fast_conformer(
    attention: AttentionLimits,
    causal: bool,
    factor: usize,
) -> FastConformerEncoderConfig {
    FastConformerEncoderConfig {
        layers: 2,
        width: 12,
        heads: 3,
        feed_forward: 20,
        kernel: 5,
        subsampling: DepthwiseSubsamplingConfig { channels: 5, factor, causal },
        attention,
        other_attention: Vec::new(),
        causal_convolution: causal,
        convolution_norm: if causal { ConvolutionNorm::Layer } else { ConvolutionNorm::Batch },
        batch_norm: BatchNormMode::Frozen,
        bias: !causal,
        scale_input: !causal,
        dropout: 0.2,
    }
}

/// Returns a small LSTM encoder with subsampling.
pub(crate) fn lstm(bidirectional: bool, factor: usize) -> LstmEncoderConfig {
    let subsampling = subsampling(factor);
    LstmEncoderConfig { layers: 2, hidden: 9, bidirectional, subsampling, ..LstmEncoderConfig::default() }
}

/// Returns a configuration of each kind of encoder, attention and subsampling.
pub(crate) fn every_kind() -> Vec<EncoderKind> {
    vec![
        EncoderKind::Conformer(conformer(AttentionKind::Full, 5, 4)),
        EncoderKind::Conformer(conformer(AttentionKind::Full, 3, 1)),
        EncoderKind::Conformer(conformer(chunks(3, 2), 4, 2)),
        EncoderKind::FastConformer(fast_conformer(AttentionLimits::Full, false, 8)),
        EncoderKind::FastConformer(fast_conformer(
            AttentionLimits::Window { left: Some(3), right: Some(1) },
            false,
            2,
        )),
        EncoderKind::FastConformer(fast_conformer(
            AttentionLimits::Chunks { chunk: 2, left: Some(2) },
            true,
            4,
        )),
        EncoderKind::Lstm(lstm(true, 4)),
        EncoderKind::Lstm(lstm(false, 2)),
    ]
}

/// Input rows of each utterance.
pub(crate) const LENGTHS: [usize; 5] = [23, 0, 1, 40, 18];

/// Returns random input rows of each utterance.
pub(crate) fn utterances() -> Vec<Vec<f32>> {
    LENGTHS.iter().enumerate().map(|(b, n)| random(n * BINS, b as u64, 1.0)).collect()
}
