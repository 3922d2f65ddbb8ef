//! Packed encoders of models compared with their candle encoders.
use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use layers::training_pass::TrainingPass;
use model::config::JointConfig;
use model::encoders::{
    AttentionLimits, BatchNormMode, ConformerEncoderConfig, ConvolutionNorm, DepthwiseSubsamplingConfig,
    Encoder, EncoderChunk, EncoderKind, FastConformerEncoderConfig, LstmEncoderConfig, NumberFormat,
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

/// A custom encoder without other parameters: twice the rows of another.
struct Doubled(Arc<dyn Encoder>);

impl Encoder for Doubled {
    fn width(&self) -> usize {
        self.0.width()
    }

    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        pass: Option<&mut TrainingPass>,
    ) -> model::Result<(Tensor, Vec<usize>)> {
        let (rows, lengths) = self.0.forward(x, lengths, pass)?;
        Ok(((rows * 2.0)?, lengths))
    }
}

/// Creates a custom encoder.
type MakeEncoder<'a> = &'a dyn Fn(VarBuilder) -> model::Result<Arc<dyn Encoder>>;

fn lstm(hidden: usize) -> EncoderKind {
    EncoderKind::Lstm(LstmEncoderConfig { layers: 1, hidden, ..LstmEncoderConfig::default() })
}

fn conformer() -> EncoderKind {
    EncoderKind::Conformer(ConformerEncoderConfig {
        layers: 1,
        width: 32,
        heads: 4,
        feed_forward: 64,
        kernel: 9,
        ..ConformerEncoderConfig::default()
    })
}

#[test]
fn custom_encoders_are_not_replaced_by_packed_ones() {
    for kind in [EncoderKind::FastConformer(fast_conformer()), lstm(8), conformer()] {
        let plain = model(kind.clone());
        assert!(plain.packed_encoder(NumberFormat::Q8).unwrap().is_some());
        let (config, input_width) = (plain.config(), plain.config().input.width());
        let custom_encoders: [(&str, MakeEncoder); 4] = [
            ("the configured one", &|vb| kind.build(input_width, &vb)),
            ("wrapped", &|vb| Ok(Arc::new(Doubled(kind.build(input_width, &vb)?)))),
            ("of another size", &|vb| lstm(12).build(input_width, &vb)),
            ("more parameters", &|vb| {
                vb.get(3, "additional")?;
                kind.build(input_width, &vb)
            }),
        ];
        for (name, encoder) in custom_encoders {
            let models = [
                Model::with_encoder(config, LABELS, encoder).unwrap(),
                Model::with_parts(config, LABELS, |encoder_vb, predictor_vb| {
                    let predictor = config.predictor.as_ref().unwrap();
                    let predictor = predictor.build(LABELS + 1, LABELS as u32, &predictor_vb)?;
                    Ok((encoder(encoder_vb)?, predictor))
                })
                .unwrap(),
            ];
            for custom in models {
                let frames = 40;
                let x = random(frames * input_width, 5, 1.0);
                let x = Tensor::from_vec(x, (1, frames, input_width), &Device::Cpu).unwrap();
                let rows = |model: &Model| values(&model.encoder().forward(&x, &[frames], None).unwrap().0);
                for format in [NumberFormat::F32, NumberFormat::Bf16, NumberFormat::Q8] {
                    assert!(custom.packed_encoder(format).unwrap().is_none(), "{name} {format:?}");
                }
                let inference = custom.for_inference(NumberFormat::F32).unwrap();
                assert_eq!(rows(&inference), rows(&custom), "{name}");
                assert_eq!(inference.encoder_format(), None);
                assert!(custom.for_inference(NumberFormat::Q8).is_err(), "{name}");
            }
        }
    }
}
