//! Packed encoders of models compared with their candle encoders.
use candle_core::{Device, Tensor};
use model::config::JointConfig;
use model::encoders::{
    AttentionLimits, BatchNormMode, ConvolutionNorm, DepthwiseSubsamplingConfig, EncoderChunk, EncoderKind,
    FastConformerEncoderConfig, LstmEncoderConfig, NumberFormat,
};
use model::predictors::{PredictorKind, StatelessPredictorConfig};
use model::{InputConfig, Model, ModelConfig, RowsConfig};

use crate::rows::{random, values};

const LABELS: usize = 10;

fn fast_conformer() -> FastConformerEncoderConfig {
    FastConformerEncoderConfig {
        layers: 2,
        width: 32,
        heads: 4,
        feed_forward: 64,
        kernel: 9,
        subsampling: DepthwiseSubsamplingConfig { channels: 8, factor: 8, causal: true },
        attention: AttentionLimits::Chunks { chunk: 2, left: Some(6) },
        other_attention: Vec::new(),
        causal_convolution: true,
        convolution_norm: ConvolutionNorm::Batch,
        batch_norm: BatchNormMode::Frozen,
        bias: true,
        scale_input: true,
        dropout: 0.0,
    }
}

fn model(encoder: EncoderKind) -> Model {
    let predictor = StatelessPredictorConfig { embedding: 4, context: 2, dropout: 0.0 };
    let rows = RowsConfig { stack: 1, stride: 1, ..RowsConfig::default() };
    let config = ModelConfig {
        input: InputConfig { rows, ..InputConfig::default() },
        predictor: Some(PredictorKind::Stateless(predictor)),
        ..ModelConfig::new(encoder, JointConfig { width: 8, dropout: 0.0 })
    };
    Model::new(&config, LABELS).unwrap()
}

#[test]
fn packed_rows_and_streams_equal_those_of_candle() {
    let offline = FastConformerEncoderConfig {
        attention: AttentionLimits::Full,
        causal_convolution: false,
        subsampling: DepthwiseSubsamplingConfig { channels: 8, factor: 4, causal: false },
        ..fast_conformer()
    };
    for (config, is_causal) in [(fast_conformer(), true), (offline, false)] {
        let model = model(EncoderKind::FastConformer(config));
        let (mels, frames) = (model.config().input.width(), 150);
        let features = random(frames * mels, 3, 1.0);
        let x = Tensor::from_slice(&features, (1, frames, mels), &Device::Cpu).unwrap();
        let expected = values(&model.encoder().forward(&x, &[frames], None).unwrap().0);
        let packed = model.packed_encoder(NumberFormat::F32).unwrap().unwrap();
        let rows = packed.encode(&[&features]).unwrap().rows;
        assert_eq!(rows.len(), expected.len());
        assert!(rows.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 2e-5 * (1.0 + b.abs())));
        assert!(packed.bytes(&[frames]) > size_of_val(&*rows));
        let Some(stream) = model.stream_encoder().unwrap() else {
            assert!(!is_causal);
            continue;
        };
        let mut state = stream.start();
        let mut chunk = [EncoderChunk { state: &mut state, rows: &features, is_last: true }];
        assert!(is_causal && stream.step(&mut chunk).unwrap().concat() == rows);
    }
}

#[test]
fn other_encoders_have_no_packed_form() {
    let lstm = LstmEncoderConfig { layers: 1, hidden: 8, ..LstmEncoderConfig::default() };
    let lstm = model(EncoderKind::Lstm(lstm));
    assert!(lstm.packed_encoder(NumberFormat::F32).unwrap().is_none());
    assert!(lstm.stream_encoder().unwrap().is_some());
    // A custom encoder has other parameters than the one of the configuration.
    let model = model(EncoderKind::FastConformer(fast_conformer()));
    let custom = Model::with_parts(model.config(), LABELS, |encoder, predictor| {
        let lstm = LstmEncoderConfig { layers: 1, hidden: 8, ..LstmEncoderConfig::default() };
        let config = StatelessPredictorConfig { embedding: 4, context: 2, dropout: 0.0 };
        let predictor = PredictorKind::Stateless(config).build(LABELS + 1, LABELS as u32, &predictor)?;
        Ok((EncoderKind::Lstm(lstm).build(model.config().input.width(), &encoder)?, predictor))
    });
    assert!(custom.unwrap().packed_encoder(NumberFormat::F32).unwrap().is_none());
    // It may also have all parameters of the configuration, and others.
    let lstm = LstmEncoderConfig { layers: 1, hidden: 8, ..LstmEncoderConfig::default() };
    let plain = self::model(EncoderKind::Lstm(lstm.clone()));
    let custom = Model::with_parts(plain.config(), LABELS, |encoder, predictor| {
        let config = StatelessPredictorConfig { embedding: 4, context: 2, dropout: 0.0 };
        let predictor = PredictorKind::Stateless(config).build(LABELS + 1, LABELS as u32, &predictor)?;
        encoder.get(3, "additional")?;
        Ok((EncoderKind::Lstm(lstm).build(plain.config().input.width(), &encoder)?, predictor))
    });
    assert!(plain.packed_encoder(NumberFormat::Q8).unwrap().is_some());
    assert!(custom.unwrap().packed_encoder(NumberFormat::Q8).unwrap().is_none());
}
