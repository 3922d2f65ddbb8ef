//! Compares packed inference with a plain implementation in `f64`.
mod plain;
mod streams;

use std::collections::BTreeMap;

use kernels::packed::{NumberFormat, QuantizedMatrix};
use plain::PlainEncoder;

use super::PackedFastConformer;
use crate::encoders::WeightValues;
use crate::encoders::fast_conformer::{
    AttentionLimits, BatchNormMode, ConvolutionNorm, DepthwiseSubsamplingConfig, FastConformerEncoderConfig,
};

const BANDS: usize = 13;

fn config() -> FastConformerEncoderConfig {
    FastConformerEncoderConfig {
        layers: 2,
        width: 12,
        heads: 3,
        feed_forward: 20,
        kernel: 5,
        subsampling: DepthwiseSubsamplingConfig { channels: 6, factor: 4, causal: false },
        attention: AttentionLimits::Full,
        other_attention: Vec::new(),
        causal_convolution: false,
        convolution_norm: ConvolutionNorm::Batch,
        batch_norm: BatchNormMode::Frozen,
        bias: true,
        scale_input: true,
        dropout: 0.0,
    }
}

/// Encoders that together have all variants.
fn configs() -> Vec<FastConformerEncoderConfig> {
    let subsampling = |factor, causal| DepthwiseSubsamplingConfig { channels: 6, factor, causal };
    let norm = ConvolutionNorm::Layer;
    let window = |left, right| AttentionLimits::Window { left, right };
    vec![
        config(),
        FastConformerEncoderConfig { bias: false, scale_input: false, width: 40, heads: 2, ..config() },
        FastConformerEncoderConfig { subsampling: subsampling(8, false), convolution_norm: norm, ..config() },
        FastConformerEncoderConfig {
            subsampling: subsampling(2, true),
            causal_convolution: true,
            attention: window(Some(3), Some(0)),
            ..config()
        },
        FastConformerEncoderConfig { attention: window(Some(40), Some(7)), ..config() },
        FastConformerEncoderConfig { attention: window(None, Some(2)), kernel: 9, ..config() },
        FastConformerEncoderConfig {
            subsampling: subsampling(4, true),
            causal_convolution: true,
            convolution_norm: norm,
            kernel: 4,
            attention: AttentionLimits::Chunks { chunk: 3, left: Some(6) },
            ..config()
        },
        FastConformerEncoderConfig {
            attention: AttentionLimits::Chunks { chunk: 5, left: None },
            ..config()
        },
    ]
}

type Weights = BTreeMap<String, Vec<f32>>;

fn numbers(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 / 8_388_608.0 - 1.0) * scale
        })
        .collect()
}

