//! Benchmark of a training step of an RNN-T: forward, backward and LAMB.
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use model::{LossSessions, Model, ModelConfig, TrainingPass};
use training::data::Batch;
use training::optimizer::{OptimizerConfig, OptimizerKind};
use training::{Learner, StepPosition};

use super::case::{Method, TrainWork};
use super::error::{Error, Result};
use super::gradients::NamedGradients;
use super::inputs::{noise, random_labels};
use super::machine::resident_peak;
use super::rates::read_rate;
use super::workload::Workload;
use super::workload::median;
use super::workload::{CaseShape, PartTimes, TrainingReport};

/// Learning rate of MLPerf for a global batch of 1,024.
const LEARNING_RATE: f64 = 0.007447;
/// Weight decay of MLPerf.
const WEIGHT_DECAY: f64 = 1e-3;
/// Decay of the moving average of MLPerf.
const EMA_DECAY: f64 = 0.992;
/// Number of values of an array larger than any cache.
const STREAM_VALUES: usize = 1 << 26;

/// Training of a model on one synthetic batch, repeated.
struct TrainingWorkload {
    work: TrainWork,
    /// True if the weights are averaged.
    has_ema: bool,
    learner: Learner,
    rows: Tensor,
    lengths: Vec<usize>,
    labels: Vec<Vec<u32>>,
    step: u64,
    /// Sum of the losses of the last step.
    loss: f64,
    /// Times of each step.
    times: Vec<StepTimes>,
}

/// Times of the parts of a step.
struct StepTimes {
    /// Forward and backward.
    gradients: Duration,
    optimizer: Duration,
}

/// Creates a model, its optimizer and a synthetic batch.
///
/// # Errors
/// If the model does not support the sizes.
pub(crate) fn prepare(work: &TrainWork, method: &Method) -> Result<Box<dyn Workload>> {
    let [encoder, predictor, joint] = work.widths;
    let model = Model::new(&ModelConfig::mlperf_with_widths(encoder, predictor, joint), work.tokens)?;
    let ema = matches!(method, Method::Train { ema: true });
    let optimizer = OptimizerConfig {
        kind: OptimizerKind::Lamb,
        weight_decay: WEIGHT_DECAY,
        betas: [0.9, 0.999],
        eps: 1e-9,
        clip_norm: 1.0,
        ema: if ema { EMA_DECAY } else { 0.0 },
        ema_warmup: false,
        ..OptimizerConfig::new(LEARNING_RATE)
    };
    let width = model.config().input.width();
    let rows = noise(501, work.batch * work.rows * width, 3f32.sqrt());
    let sequence = |b| random_labels(510 + b as u64, work.labels, work.tokens);
    Ok(Box::new(TrainingWorkload {
        work: *work,
        has_ema: ema,
        learner: Learner::new(model, &optimizer)?,
        rows: Tensor::from_vec(rows, (work.batch, work.rows, width), &Device::Cpu)?,
        lengths: vec![work.rows; work.batch],
        labels: (0..work.batch).map(sequence).collect(),
        step: 0,
        loss: 0.0,
        times: Vec::new(),
    }))
}

impl TrainingWorkload {
    fn batch(&self) -> Batch {
        Batch::new(self.rows.clone(), self.lengths.clone(), self.labels.clone())
    }

    /// Returns the dropout state, which is the same in every step.
    fn pass(&self) -> TrainingPass {
        TrainingPass::new(0, 0, &self.batch().indices)
    }

