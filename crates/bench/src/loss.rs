//! Benchmark of the transducer loss: one `Session`, forward and backward.
use rnnt_loss::{Head, JointInputs, Layout, LossOutput, MemoryPlan, Options, Precision, Session};

use super::case::Budget;
use super::error::Result;
use super::gradients::{GradientValues, NamedGradients};
use super::inputs::LossInputs;
use super::workload::Workload;
use super::workload::{CaseShape, SkipReport};

/// A [`Session`] on a batch; buffers are reused, as in training.
pub(crate) struct SessionWorkload {
    inputs: LossInputs,
    session: Session<f32>,
    /// Sites whose backward pass the last step computed.
    active_sites: Option<usize>,
}

impl Budget {
    /// Returns the limit in bytes, and true if scores are kept.
    pub(crate) fn limit(self) -> (usize, bool) {
        match self {
            Budget::Recompute => (usize::MAX, false),
            Budget::Unlimited => (usize::MAX, true),
            Budget::Bytes(bytes) => (bytes, true),
        }
    }
}

/// Returns the options of a loss.
pub(crate) fn session_options(budget: Budget, skip: f64, bf16: bool) -> Options {
    let precision = if bf16 { Precision::Bf16 } else { Precision::Full };
    let (budget, keep_scores) = budget.limit();
    Options { budget, keep_scores, precision, skip, ..Options::default() }
}

impl SessionWorkload {
    /// Creates a session for a batch.
    ///
    /// # Errors
    /// If the loss does not support the options.
    pub(crate) fn new(inputs: LossInputs, budget: Budget, skip: f64, bf16: bool) -> Result<Self> {
        Ok(Self { inputs, session: Session::new(&session_options(budget, skip, bf16))?, active_sites: None })
    }

    /// Computes loss and gradients.
    ///
    /// # Errors
    /// Errors of the loss.
    pub(crate) fn loss(&mut self) -> Result<LossOutput<f32>> {
        sum_loss(&self.inputs, &mut self.session)
    }
}

/// Computes the sum of the losses and its gradients.
fn sum_loss(inputs: &LossInputs, session: &mut Session<f32>) -> Result<LossOutput<f32>> {
    Ok(session.sum(joint_inputs(inputs)?, &inputs.targets, &vec![1.0; inputs.sizes.batch])?)
}

/// Returns the joint network of a batch.
///
/// # Errors
/// If shapes do not fit.
pub(crate) fn joint_inputs(inputs: &LossInputs) -> Result<JointInputs<'_, f32>> {
    let LossInputs { frames, labels, weight, bias, sizes, .. } = inputs;
    let layout = Layout::Padded { frames: sizes.frames, positions: sizes.labels + 1 };
    let head = Head::new(weight, Some(bias), sizes.hidden).map_err(rnnt_loss::Error::from)?;
    Ok(JointInputs::new(frames, labels, head).with_layout(layout))
}

/// Returns the gradients of rows and head by name.
pub(crate) fn named_gradients(out: LossOutput<f32>) -> NamedGradients {
    let rnnt_loss::Gradients { encoded, predicted, head, .. } = out.gradients;
    let gradients =
        [("frames", encoded), ("labels", predicted), ("weight", head.weight), ("bias", head.bias)];
    gradients.into_iter().map(|(name, values)| (name, GradientValues::Single(values))).collect()
}

impl Workload for SessionWorkload {
    fn shape(&self) -> CaseShape {
        self.inputs.sizes.shape()
    }

    fn result_bytes(&self) -> u64 {
        self.inputs.sizes.bytes()
    }

    /// The planned operations; after a step, backward counts only sites that were not skipped.
    fn operations(&self) -> Option<u64> {
        let sizes = self.inputs.sizes;
        let options = self.session.options();
        let plan = MemoryPlan::new::<f32>(&self.inputs.targets, sizes.hidden, sizes.classes, options).ok()?;
        let forward = 2 * (sizes.sites * sizes.hidden * sizes.classes) as u64;
        let share = self.active_sites.map_or(1.0, |active| active as f64 / sizes.sites as f64);
        Some(forward + (share * (plan.operations - forward) as f64) as u64)
    }

    fn step(&mut self) -> Result<NamedGradients> {
        let out = self.loss()?;
        self.active_sites = Some(self.inputs.sizes.sites - out.skipped.sites - out.skipped.zero_sites);
        Ok(named_gradients(out))
    }

    fn skip_report(&mut self) -> Result<Option<SkipReport>> {
        if self.session.options().skip == 0.0 {
            return Ok(None);
        }
        let LossOutput { gradients: skipping, skipped, .. } = self.loss()?;
        let exact = Options { skip: 0.0, ..self.session.options().clone() };
        let exact = sum_loss(&self.inputs, &mut Session::new(&exact)?)?.gradients;
        let differences = |a: &[f32], b: &[f32]| -> Vec<f64> {
            a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).collect()
        };
        let largest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let bias = differences(&skipping.head.bias, &exact.head.bias).iter().sum();
        let weight = differences(&skipping.head.weight, &exact.head.weight);
        let weight = weight.chunks_exact(self.inputs.sizes.hidden).map(largest).sum();
        let rows = differences(&skipping.encoded, &exact.encoded);
        let inputs = largest(&rows).max(largest(&differences(&skipping.predicted, &exact.predicted)));
        Ok(Some(SkipReport {
            sites: skipped.sites,
            mass: skipped.mass,
            bounds: [skipped.bias_error, skipped.weight_error, skipped.input_error],
            errors: [bias, weight, inputs],
        }))
    }
}
