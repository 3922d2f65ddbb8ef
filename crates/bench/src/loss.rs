//! Our loss as the subject of a measurement.
use rnnt_loss::{Head, Layout, MemoryBudget, MemoryPlan, Options, Precision, ProjectedLoss, Workspace};

use super::answer::{Shape, SkipReport};
use super::case::Budget;
use super::error::Result;
use super::gradients::{Gradients, Values};
use super::inputs::Inputs;
use super::subject::Subject;

/// [`rnnt_loss::projected_loss`] on a batch, with buffers that stay, as in training.
pub struct Ours {
    inputs: Inputs,
    options: Options,
    workspace: Workspace<f32>,
    /// Sites of the last step whose gradients were formed.
    counted: Option<usize>,
}

impl From<Budget> for MemoryBudget {
    fn from(budget: Budget) -> Self {
        match budget {
            Budget::Recompute => Self::recompute(),
            Budget::Unlimited => Self::unlimited(),
            Budget::Bytes(bytes) => Self::bytes(bytes),
        }
    }
}

/// What a case asks of the loss.
pub fn options(budget: Budget, skip: f64, bf16: bool) -> Options {
    let precision = if bf16 { Precision::Bf16 } else { Precision::Full };
    Options { budget: budget.into(), precision, skip, ..Options::default() }
}

impl Ours {
    /// Takes the batch.
    ///
    /// # Errors
    /// Options that the loss refuses.
    pub fn new(inputs: Inputs, budget: Budget, skip: f64, bf16: bool) -> Result<Self> {
        let options = options(budget, skip, bf16);
        Ok(Self { inputs, workspace: Workspace::new(&options)?, options, counted: None })
    }

    /// Loss and gradients.
    ///
    /// # Errors
    /// What the loss refuses.
    pub fn loss(&mut self) -> Result<ProjectedLoss<f32>> {
        loss(&self.inputs, &mut self.workspace)
    }
}

fn loss(inputs: &Inputs, workspace: &mut Workspace<f32>) -> Result<ProjectedLoss<f32>> {
    let Inputs { frames, labels, weight, bias, targets, sizes } = inputs;
    let layout = Layout::Padded { frames: sizes.frames, positions: sizes.labels + 1 };
    let head = Head::new(weight, Some(bias), sizes.hidden).map_err(rnnt_loss::Error::from)?;
    let weights = vec![1.0; sizes.batch];
    Ok(workspace.projected_loss(frames, labels, &head, layout, targets, &weights)?)
}

/// Those of rows and head, by name.
pub fn gradients(loss: ProjectedLoss<f32>) -> Gradients {
    let ProjectedLoss { frames, labels, weight, bias, .. } = loss;
    let gradients = [("frames", frames), ("labels", labels), ("weight", weight), ("bias", bias)];
    gradients.into_iter().map(|(name, values)| (name, Values::Single(values))).collect()
}

impl Subject for Ours {
    fn shape(&self) -> Shape {
        self.inputs.sizes.shape()
    }

    fn result_bytes(&self) -> u64 {
        self.inputs.sizes.bytes()
    }

    /// As planned, but backward only for the sites that were not left out; before the first step, as planned.
    fn operations(&self) -> Option<u64> {
        let sizes = self.inputs.sizes;
        let plan = MemoryPlan::new(&self.inputs.targets, sizes.hidden, sizes.classes, 4, &self.options);
        let forward = 2 * (sizes.sites * sizes.hidden * sizes.classes) as u64;
        let share = self.counted.map_or(1.0, |counted| counted as f64 / sizes.sites as f64);
        Some(forward + (share * (plan.operations - forward) as f64) as u64)
    }

    fn step(&mut self) -> Result<Gradients> {
        let out = self.loss()?;
        self.counted = Some(self.inputs.sizes.sites - out.skipped.sites - out.skipped.zeros);
        Ok(gradients(out))
    }

    fn skip_report(&mut self) -> Result<Option<SkipReport>> {
        if self.options.skip == 0.0 {
            return Ok(None);
        }
        let skipping = self.loss()?;
        let exact = Options { skip: 0.0, ..self.options.clone() };
        let exact = loss(&self.inputs, &mut Workspace::new(&exact)?)?;
        let differences = |a: &[f32], b: &[f32]| -> Vec<f64> {
            a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).collect()
        };
        let largest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let bias = differences(&skipping.bias, &exact.bias).iter().sum();
        let weight = differences(&skipping.weight, &exact.weight);
        let weight = weight.chunks_exact(self.inputs.sizes.hidden).map(largest).sum();
        let rows = differences(&skipping.frames, &exact.frames);
        let inputs = largest(&rows).max(largest(&differences(&skipping.labels, &exact.labels)));
        let skipped = skipping.skipped;
        Ok(Some(SkipReport {
            sites: skipped.sites,
            mass: skipped.mass,
            bounds: [skipped.bias, skipped.weight, skipped.inputs],
            errors: [bias, weight, inputs],
        }))
    }
}
