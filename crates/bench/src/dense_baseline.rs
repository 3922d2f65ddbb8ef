//! Dense baseline of the transducer loss: all logits in one candle tensor.
//!
//! Gradients are computed by autograd.
use candle_core::{Device, Tensor, Var};
use kernels::Activation;
use oracle::dense::{joint_logits, low_memory_transducer_loss};

use super::case::LossSizes;
use super::error::Result;
use super::gradients::{GradientValues, NamedGradients};
use super::inputs::{BatchSizes, LossInputs};
use super::workload::CaseShape;
use super::workload::Workload;

/// Peak memory, in tensors of the size of the logits, measured; see `docs/performance.md`.
const PEAK_TENSORS: f64 = 8.5;

/// Workload of [`oracle::dense`] on a batch.
pub(crate) struct DenseWorkload {
    frames: Var,
    labels: Var,
    weight: Var,
    bias: Var,
    lengths: Vec<usize>,
    targets: Vec<Vec<u32>>,
    blank: u32,
    sizes: BatchSizes,
}

/// Predicts the peak bytes of a step, without inputs and gradients.
pub(crate) fn predicted_bytes(work: &LossSizes) -> f64 {
    let LossSizes { batch, frames, labels, classes, .. } = *work;
    PEAK_TENSORS * size_of::<f32>() as f64 * (batch * frames) as f64 * ((labels + 1) * classes) as f64
}

impl DenseWorkload {
    /// Moves a batch into candle tensors.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn new(inputs: LossInputs) -> Result<Self> {
        let LossInputs { frames, labels, weight, bias, targets, sizes } = inputs;
        let BatchSizes { batch, frames: max_frames, labels: max_labels, hidden, classes, .. } = sizes;
        let cpu = &Device::Cpu;
        let utterances = 0..batch;
        Ok(Self {
            frames: Var::from_vec(frames, (batch, max_frames, hidden), cpu)?,
            labels: Var::from_vec(labels, (batch, max_labels + 1, hidden), cpu)?,
            weight: Var::from_vec(weight, (classes, hidden), cpu)?,
            bias: Var::from_vec(bias, classes, cpu)?,
            lengths: utterances.clone().map(|b| targets.frames(b)).collect(),
            targets: utterances.map(|b| targets.labels(b).to_vec()).collect(),
            blank: targets.blank(),
            sizes,
        })
    }
}

impl Workload for DenseWorkload {
    fn shape(&self) -> CaseShape {
        self.sizes.shape()
    }

    fn result_bytes(&self) -> u64 {
        self.sizes.bytes()
    }

    /// 6 H C per site including padding: one matrix product forward, two backward.
    fn operations(&self) -> Option<u64> {
        let BatchSizes { batch, frames, labels, hidden, classes, .. } = self.sizes;
        Some(6 * (batch * frames * (labels + 1)) as u64 * (hidden * classes) as u64)
    }

    fn step(&mut self) -> Result<NamedGradients> {
        let logits = joint_logits(&self.frames, &self.labels, &self.weight, &self.bias, Activation::Tanh)?;
        let loss =
            low_memory_transducer_loss(&logits, &self.lengths, &self.targets, self.blank)?.sum_all()?;
        // Only the loss keeps the graph alive.
        drop(logits);
        let gradients = loss.backward()?;
        let gradient = |variable: &Var| -> Result<Tensor> {
            let missing = || candle_core::Error::Msg("dense loss: a variable has no gradient".into());
            Ok(gradients.get(variable).cloned().ok_or_else(missing)?)
        };
        let variables = [
            ("frames", &self.frames),
            ("labels", &self.labels),
            ("weight", &self.weight),
            ("bias", &self.bias),
        ];
        variables
            .into_iter()
            .map(|(name, variable)| Ok((name, GradientValues::Tensor(gradient(variable)?))))
            .collect()
    }
}
