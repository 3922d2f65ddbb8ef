//! LSTM and Conformer encoders with packed weights, in `f32` and 8-bit blocks.
use candle_core::{Device, Tensor};
use kernels::packed::QuantizedMatrix;
use model::config::JointConfig;
use model::encoders::{
    AttentionKind, ChunkedAttention, ConformerEncoderConfig, EncoderChunk, EncoderKind, LstmEncoderConfig,
    NumberFormat, SubsamplingConfig, TimeReduction,
};
use model::predictors::{PredictorKind, StatelessPredictorConfig};
use model::{Checkpoint, CheckpointFile, InputConfig, Model, ModelConfig, RowsConfig, quantize};

use crate::pretrained_models::{Pretrained, RNNT, recipe};
use crate::rows::{bits, random, values};

const MELS: usize = 16;
const BLOCK: usize = 32;

fn config(hidden: usize) -> LstmEncoderConfig {
    LstmEncoderConfig { layers: 2, hidden, ..LstmEncoderConfig::default() }
}

/// A model with random biases as well.
fn model(encoder: EncoderKind) -> Model {
    let predictor = StatelessPredictorConfig { embedding: 4, context: 2, dropout: 0.0 };
    let mut input = InputConfig {
        rows: RowsConfig { stack: 1, stride: 1, ..RowsConfig::default() },
        ..InputConfig::default()
    };
    input.features.mels = MELS;
    let config = ModelConfig {
        input,
        predictor: Some(PredictorKind::Stateless(predictor)),
        ..ModelConfig::new(encoder, JointConfig { width: 8, dropout: 0.0 })
    };
    let model = Model::new(&config, 10).unwrap();
    for (name, variable) in model.parameters().iter().filter(|(name, _)| name.contains("bias")) {
        let bias = random(variable.elem_count(), name.len() as u64, 0.3);
        variable.set(&Tensor::from_vec(bias, variable.shape(), &Device::Cpu).unwrap()).unwrap();
    }
    model
}

fn utterances(lengths: &[usize]) -> Vec<Vec<f32>> {
    lengths.iter().enumerate().map(|(b, rows)| random(rows * MELS, b as u64, 1.0)).collect()
}

fn slices(utterances: &[Vec<f32>]) -> Vec<&[f32]> {
    utterances.iter().map(Vec::as_slice).collect()
}

/// Rounds each block to multiples of its largest value divided by 32,512.
fn rounded(row: &[f64]) -> Vec<f64> {
    let round = |block: &[f64]| {
        let scale = block.iter().fold(0.0f64, |max, x| max.max(x.abs())) / 32512.0;
        let round = move |&x: &f64| if scale > 0.0 { (x / scale).round_ties_even() * scale } else { 0.0 };
        block.iter().map(round).collect::<Vec<f64>>()
    };
    row.chunks(BLOCK).flat_map(round).collect()
}

/// Weights of a direction: input, recurrent, in 8-bit blocks, and the sum of biases.
fn weights(model: &Model, layer: usize, suffix: &str) -> [Vec<f64>; 3] {
    let read = |name: &str| {
        let variable = model.parameters().get(&format!("encoder.layers.{layer}.{name}_l0{suffix}"))?;
        let values = values(variable);
        Some(match variable.dims() {
            [_, columns] => QuantizedMatrix::quantize(&values, *columns).unwrap().dequantize(),
            _ => values,
        })
    };
    let double = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<f64>>();
    let mut bias = double(read("bias_ih").unwrap());
    if let Some(second) = read("bias_hh") {
        bias.iter_mut().zip(second).for_each(|(a, b)| *a += f64::from(b));
    }
    [double(read("weight_ih").unwrap()), double(read("weight_hh").unwrap()), bias]
}

