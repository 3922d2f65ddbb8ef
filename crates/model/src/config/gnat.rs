//! `[loss]`, kind `gnat`: a recognition lattice.
use lattice::{AlignmentLattice, FullNGram, Normalize};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

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
    pub normalise: LatticeNormalization,
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
pub enum LatticeNormalization {
    /// The sum over all paths.
    #[default]
    Global,
    /// At each frame and context state: blank or not first, and then a label.
    Hat,
    /// At each frame and context state: one softmax over blank and labels.
    LogSoftmax,
}

impl LatticeNormalization {
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
    /// More labels a frame than a lattice has states for;
    /// [`ModelConfig::check`](crate::ModelConfig::check) finds them first.
    pub fn alignment(&self) -> Result<AlignmentLattice> {
        Ok(match self.alignment {
            AlignmentKind::FrameDependent => AlignmentLattice::FrameDependent,
            AlignmentKind::LabelsPerFrame(labels) => AlignmentLattice::frame_label_dependent(labels)?,
        })
    }
}