/// Returns random weights of all parameters.
fn weights(config: &FastConformerEncoderConfig) -> Weights {
    let mut weights = Weights::new();
    let mut add = |name: String, count: usize, scale: f32, offset: f32| {
        let values =
            numbers(name.bytes().fold(7, |sum, byte| sum * 31 % 1_000_003 + u64::from(byte)), count, scale);
        weights.insert(format!("encoder.{name}"), values.into_iter().map(|x| x + offset).collect());
    };
    let FastConformerEncoderConfig { width, heads, feed_forward, kernel, .. } = *config;
    let channels = config.subsampling.channels;
    let mut bands = BANDS;
    for stage in 0..config.subsampling.stages() {
        bands = config.subsampling.stage_len(bands);
        let strided = if stage == 0 { 0 } else { 3 * stage - 1 };
        add(format!("pre_encode.conv.{strided}.weight"), channels * 9, 0.5, 0.0);
        add(format!("pre_encode.conv.{strided}.bias"), channels, 0.3, 0.1);
        if stage > 0 {
            add(format!("pre_encode.conv.{}.weight", 3 * stage), channels * channels, 0.5, 0.0);
            add(format!("pre_encode.conv.{}.bias", 3 * stage), channels, 0.3, 0.1);
        }
    }
    add("pre_encode.out.weight".into(), width * channels * bands, 0.2, 0.0);
    add("pre_encode.out.bias".into(), width, 0.2, 0.0);
    for layer in 0..config.layers {
        let name = |part: &str| format!("layers.{layer}.{part}");
        for norm in [
            "norm_feed_forward1",
            "norm_self_att",
            "norm_conv",
            "norm_feed_forward2",
            "norm_out",
            "conv.batch_norm",
        ] {
            add(name(&format!("{norm}.weight")), width, 0.3, 1.0);
            add(name(&format!("{norm}.bias")), width, 0.3, 0.0);
        }
        if config.convolution_norm == ConvolutionNorm::Batch {
            add(name("conv.batch_norm.running_mean"), width, 0.3, 0.0);
            add(name("conv.batch_norm.running_var"), width, 0.4, 0.8);
        }
        for part in ["linear_q", "linear_k", "linear_v", "linear_pos", "linear_out"] {
            add(name(&format!("self_attn.{part}.weight")), width * width, 0.5, 0.0);
            if config.bias && part != "linear_pos" {
                add(name(&format!("self_attn.{part}.bias")), width, 0.3, 0.0);
            }
        }
        for part in ["pos_bias_u", "pos_bias_v"] {
            add(name(&format!("self_attn.{part}")), heads * (width / heads), 0.5, 0.0);
        }
        let linears = [
            ("feed_forward1.linear1", feed_forward, width),
            ("feed_forward1.linear2", width, feed_forward),
            ("feed_forward2.linear1", feed_forward, width),
            ("feed_forward2.linear2", width, feed_forward),
            ("conv.pointwise_conv1", 2 * width, width),
            ("conv.depthwise_conv", width, kernel),
            ("conv.pointwise_conv2", width, width),
        ];
        for (part, outputs, inputs) in linears {
            add(name(&format!("{part}.weight")), outputs * inputs, 0.4, 0.0);
            if config.bias {
                add(name(&format!("{part}.bias")), outputs, 0.3, 0.0);
            }
        }
    }
    weights
}

fn packed(
    config: &FastConformerEncoderConfig,
    weights: &Weights,
    format: NumberFormat,
) -> PackedFastConformer {
    PackedFastConformer::new(config, BANDS, format, &mut |name| Ok(weights[name].clone().into())).unwrap()
}

fn features(seed: u64, frames: usize) -> Vec<f32> {
    numbers(seed, frames * BANDS, 2.0)
}

fn max_error(actual: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    actual.iter().zip(expected).fold(0.0, |max: f64, (a, b)| (f64::from(*a) - b).abs().max(max))
}

#[test]
fn rows_equal_the_formulas_for_all_lengths() {
    for config in configs() {
        let weights = weights(&config);
        let plain = PlainEncoder { config: &config, weights: &weights };
        let encoder = packed(&config, &weights, NumberFormat::F32);
        for frames in [0, 1, 2, 7, 8, 9, 15, 16, 17, 150] {
            let features = features(frames as u64, frames);
            let encoded = encoder.encode(&[&features]).unwrap();
            assert_eq!(encoded.lengths, [config.subsampling.output_len(frames)]);
            let error = max_error(&encoded.rows, &plain.encode(&features));
            assert!(error < 3e-5, "{config:?}, {frames} frames: {error}");
        }
    }
}

#[test]
fn bf16_rows_are_close() {
    for config in configs() {
        let weights = weights(&config);
        let encoders =
            [NumberFormat::F32, NumberFormat::Bf16].map(|format| packed(&config, &weights, format));
        let features = features(3, 150);
        let [exact, rounded] = encoders.map(|encoder| encoder.encode(&[&features]).unwrap().rows);
        let exact: Vec<f64> = exact.iter().map(|&x| f64::from(x)).collect();
        let error = max_error(&rounded, &exact);
        assert!(error > 0.0 && error < 0.15, "{config:?}: {error}");
    }
}

/// Returns the ratio of the root mean squares of errors and values.
fn relative_error(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let squares = actual.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2));
    let norm: f64 = expected.iter().map(|b| f64::from(*b).powi(2)).sum();
    (squares.sum::<f64>() / norm).sqrt()
}

