//! Baseline of the pruned loss: logits of retained sites in one candle tensor.
//!
//! A retained site is a lattice node that pruning keeps.
use candle_core::{DType, Device, Tensor, Var};
use oracle::dense::{head_logits, select_log_probs};
use pruned::{ScoreSource, first_pass};
use rnnt_dp::{Regularizers, Topology, candle::lattice_loss};
use rnnt_loss::{PassScales, Pruning, SimpleInputs, Targets};

use super::case::PrunedWork;
use super::error::Result;
use super::gradients::{GradientValues, NamedGradients};
use super::inputs::{BatchSizes, LossInputs};
use super::simple_joiner::{SimpleScores, first_pass_batch};
use super::workload::Workload;
use super::workload::{CaseShape, PruningReport};

/// Measured peak, in multiples of one f32 tensor `[retained, C + H]`.
///
/// See `docs/pruned.md`.
const PEAK_TENSORS: f64 = 8.0;

/// Joint network, head and log-softmax of retained sites in candle, with autograd.
///
/// First pass and lattice are those of this project, so that only the tensor `[retained, C]` is
/// compared.
pub(crate) struct PrunedDenseWorkload {
    work: PrunedWork,
    /// Slices for the first pass, which does not use candle.
    frame_rows: Vec<f32>,
    label_rows: Vec<f32>,
    simple: SimpleScores,
    targets: Targets,
    sizes: BatchSizes,
    variables: Variables,
    /// Retained sites of the last step.
    retained_sites: Option<usize>,
}

/// Differentiated inputs: rows of both networks, and the head.
struct Variables {
    frames: Var,
    labels: Var,
    weight: Var,
    bias: Var,
}

/// Predicts the peak bytes of a step, without inputs and gradients.
pub(crate) fn predicted_bytes(work: &PrunedWork) -> f64 {
    PEAK_TENSORS
        * size_of::<f32>() as f64
        * work.retained_sites() as f64
        * (work.loss.classes + work.loss.hidden) as f64
}

impl PrunedDenseWorkload {
    /// Copies a batch into candle tensors.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn new(work: PrunedWork, inputs: LossInputs, simple: SimpleScores) -> Result<Self> {
        let LossInputs { frames, labels, weight, bias, targets, sizes } = inputs;
        let BatchSizes { hidden, classes, .. } = sizes;
        let cpu = &Device::Cpu;
        let variables = Variables {
            frames: Var::from_slice(&frames, (frames.len() / hidden, hidden), cpu)?,
            labels: Var::from_slice(&labels, (labels.len() / hidden, hidden), cpu)?,
            weight: Var::from_vec(weight, (classes, hidden), cpu)?,
            bias: Var::from_vec(bias, classes, cpu)?,
        };
        let (frame_rows, label_rows) = (frames, labels);
        Ok(Self { work, frame_rows, label_rows, simple, targets, sizes, variables, retained_sites: None })
    }

    /// Runs both passes; returns the number of retained sites and the gradients.
    fn loss<S: ScoreSource<f32>>(&self, source: &S) -> Result<(usize, NamedGradients)> {
        let (targets, sizes, scales) = (&self.targets, &self.sizes, PassScales::default());
        let Pruning { s_range, lm_only_scale, am_only_scale, unigram } = self.work.pruning();
        let options = pruned::Options { lm_only_scale, am_only_scale, unigram, ..pruned::Options::default() };
        // First pass, and the sites that it retains.
        let first_output =
            first_pass(source, &first_pass_batch(targets, sizes.frames, sizes.labels)?, &options)?;
        let ranges = first_output.ranges(s_range)?;
        let bands = |b: usize| (0..targets.frames(b)).map(|t| ranges.band(b, t)).collect();
        let retained = targets.with_bands((0..targets.batch()).map(bands).collect())?;
        let lattices = retained.lattices().clone();
        // Second pass over the retained sites, and both backward passes.
        let losses =
            lattice_loss(&self.emissions(&retained)?, lattices, Topology::rnnt(), Regularizers::default())?;
        let gradients = (losses.sum_all()? * scales.pruned)?.backward()?;
        drop(losses);
        // These gradients are part of the measured step but are not compared.
        drop(first_output.backward(source, &vec![scales.simple; sizes.batch])?);
        let Variables { frames, labels, weight, bias } = &self.variables;
        let gradient = |variable: &Var| -> Result<GradientValues> {
            let missing = || candle_core::Error::Msg("dense loss: a variable has no gradient".into());
            Ok(GradientValues::Tensor(gradients.get(variable).cloned().ok_or_else(missing)?))
        };
        let variables = [("frames", frames), ("labels", labels), ("weight", weight), ("bias", bias)];
        let gradients = variables.into_iter().map(|(name, variable)| Ok((name, gradient(variable)?)));
        Ok((ranges.sites(), gradients.collect::<Result<_>>()?))
    }

    /// Computes the log-probabilities of blank and next label, `[retained, 2]`.
    fn emissions(&self, retained: &Targets) -> Result<Tensor> {
        let (mut frame_ids, mut label_ids, mut classes) = (Vec::new(), Vec::new(), Vec::new());
        for b in 0..retained.batch() {
            for site in retained.lattices().utterance_sites(b) {
                frame_ids.push((b * self.sizes.frames + site.frame) as u32);
                label_ids.push((b * (self.sizes.labels + 1) + site.label) as u32);
                // The label after the last one is not read.
                let next = retained.labels(b).get(site.label).copied();
                classes.extend([retained.blank(), next.unwrap_or(retained.blank())]);
            }
        }
        let (sites, cpu) = (frame_ids.len(), &Device::Cpu);
        let Variables { frames, labels, weight, bias } = &self.variables;
        let frames = frames.index_select(&Tensor::from_vec(frame_ids, sites, cpu)?, 0)?;
        let labels = labels.index_select(&Tensor::from_vec(label_ids, sites, cpu)?, 0)?;
        let logits = head_logits(&(frames + labels)?.tanh()?, weight, bias)?;
        let emissions = select_log_probs(&logits, &Tensor::from_vec(classes, (sites, 2), cpu)?)?;
        Ok(emissions.to_dtype(DType::F64)?)
    }
}

impl Workload for PrunedDenseWorkload {
    fn shape(&self) -> CaseShape {
        self.sizes.shape()
    }

    fn result_bytes(&self) -> u64 {
        self.sizes.bytes() + self.work.first_pass_bytes()
    }

    /// Counts 6 H C per retained site: three matrix products of 2 H C, one forward and two
    /// backward.
    fn operations(&self) -> Option<u64> {
        let BatchSizes { hidden, classes, .. } = self.sizes;
        let second_pass = 6 * self.work.retained_sites() as u64 * (hidden * classes) as u64;
        Some(self.work.first_pass_operations() + second_pass)
    }

    fn step(&mut self) -> Result<NamedGradients> {
        let source = self.simple.first_pass_inputs(&self.frame_rows, &self.label_rows, self.sizes.hidden)?;
        let (retained_sites, gradients) = match source {
            SimpleInputs::Matrices(source) => self.loss(&source)?,
            SimpleInputs::Heads(source) => self.loss(&source)?,
        };
        self.retained_sites = Some(retained_sites);
        Ok(gradients)
    }

    fn pruning_report(&self) -> Option<PruningReport> {
        Some(self.work.pruning_report(self.retained_sites?))
    }
}