    /// Measures one forward pass of encoder, predictor and whole model in milliseconds.
    fn measure_forward(&self) -> Result<[f64; 3]> {
        let model = self.learner.model();
        let sessions = LossSessions::new(model.config())?;
        let mut pass = self.pass();
        let start = Instant::now();
        let encoded = model.encoder().forward(&self.rows, &self.lengths, Some(&mut pass))?;
        let encoder = milliseconds(start.elapsed());
        drop(encoded);
        let start = Instant::now();
        let predicted = model
            .predictor()
            .map(|predictor| predictor.forward(&self.labels, Some(&mut pass)))
            .transpose()?;
        let predictor = milliseconds(start.elapsed());
        drop(predicted);
        let (batch, mut pass) = (self.batch(), self.pass());
        let start = Instant::now();
        let losses = model.losses(&sessions, batch.labeled(), self.work.batch, self.step, Some(&mut pass))?;
        let model = milliseconds(start.elapsed());
        drop(losses);
        Ok([encoder, predictor, model])
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Workload for TrainingWorkload {
    fn shape(&self) -> CaseShape {
        self.work.shape()
    }

    fn result_bytes(&self) -> u64 {
        0
    }

    fn operations(&self) -> Option<u64> {
        Some(self.work.operations())
    }

    /// Computes gradients and applies the optimizer, as in training.
    fn step(&mut self) -> Result<NamedGradients> {
        let position = StepPosition { step: self.step, epoch: 0, steps_per_epoch: 1 << 20, progress: 0.0 };
        let start = Instant::now();
        let (gradients, tally) =
            self.learner.gradients(&mut std::iter::once(Ok(self.batch())), self.work.batch, &position)?;
        let gradient_time = start.elapsed();
        self.learner.apply(&gradients, &position)?;
        let optimizer_time = start.elapsed() - gradient_time;
        self.times.push(StepTimes { gradients: gradient_time, optimizer: optimizer_time });
        (self.step, self.loss) = (self.step + 1, tally.loss);
        Ok(Vec::new())
    }

    /// Fails unless the loss is finite and positive and weights are finite.
    fn check(&mut self) -> Result<()> {
        let Self { loss, .. } = *self;
        match loss.is_finite() && loss > 0.0 && self.learner.model().parameters().are_finite()? {
            true => Ok(()),
            false => {
                let (argument, expected) = ("loss", "a finite number above 0, and finite weights");
                Err(Error::Argument { argument, expected, found: loss.to_string() })
            }
        }
    }

    /// The first steps allocate buffers.
    fn warm_up(&self) -> usize {
        2
    }

    fn training_report(&mut self) -> Result<Option<TrainingReport>> {
        let resident_bytes = resident_peak();
        let timed_steps = &self.times[self.warm_up().min(self.times.len())..];
        let median_of = |part: fn(&StepTimes) -> Duration| {
            median(&timed_steps.iter().map(|times| milliseconds(part(times))).collect::<Vec<_>>())
                .unwrap_or_default()
        };
        let (gradients, optimizer) = (median_of(|times| times.gradients), median_of(|times| times.optimizer));
        let [encoder, predictor, forward] = self.measure_forward()?;
        let parameters = self.learner.model().parameters().count();
        Ok(Some(TrainingReport {
            utterances: self.work.batch,
            parameters,
            parts: PartTimes {
                encoder,
                predictor,
                // Not measured separately: joint network and loss are the rest of the forward pass,
                // and the backward pass is the rest of the gradients.
                loss: (forward - encoder - predictor).max(0.0),
                backward: (gradients - forward).max(0.0),
                optimizer,
            },
            resident_bytes,
            recurrent_bytes: self.work.recurrent_bytes(),
            optimizer_bytes: TrainWork::optimizer_bytes(parameters, self.has_ema),
            cached_read_rate: read_rate(self.work.largest_recurrent()),
            memory_read_rate: read_rate(STREAM_VALUES),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_timed_by_part() {
        let work = TrainWork { batch: 2, rows: 9, labels: 3, tokens: 7, widths: [8, 8, 8] };
        let mut workload = prepare(&work, &Method::Train { ema: true }).unwrap();
        for _ in 0..4 {
            workload.step().unwrap();
            workload.check().unwrap();
        }
        let report = workload.training_report().unwrap().unwrap();
        let PartTimes { encoder, predictor, optimizer, .. } = report.parts;
        assert!(encoder > 0.0 && predictor > 0.0 && optimizer > 0.0, "{report:?}");
        assert_eq!((report.utterances, report.optimizer_bytes), (2, 56 * report.parameters as u64));
        assert!(report.cached_read_rate > 0.0 && report.memory_read_rate > 0.0);
    }
}
