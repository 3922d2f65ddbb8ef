//! Example: trains a custom encoder (candle module) without recipe or audio.
//!
//! `cargo run --release --example custom_encoder`
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use candle_core::{Device, Module, Result as TensorResult, Tensor};
use candle_nn::{Conv1d, Conv1dConfig, Linear, VarBuilder};
use panda::distributed::ProcessGroup;
use panda::model::config::{JointConfig, LossTerms};
use panda::model::encoders::{EncoderKind, LstmEncoderConfig, ModuleEncoder};
use panda::model::predictors::{BuildPredictor, PredictorKind, StatelessPredictorConfig};
use panda::model::{Model, ModelConfig};
use panda::training::data::{Batch, BatchSource};
use panda::training::optimizer::OptimizerConfig;
use panda::training::recipe::RunConfig;
use panda::training::run_folder::RunFolder;
use panda::training::{CheckpointMetadata, EpochReport, Learner, Observer, Result, StartMode, Trainer};

/// Number of labels, without the blank.
const LABELS: usize = 3;
/// Features of a frame, D.
const FEATURES: usize = 4;
/// Channels of the convolution.
const CHANNELS: usize = 32;
/// Width of the encoder output, E.
const ENCODER_WIDTH: usize = 16;
/// Input frames per encoder row.
const SUBSAMPLING: usize = 2;
/// Frames of an utterance.
const FRAMES: usize = 16;

/// Convolution with stride 2, and a linear layer: `[B, T, D]` to `[B, ⌈T/2⌉, E]`.
struct ConvolutionEncoder {
    convolution: Conv1d,
    output: Linear,
}

impl ConvolutionEncoder {
    fn new(vb: &VarBuilder) -> panda::model::Result<Self> {
        let config = Conv1dConfig { padding: 1, stride: SUBSAMPLING, ..Conv1dConfig::default() };
        let convolution = candle_nn::conv1d(FEATURES, CHANNELS, 3, config, vb.pp("convolution"))?;
        let output = candle_nn::linear(CHANNELS, ENCODER_WIDTH, vb.pp("out"))?;
        Ok(ConvolutionEncoder { convolution, output })
    }
}

impl Module for ConvolutionEncoder {
    fn forward(&self, x: &Tensor) -> TensorResult<Tensor> {
        let x = self.convolution.forward(&x.transpose(1, 2)?.contiguous()?)?.relu()?;
        self.output.forward(&x.transpose(1, 2)?.contiguous()?)
    }
}

/// Synthetic data: utterance n is the label n mod 3 twice, each a peak in feature n mod 3.
struct SyntheticBatches;

impl BatchSource for SyntheticBatches {
    fn plan(&self, epoch: u64) -> Result<Vec<Vec<usize>>> {
        Ok((0..6).map(|batch| (0..4).map(|n| (batch * 4 + n + epoch as usize) % 24).collect()).collect())
    }

    fn batch(&self, _: u64, utterances: &[usize]) -> Result<Batch> {
        let value = |n: usize, t: usize, d: usize| {
            let peak = d == n % LABELS && t % 8 == 2;
            if peak { 1.0 } else { 0.1 * ((n + 3 * t + 5 * d) as f32).sin() }
        };
        let rows = utterances
            .iter()
            .flat_map(|&n| (0..FRAMES * FEATURES).map(move |i| value(n, i / FEATURES, i % FEATURES)));
        let rows = Tensor::from_iter(rows, &Device::Cpu)?.reshape((utterances.len(), FRAMES, FEATURES))?;
        let labels = utterances.iter().map(|&n| vec![(n % LABELS) as u32; 2]).collect();
        Ok(Batch::new(rows, vec![FRAMES; utterances.len()], labels))
    }
}

/// Prints every tenth epoch.
struct PrintEpochs;

impl Observer for PrintEpochs {
    fn on_epoch(&mut self, report: &EpochReport) {
        if report.metrics.epoch.is_multiple_of(10) {
            println!("epoch {}: loss {:.3}", report.metrics.epoch, report.metrics.loss);
        }
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    // Build the model from the custom encoder. The configuration gives only the subsampling factor
    // of the encoder; the module is custom.
    let encoder = EncoderKind::Lstm(LstmEncoderConfig { layers: 1, hidden: 1, ..Default::default() });
    let predictor = StatelessPredictorConfig { embedding: 8, context: 1, ..Default::default() };
    // Each label consumes a frame.
    let terms = LossTerms { topology: panda::rnnt_loss::Topology::modified(), ..LossTerms::default() };
    let config = ModelConfig {
        seed: 1,
        terms,
        predictor: Some(PredictorKind::Stateless(predictor.clone())),
        ..ModelConfig::new(encoder, JointConfig { width: 16, dropout: 0.0 })
    };
    let model = Model::with_parts(&config, LABELS, |encoder, vb| {
        let encoder = ModuleEncoder::new(ConvolutionEncoder::new(&encoder)?, ENCODER_WIDTH, SUBSAMPLING)?;
        Ok((Arc::new(encoder), predictor.build(LABELS + 1, LABELS as u32, &vb)?))
    })?;
    println!("{} parameters", model.parameters().count());

    // Train for 20 epochs in a temporary run folder.
    let learner = Learner::new(model, &OptimizerConfig { ema: 0.9, ..OptimizerConfig::new(2e-2) })?;
    let temporary_folder = tempfile::tempdir()?;
    let folder = RunFolder::new(temporary_folder.path(), StartMode::Fresh)?;
    let mut group = ProcessGroup::single();
    let run = RunConfig::new(20);
    let mut trainer =
        Trainer::new(learner, &run, 1, CheckpointMetadata::default(), &folder, None, &mut group)?;
    let mut evaluate = |_: &Model, _: &mut ProcessGroup| Ok(None);
    trainer.fit(&SyntheticBatches, &mut evaluate, &mut PrintEpochs, &AtomicBool::new(false))?;

    // Greedy search with the trained model.
    let model = trainer.learner().model();
    let batch = SyntheticBatches.batch(0, &[0, 1, 2])?;
    let (frames, lengths) = model.encode(&batch.rows, &batch.lengths)?;
    let width = frames.dim(2)?;
    let rows: Vec<f32> = frames.flatten_all()?.to_vec1()?;
    let mut search = panda::decoding::GreedySearch::new(model.decoder()?, Default::default())?;
    let utterances: Vec<&[f32]> = rows.chunks_exact(lengths[0] * width).collect();
    for (recognition, expected) in search.decode(&utterances)?.iter().zip(&batch.labels) {
        let labels: Vec<u32> = recognition.labels.iter().map(|label| label.label).collect();
        println!("reference {expected:?}, recognized {labels:?}");
        assert_eq!(&labels, expected);
    }
    Ok(())
}