#[test]
fn q8_rows_are_close() {
    for config in configs() {
        let weights = weights(&config);
        let encoders = [NumberFormat::F32, NumberFormat::Q8].map(|format| packed(&config, &weights, format));
        let features = features(3, 150);
        let [exact, rounded] = encoders.map(|encoder| encoder.encode(&[&features]).unwrap().rows);
        let error = relative_error(&rounded, &exact);
        assert!(error > 0.0 && error < 0.02, "{config:?}: {error}");
    }
}

/// Blocks of a file need no further rounding.
#[test]
fn quantized_weights_give_the_bits_of_quantization_at_load() {
    let mut errors = Vec::new();
    for config in configs() {
        let weights = weights(&config);
        let encoder = packed(&config, &weights, NumberFormat::Q8);
        let quantized = PackedFastConformer::new(&config, BANDS, NumberFormat::Q8, &mut |name| {
            quantize(name, &config, &weights)
        });
        let features = features(5, 150);
        let expected = encoder.encode(&[&features]).unwrap();
        assert!(quantized.unwrap().encode(&[&features]).unwrap() == expected, "{config:?}");
        // The numbers of blocks are also weights of other formats.
        let dequantized = PackedFastConformer::new(&config, BANDS, NumberFormat::F32, &mut |name| {
            quantize(name, &config, &weights)
        });
        let rows = dequantized.unwrap().encode(&[&features]).unwrap().rows;
        errors.push(relative_error(&rows, &expected.rows));
    }
    // Rows of feed-forward modules have 8 bits; if all rows had 8, the root mean square would be
    // 0.0058 with attention in f32 and 0.0065 in bf16.
    let squares: f64 = errors.iter().map(|error| error * error).sum();
    let error = (squares / errors.len() as f64).sqrt();
    assert!(error < 0.005, "{errors:?}");
}

/// Returns the blocks of a linear layer, or other values.
fn quantize(
    name: &str,
    config: &FastConformerEncoderConfig,
    weights: &Weights,
) -> crate::Result<WeightValues> {
    let values = weights[name].clone();
    let inputs = if name.ends_with("linear2.weight") { config.feed_forward } else { config.width };
    let is_linear = name.ends_with(".weight") && (name.contains(".linear") || name.contains("pointwise"));
    Ok(match is_linear {
        true => WeightValues::Q8(QuantizedMatrix::quantize(&values, inputs).unwrap()),
        false => values.into(),
    })
}

/// The sizes need several tiles, groups and blocks.
#[test]
fn bits_do_not_depend_on_the_batch_nor_on_threads() {
    for format in [NumberFormat::F32, NumberFormat::Bf16, NumberFormat::Q8] {
        for config in configs() {
            let weights = weights(&config);
            let encoder = packed(&config, &weights, format);
            let utterances: Vec<Vec<f32>> =
                [40, 2300, 0, 1, 700].iter().map(|&frames| features(frames as u64, frames)).collect();
            let utterances: Vec<&[f32]> = utterances.iter().map(Vec::as_slice).collect();
            let together = encoder.encode(&utterances).unwrap();
            let alone: Vec<f32> =
                utterances.iter().flat_map(|frames| encoder.encode(&[frames]).unwrap().rows).collect();
            assert!(together.rows == alone, "{format:?} {config:?}");
            let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            assert!(pool.install(|| encoder.encode(&utterances).unwrap()) == together);
        }
    }
}

#[test]
fn invalid_arguments_are_errors() {
    let config = config();
    let mut weights = weights(&config);
    let encoder = packed(&config, &weights, NumberFormat::F32);
    let error = encoder.encode(&[&[0.0; BANDS], &[0.0; BANDS + 1]]).unwrap_err().to_string();
    assert_eq!(error, "utterance 1: expected rows of 13 values, found 14 values");
    weights.get_mut("encoder.layers.1.norm_out.bias").unwrap().pop();
    let read = &mut |name: &str| Ok(weights[name].clone().into());
    let error = PackedFastConformer::new(&config, BANDS, NumberFormat::F32, read).unwrap_err().to_string();
    assert_eq!(error, "encoder.layers.1.norm_out.bias: expected 12 values, found 11 values");
}