/// Steps of a direction in `f64`, over rounded rows.
fn direction(rows: &[Vec<f64>], [input, recurrent, bias]: &[Vec<f64>; 3], hidden: usize) -> Vec<Vec<f64>> {
    let product = |weight: &[f64], x: &[f64]| -> Vec<f64> {
        let x = rounded(x);
        weight.chunks(x.len()).map(|row| row.iter().zip(&x).map(|(w, x)| w * x).sum()).collect()
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (mut h, mut c) = (vec![0.0; hidden], vec![0.0; hidden]);
    let step = |x: &Vec<f64>| {
        let (from_x, from_h) = (product(input, x), product(recurrent, &h));
        let gate = |gate: usize, unit: usize| {
            let index = gate * hidden + unit;
            from_x[index] + from_h[index] + bias[index]
        };
        for unit in 0..hidden {
            c[unit] = sigmoid(gate(1, unit)) * c[unit] + sigmoid(gate(0, unit)) * gate(2, unit).tanh();
            h[unit] = sigmoid(gate(3, unit)) * c[unit].tanh();
        }
        h.clone()
    };
    rows.iter().map(step).collect()
}

/// Encoder rows of an utterance in `f64`.
fn reference(model: &Model, config: &LstmEncoderConfig, utterance: &[f32]) -> Vec<f64> {
    let mut rows: Vec<Vec<f64>> =
        utterance.chunks(MELS).map(|row| row.iter().copied().map(f64::from).collect()).collect();
    for layer in 0..config.layers {
        if let Some(reduction) = config.time_reduction.as_ref().filter(|r| r.after_layer == layer) {
            let width = rows[0].len() * reduction.factor;
            let mut group = |group: &[Vec<f64>]| {
                let mut row = group.concat();
                row.resize(width, 0.0);
                row
            };
            rows = rows.chunks(reduction.factor).map(&mut group).collect();
        }
        let mut out = direction(&rows, &weights(model, layer, ""), config.hidden);
        if config.bidirectional {
            rows.reverse();
            let reversed = direction(&rows, &weights(model, layer, "_reverse"), config.hidden);
            out.iter_mut().zip(reversed.into_iter().rev()).for_each(|(row, other)| row.extend(other));
        }
        rows = out;
    }
    rows.concat()
}

#[test]
fn rows_in_blocks_are_those_of_steps_in_double_precision() {
    let reduction = Some(TimeReduction { after_layer: 1, factor: 2 });
    let variants = [
        config(5),
        LstmEncoderConfig { bidirectional: true, two_biases: true, ..config(16) },
        LstmEncoderConfig { time_reduction: reduction, bidirectional: true, ..config(20) },
        LstmEncoderConfig { layers: 1, ..config(70) },
        // Threads share the steps of so many units.
        LstmEncoderConfig { layers: 1, ..config(1030) },
    ];
    for config in variants {
        let model = model(EncoderKind::Lstm(config.clone()));
        let packed = model.packed_encoder(NumberFormat::Q8).unwrap().unwrap();
        assert_eq!((packed.input_width(), packed.width()), (MELS, model.encoder().width()));
        // More utterances than a task of the steps has.
        let counts = if config.hidden > 1000 { [1, 2, 1, 0, 1] } else { [7, 1, 12, 0, 5] };
        let lengths: Vec<usize> = (0..30).map(|b| counts[b % 5]).collect();
        let utterances = utterances(&lengths);
        let encoded = packed.encode(&slices(&utterances)).unwrap();
        let mut rows = &encoded.rows[..];
        for (utterance, length) in utterances.iter().zip(&encoded.lengths) {
            let (actual, rest) = rows.split_at(length * packed.width());
            rows = rest;
            let expected =
                if utterance.is_empty() { Vec::new() } else { reference(&model, &config, utterance) };
            assert_eq!(actual.len(), expected.len(), "{config:?}");
            let error =
                actual.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(error < 2e-5, "{config:?}: {error}");
            // The same bits alone.
            assert_eq!(bits(&packed.encode(&[utterance]).unwrap().rows), bits(actual));
        }
        assert!(rows.is_empty() && packed.bytes(&lengths) > size_of_val(&*encoded.rows));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let in_pool = pool.install(|| packed.encode(&slices(&utterances)).unwrap());
        assert_eq!(bits(&in_pool.rows), bits(&encoded.rows));
    }
}

/// Layers wider than a block.
fn conformer(attention: AttentionKind) -> ConformerEncoderConfig {
    ConformerEncoderConfig {
        layers: 2,
        width: 40,
        heads: 4,
        feed_forward: 72,
        kernel: 5,
        attention,
        ..ConformerEncoderConfig::default()
    }
}

/// Encoders with convolutions, time reduction, both directions, full and chunked attention.
fn variants() -> [EncoderKind; 6] {
    let subsampling = Some(SubsamplingConfig { channels: 4, factor: 4 });
    let reduction = Some(TimeReduction { after_layer: 1, factor: 3 });
    let chunked = AttentionKind::Chunked(ChunkedAttention { chunk: 4, left: 2 });
    [
        EncoderKind::Lstm(LstmEncoderConfig { time_reduction: reduction.clone(), ..config(40) }),
        EncoderKind::Lstm(LstmEncoderConfig {
            subsampling: subsampling.clone(),
            time_reduction: reduction,
            ..config(40)
        }),
        EncoderKind::Lstm(LstmEncoderConfig { bidirectional: true, ..config(8) }),
        EncoderKind::Conformer(ConformerEncoderConfig { subsampling, ..conformer(chunked) }),
        EncoderKind::Conformer(conformer(chunked)),
        EncoderKind::Conformer(conformer(AttentionKind::Full)),
    ]
}

#[test]
fn rows_in_single_precision_have_the_bits_of_candle() {
    // Threads share the frames of layers as wide as these.
    let wide = [false, true].map(|bidirectional| {
        EncoderKind::Lstm(LstmEncoderConfig { layers: 1, bidirectional, ..config(1024) })
    });
    for (index, config) in variants().into_iter().chain(wide).enumerate() {
        let model = model(config);
        let packed = model.packed_encoder(NumberFormat::F32).unwrap().unwrap();
        assert!(model.packed_encoder(NumberFormat::Bf16).unwrap().is_none());
        let (utterances, lengths) = (utterances(&[61, 5, 14]), [61, 5, 14]);
        let exact = utterances.iter().zip(lengths).map(|(utterance, rows)| {
            let x = Tensor::from_slice(utterance, (1, rows, MELS), &Device::Cpu).unwrap();
            values(&model.encoder().forward(&x, &[rows], None).unwrap().0)
        });
        let exact: Vec<f32> = exact.flatten().collect();
        assert_eq!(bits(&packed.encode(&slices(&utterances)).unwrap().rows), bits(&exact), "{index}");
    }
}

#[test]
fn rows_and_streams_in_blocks_are_close_to_those_in_single_precision() {
    for (index, config) in variants().into_iter().enumerate() {
        let model = model(config);
        let packed = model.packed_encoder(NumberFormat::Q8).unwrap().unwrap();
        let (utterances, lengths) = (utterances(&[61, 0, 14]), [61, 0, 14]);
        let encoded = packed.encode(&slices(&utterances)).unwrap();
        for (utterance, rows) in utterances.iter().zip([61, 0, 14]) {
            let x = Tensor::from_slice(utterance, (1, rows, MELS), &Device::Cpu).unwrap();
            let exact = match rows {
                0 => Vec::new(),
                _ => values(&model.encoder().forward(&x, &[rows], None).unwrap().0),
            };
            let actual = packed.encode(&[utterance]).unwrap().rows;
            assert_eq!(actual.len(), exact.len());
            let errors = actual.iter().zip(&exact).map(|(a, b)| (a - b).abs());
            let error = errors.fold(0.0, f32::max);
            let largest = exact.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            // With rows of 8 bits in attention, errors are up to 0.0095.
            assert!(error <= 0.008 * largest, "{index}: {error} of {largest}");
            assert!(rows == 0 || actual != exact);
        }
        // Neither the batch nor the number of threads changes a bit.
        let alone = utterances.iter().map(|rows| packed.encode(&[rows]).unwrap().rows);
        assert_eq!(bits(&alone.collect::<Vec<_>>().concat()), bits(&encoded.rows), "{index}");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let in_pool = pool.install(|| packed.encode(&slices(&utterances)).unwrap());
        assert_eq!(bits(&in_pool.rows), bits(&encoded.rows));
        assert!(packed.bytes(&lengths) > 2 * size_of_val(&*encoded.rows));
        assert!(packed.encode(&[&[0.0; MELS + 1]]).is_err());

        let quantized = model.for_inference(NumberFormat::Q8).unwrap();
        let Some(stream) = quantized.stream_encoder().unwrap() else {
            assert!([2, 5].contains(&index));
            continue;
        };
        let expected = packed.encode(&[&utterances[0]]).unwrap().rows;
        let mut state = stream.start();
        let mut rows = Vec::new();
        for (index, part) in utterances[0].chunks(7 * MELS).enumerate() {
            let is_last = (index + 1) * 7 >= 61;
            let mut chunk = [EncoderChunk { state: &mut state, rows: part, is_last }];
            rows.extend(stream.step(&mut chunk).unwrap().concat());
        }
        assert_eq!(bits(&rows), bits(&expected));
        assert_eq!(state, stream.start());
    }
}

#[test]
fn files_in_blocks_have_the_rows_of_quantization_at_load() {
    let lstm = "kind = \"lstm\"\nlayers = 2\nhidden = 40\nbidirectional = true\n";
    let conformer =
        "kind = \"conformer\"\nlayers = 2\nwidth = 40\nheads = 2\nfeed_forward = 80\nkernel = 3\n";
    let base = recipe("", RNNT);
    let (start, end) = (base.find("[encoder]").unwrap(), base.find("\n[predictor]").unwrap());
    let encoders =
        [(lstm, 2 * 4 * 40 * (32 + 40 + 80 + 40)), (conformer, 2 * 40 * (4 * 80 + 4 * 40 + 3 * 40))];
    for (encoder, matrix_values) in encoders {
        let encoder = format!("[encoder]\nstack = 2\nstride = 2\n{encoder}");
        let files = Pretrained::new(&(base[..start].to_owned() + &encoder + &base[end..]));
        let path = files.path("model.safetensors");
        // Scales of such small weights have few digits in f16: rounding again would change blocks.
        let mut checkpoint = Checkpoint::read(&path).unwrap();
        let small = checkpoint.weights.iter_mut().filter(|(name, _)| name.starts_with("encoder.layers.1"));
        small.flat_map(|(_, values)| values).for_each(|value| *value *= 0.01);
        checkpoint.write(&path).unwrap();
        let file = CheckpointFile::open(&path).unwrap();
        let output = files.path("q8.safetensors");
        quantize(&file, NumberFormat::Q8, &output).unwrap();
        let stored = CheckpointFile::open(&output).unwrap();
        assert_eq!(stored.format(), NumberFormat::Q8);
        let is_quantized =
            |part: &model::StoredPart| part.name == "encoder" && part.format == NumberFormat::Q8;
        let part = stored.stored_parts().into_iter().find(is_quantized).unwrap();
        assert_eq!(part.values, matrix_values);
        let encode = |path| {
            let model = Model::read_for_inference(path, NumberFormat::Q8).unwrap();
            assert_eq!(model.encoder_format(), Some(NumberFormat::Q8));
            let packed = model.packed_encoder(NumberFormat::Q8).unwrap().unwrap();
            bits(&packed.encode(&[&random(9 * 32, 4, 1.0)]).unwrap().rows)
        };
        assert_eq!(encode(&output), encode(&path));
        let error = quantize(&file, NumberFormat::Bf16, &files.path("bf16")).unwrap_err().to_string();
        assert!(error.contains("expected a FastConformer encoder, for bf16"), "{error}");
        assert!(!files.path("bf16").exists());
    }
}
