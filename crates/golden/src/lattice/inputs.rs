//! Inputs of a golden lattice case, converted to f32 or f64.
use std::collections::BTreeMap;

use lattice::weight_fn::Normalize;
use lattice::{
    AlignmentLattice, Embeddings, Frames, FullNGram, JointWeightFn, Labels, LocallyNormalized, TableWeightFn,
    WeightFn,
};
use rnnt_loss::Element;

use super::file::{AlignmentKind, LatticeFile, LatticeSettings, LocalNormalization, WeightSource};
use super::weight_fns::shared_rnn;
use crate::error::RunError;

/// Inputs of a lattice: context, alignment, frames, labels and the weight function.
pub(super) struct LatticeInputs<'a, F> {
    settings: &'a LatticeSettings,
    file: &'a LatticeFile,
    pub context: FullNGram,
    pub alignment: AlignmentLattice,
    frames: Vec<F>,
    frame_shape: &'a [usize],
    pub num_frames: Vec<usize>,
    labels: Vec<u32>,
    label_shape: &'a [usize],
    num_labels: Vec<usize>,
    /// Cotangents of the losses.
    pub cotangents: Vec<f64>,
    table: Option<Vec<F>>,
    parameters: BTreeMap<&'a str, Vec<F>>,
}

impl<'a, F: Element> LatticeInputs<'a, F> {
    pub(super) fn new(file: &'a LatticeFile, settings: &'a LatticeSettings) -> Result<Self, RunError> {
        let alignment = match (settings.align, settings.expansions) {
            (AlignmentKind::FrameDependent, _) => AlignmentLattice::FrameDependent,
            (AlignmentKind::FrameLabelDependent, Some(expansions)) => {
                AlignmentLattice::frame_label_dependent(expansions)?
            }
            (AlignmentKind::FrameLabelDependent, None) => {
                return Err(file.error("case.K", "a number", "none").into());
            }
        };
        let to_run_type = |values: &[f64]| values.iter().map(|&x| F::from_f64(x)).collect::<Vec<F>>();
        let parameters =
            file.with_prefix("in/params/").map(|(name, stored)| (name, to_run_type(&stored.values)));
        let table = match settings.weights {
            WeightSource::Table => Some(file.values("in/table")?),
            WeightSource::Emb | WeightSource::Rnn => None,
        };
        let frame_shape = &file.get("in/frames")?.shape;
        if frame_shape.len() < 2 {
            return Err(file.error("in/frames", "axes B.., T and F", &format!("{frame_shape:?}")).into());
        }
        let inputs = Self {
            settings,
            file,
            context: FullNGram::new(settings.vocabulary, settings.order)?,
            alignment,
            frames: file.values("in/frames")?,
            frame_shape,
            num_frames: file.integers("in/num_frames")?,
            labels: file.integers("in/labels")?.into_iter().map(|id| id as u32).collect(),
            label_shape: &file.get("in/labels")?.shape,
            num_labels: file.integers("in/num_labels")?,
            cotangents: file.get("in/loss_cotangent")?.values.clone(),
            table,
            parameters: parameters.collect(),
        };
        if inputs.cotangents.len() != inputs.frames()?.utterances() {
            let count = format!("{}", inputs.cotangents.len());
            return Err(file.error("in/loss_cotangent", "one value per utterance", &count).into());
        }
        Ok(inputs)
    }

    pub(super) fn frames(&self) -> Result<Frames<'_, F>, RunError> {
        Ok(Frames::new(&self.frames, self.frame_shape, &self.num_frames)?)
    }

    /// Returns all frames, padding included.
    pub(super) fn padded_frame_values(&self) -> &[F] {
        &self.frames
    }

    /// Returns the utterance of each frame, padding included.
    pub(super) fn utterance_of_frames(&self) -> Vec<u32> {
        let padded_frames = self.padded_frames();
        (0..self.num_frames.len() * padded_frames)
            .map(|frame_index| (frame_index / padded_frames) as u32)
            .collect()
    }

    /// Returns the padded number of frames, T.
    pub(super) fn padded_frames(&self) -> usize {
        self.frame_shape[self.frame_shape.len() - 2]
    }

    pub(super) fn labels(&self) -> Result<Labels<'_>, RunError> {
        Ok(Labels::new(&self.labels, self.label_shape, &self.num_labels)?)
    }

    fn parameter(&self, name: &str) -> Result<&[F], RunError> {
        let parameter = self.parameters.get(name).map(Vec::as_slice);
        Ok(parameter
            .ok_or_else(|| self.file.error(&format!("in/params/{name}"), "a tensor of this name", "none"))?)
    }

    /// Returns the weight function of the arcs.
    pub(super) fn weight_fn(&self) -> Result<Box<dyn WeightFn<F> + '_>, RunError> {
        if let Some(table) = &self.table {
            return Ok(Box::new(TableWeightFn::new(table, &self.file.get("in/table")?.shape)?));
        }
        let joint = self.joint()?;
        Ok(match self.settings.local {
            None => Box::new(joint),
            Some(LocalNormalization::Hat) => Box::new(LocallyNormalized::new(joint, Normalize::Hat)),
            Some(LocalNormalization::LogSoftmax) => {
                Box::new(LocallyNormalized::new(joint, Normalize::LogSoftmax))
            }
        })
    }

    /// Returns the joint network without local normalization.
    pub(super) fn joint(&self) -> Result<JointWeightFn<'_, F>, RunError> {
        let weight = |name: &str| {
            let prefix = if self.settings.local.is_some() { "weight_fn/weight_fn" } else { "weight_fn" };
            self.parameter(&format!("{prefix}/{name}"))
        };
        let context_parameter = |name: &str| self.parameter(&format!("weight_fn_cacher/{name}"));
        let LatticeSettings { vocabulary, order, .. } = *self.settings;
        let embeddings = match self.settings.weights {
            WeightSource::Rnn => Embeddings::Rnn(shared_rnn(vocabulary, order, context_parameter)?),
            WeightSource::Emb | WeightSource::Table => {
                Embeddings::Table(context_parameter("context_embeddings")?)
            }
        };
        Ok(JointWeightFn {
            embeddings,
            states: lattice::Context::states(&self.context),
            vocabulary: self.settings.vocabulary,
            project_context: weight("project_context_embeddings/kernel")?,
            project_frame: weight("project_frame/kernel")?,
            joint_bias: weight("joint_bias")?,
            blank_kernel: weight("Dense_0/kernel")?,
            blank_bias: weight("Dense_0/bias")?,
            label_kernel: weight("Dense_1/kernel")?,
            label_bias: weight("Dense_1/bias")?,
        })
    }
}
