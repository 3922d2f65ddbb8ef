//! What a lattice case is given, in the type of a run.
use std::collections::BTreeMap;

use lattice::weight_fn::Normalize;
use lattice::{
    AlignmentLattice, Embeddings, Frames, FullNGram, JointWeightFn, Labels, LocallyNormalized, TableWeightFn,
    WeightFn,
};
use rnnt_loss::Element;

use super::file::{Align, File, LatticeSettings, Local, WeightsFrom};
use super::weight_fns::shared_rnn;
use crate::error::Stop;

pub struct LatticeInputs<'a, F> {
    settings: &'a LatticeSettings,
    file: &'a File,
    pub context: FullNGram,
    pub alignment: AlignmentLattice,
    frames: Vec<F>,
    frame_shape: &'a [usize],
    pub num_frames: Vec<usize>,
    labels: Vec<u32>,
    label_shape: &'a [usize],
    num_labels: Vec<usize>,
    /// g
    pub cotangents: Vec<f64>,
    table: Option<Vec<F>>,
    parameters: BTreeMap<&'a str, Vec<F>>,
}

impl<'a, F: Element> LatticeInputs<'a, F> {
    pub fn new(file: &'a File, settings: &'a LatticeSettings) -> Result<Self, Stop> {
        let alignment = match (settings.align, settings.expansions) {
            (Align::FrameDependent, _) => AlignmentLattice::FrameDependent,
            (Align::FrameLabelDependent, Some(expansions)) => {
                AlignmentLattice::frame_label_dependent(expansions)?
            }
            (Align::FrameLabelDependent, None) => {
                return Err(file.wrong("case.K", "a number", "none").into());
            }
        };
        let typed = |values: &[f64]| values.iter().map(|&x| F::from_f64(x)).collect::<Vec<F>>();
        let parameters = file.under("in/params/").map(|(name, stored)| (name, typed(&stored.values)));
        let table = match settings.weights {
            WeightsFrom::Table => Some(file.values("in/table")?),
            WeightsFrom::Emb | WeightsFrom::Rnn => None,
        };
        let frame_shape = &file.get("in/frames")?.shape;
        if frame_shape.len() < 2 {
            return Err(file.wrong("in/frames", "axes B.., T and F", &format!("{frame_shape:?}")).into());
        }
        let inputs = Self {
            settings,
            file,
            context: FullNGram::new(settings.vocabulary, settings.order)?,
            alignment,
            frames: file.values("in/frames")?,
            frame_shape,
            num_frames: file.whole("in/num_frames")?,
            labels: file.whole("in/labels")?.into_iter().map(|id| id as u32).collect(),
            label_shape: &file.get("in/labels")?.shape,
            num_labels: file.whole("in/num_labels")?,
            cotangents: file.get("in/loss_cotangent")?.values.clone(),
            table,
            parameters: parameters.collect(),
        };
        if inputs.cotangents.len() != inputs.frames()?.utterances() {
            let found = format!("{}", inputs.cotangents.len());
            return Err(file.wrong("in/loss_cotangent", "one for each utterance", &found).into());
        }
        Ok(inputs)
    }

    pub fn frames(&self) -> Result<Frames<'_, F>, Stop> {
        Ok(Frames::new(&self.frames, self.frame_shape, &self.num_frames)?)
    }

    /// The frames as if none were padding.
    pub fn rows(&self) -> &[F] {
        &self.frames
    }

    /// Utterance of each of them.
    pub fn utterances(&self) -> Vec<u32> {
        let padded = self.padded();
        (0..self.num_frames.len() * padded).map(|row| (row / padded) as u32).collect()
    }

    /// T
    pub fn padded(&self) -> usize {
        self.frame_shape[self.frame_shape.len() - 2]
    }

    pub fn labels(&self) -> Result<Labels<'_>, Stop> {
        Ok(Labels::new(&self.labels, self.label_shape, &self.num_labels)?)
    }

    fn parameter(&self, name: &str) -> Result<&[F], Stop> {
        let found = self.parameters.get(name).map(Vec::as_slice);
        Ok(found
            .ok_or_else(|| self.file.wrong(&format!("in/params/{name}"), "a tensor of this name", "none"))?)
    }

    /// The arc weights.
    pub fn weight_fn(&self) -> Result<Box<dyn WeightFn<F> + '_>, Stop> {
        if let Some(table) = &self.table {
            return Ok(Box::new(TableWeightFn::new(table, &self.file.get("in/table")?.shape)?));
        }
        let joint = self.joint()?;
        Ok(match self.settings.local {
            None => Box::new(joint),
            Some(Local::Hat) => Box::new(LocallyNormalized::new(joint, Normalize::Hat)),
            Some(Local::LogSoftmax) => Box::new(LocallyNormalized::new(joint, Normalize::LogSoftmax)),
        })
    }

    /// The joint network, before it is normalised.
    pub fn joint(&self) -> Result<JointWeightFn<'_, F>, Stop> {
        let of = |name: &str| {
            let outer = if self.settings.local.is_some() { "weight_fn/weight_fn" } else { "weight_fn" };
            self.parameter(&format!("{outer}/{name}"))
        };
        let cacher = |name: &str| self.parameter(&format!("weight_fn_cacher/{name}"));
        let sizes = (self.settings.vocabulary, self.settings.order);
        let embeddings = match self.settings.weights {
            WeightsFrom::Rnn => Embeddings::Rnn(shared_rnn(sizes, cacher)?),
            WeightsFrom::Emb | WeightsFrom::Table => Embeddings::Table(cacher("context_embeddings")?),
        };
        Ok(JointWeightFn {
            embeddings,
            states: lattice::Context::states(&self.context),
            vocabulary: self.settings.vocabulary,
            project_context: of("project_context_embeddings/kernel")?,
            project_frame: of("project_frame/kernel")?,
            joint_bias: of("joint_bias")?,
            blank: of("Dense_0/kernel")?,
            blank_bias: of("Dense_0/bias")?,
            lexical: of("Dense_1/kernel")?,
            lexical_bias: of("Dense_1/bias")?,
        })
    }
}
