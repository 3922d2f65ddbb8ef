//! `[loss]`, kind `gnat`: a recognition lattice.
use lattice::{Alignment, FullNGram, Normalize};
use serde::{Deserialize, Serialize};

use super::{
    LossOptions, PrecisionKind, Terms,
    check::{MANY, WIDEST, expect, whole},
};
use crate::{Error, ModelConfig, Result, recipe::ActivationKind};

/// What a lattice is made of; its joint network is as wide as `joint.width` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GnatConfig {
    /// Labels that a context state remembers, n; there are `Σ V^i` states for i = 0 to n.
    pub context: usize,
    /// How many labels a frame may emit.
    #[serde(default)]
    pub alignment: AlignmentKind,
    /// What the weights of paths are divided by.
    #[serde(default)]
    pub normalise: Normalise,
    /// Width of the embedding of a context state.
    pub embedding: usize,
}

/// How many labels an encoder frame may emit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AlignmentKind {
    /// A blank or exactly one label.
    #[default]
    #[serde(rename = "frame-dependent")]
    FrameDependent,
    /// At most so many labels, and then a blank.
    #[serde(rename = "labels_per_frame")]
    LabelsPerFrame(usize),
}

/// What makes probabilities of the weights of paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Normalise {
    /// The sum over all paths.
    #[default]
    Global,
    /// At each frame and context state: blank or not first, and then a label.
    Hat,
    /// At each frame and context state: one softmax over blank and labels.
    LogSoftmax,
}

impl Normalise {
    /// For the lattice.
    pub fn normalize(self) -> Option<Normalize> {
        match self {
            Self::Global => None,
            Self::Hat => Some(Normalize::Hat),
            Self::LogSoftmax => Some(Normalize::LogSoftmax),
        }
    }
}

impl GnatConfig {
    /// The automaton of the last labels.
    ///
    /// # Errors
    /// [`Error::RecipeValue`] for more states than can be numbered.
    pub fn ngram(&self, labels: usize) -> Result<FullNGram> {
        FullNGram::new(labels, self.context).map_err(|error| match error {
            lattice::Error::States { limit, .. } => {
                let states: f64 = (0..=self.context as i32).map(|i| (labels as f64).powi(i)).sum();
                let found = format!("{}, which makes {states:.1e} of {labels} labels", self.context);
                let expected = format!("a context of at most {limit} states");
                Error::RecipeValue { key: "loss.context".into(), expected, found }
            }
            error => error.into(),
        })
    }

    /// The alignment lattice.
    ///
    /// # Errors
    /// More labels a frame than a lattice has states for; [`ModelConfig::check`] finds them first.
    pub fn alignment(&self) -> Result<Alignment> {
        Ok(match self.alignment {
            AlignmentKind::FrameDependent => Alignment::FrameDependent,
            AlignmentKind::LabelsPerFrame(labels) => Alignment::frame_label_dependent(labels)?,
        })
    }

    /// Checks every value, and that nothing is asked for that belongs to other losses.
    pub(crate) fn check(&self, model: &ModelConfig) -> Result<()> {
        let most = format!("0 to {MANY}");
        expect("loss.context", &most, self.context <= MANY, self.context)?;
        whole("loss.embedding", self.embedding, WIDEST)?;
        if let AlignmentKind::LabelsPerFrame(labels) = self.alignment {
            whole("loss.alignment.labels_per_frame", labels, MANY)?;
        }
        let without =
            |key: &str, fine: bool, found: String| expect(key, "none with loss.kind = \"gnat\"", fine, found);
        let found = if model.predictor.is_some() { "a predictor" } else { "none" };
        without("predictor", model.predictor.is_none(), found.into())?;
        let LossOptions { skip, clamp, activation, .. } = model.loss.options;
        let Terms { topology, precision, fastemit, delay_penalty, label_smoothing, z_loss, .. } =
            &model.terms;
        without("joint.dropout", model.joint.dropout == 0.0, model.joint.dropout.to_string())?;
        without("loss.skip", skip == 0.0, skip.to_string())?;
        without("loss.clamp", clamp.is_none(), format!("{clamp:?}"))?;
        without("loss.activation", activation == ActivationKind::Tanh, "another than tanh".into())?;
        without("training.topology", *topology == rnnt_loss::Topology::rnnt(), topology.to_string())?;
        without("training.precision", *precision == PrecisionKind::Full, "bf16".into())?;
        without("training.fastemit", *fastemit == 0.0, fastemit.to_string())?;
        without("training.delay_penalty", *delay_penalty == 0.0, delay_penalty.to_string())?;
        without("training.label_smoothing", *label_smoothing == 0.0, label_smoothing.to_string())?;
        without("training.z_loss", *z_loss == 0.0, z_loss.to_string())
    }
}
