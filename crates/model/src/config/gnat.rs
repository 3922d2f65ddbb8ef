//! Model configuration: `[loss]` with `kind = "gnat"`, a recognition lattice.
//!
//! A recognition lattice is an automaton of all label sequences; the weights of its paths are
//! normalized globally (GNAT) or for each frame and context state. V is the number of labels.
use lattice::{AlignmentLattice, FullNGram, Normalize};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The keys of a recognition lattice; `joint.width` is the width of its joint network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GnatConfig {
    /// Number n of labels in a context state; there are `Σ V^i` states for i = 0 to n.
    pub context: usize,
    /// Number of labels that a frame may emit.
    #[serde(default)]
    pub alignment: AlignmentKind,
    /// Normalization of the weights of paths.
    #[serde(default)]
    pub normalize: LatticeNormalization,
    /// Width of the embedding of a context state.
    pub embedding: usize,
}

/// The number of labels that an encoder frame may emit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AlignmentKind {
    /// One label or a blank.
    #[default]
    #[serde(rename = "frame-dependent")]
    FrameDependent,
    /// At most this number of labels, and then a blank.
    #[serde(rename = "labels_per_frame")]
    LabelsPerFrame(usize),
}

/// The normalization that makes probabilities of the weights of paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatticeNormalization {
    /// The sum over all paths.
    #[default]
    Global,
    /// Per frame and context state: a sigmoid for the blank, a softmax over the labels.
    Hat,
    /// Per frame and context state: one softmax over blank and labels.
    LogSoftmax,
}

impl LatticeNormalization {
    /// Returns the option of the lattice.
    pub fn normalize(self) -> Option<Normalize> {
        match self {
            Self::Global => None,
            Self::Hat => Some(Normalize::Hat),
            Self::LogSoftmax => Some(Normalize::LogSoftmax),
        }
    }
}

impl GnatConfig {
    /// Builds the context: an automaton of the last labels.
    ///
    /// # Errors
    /// [`Error::RecipeValue`] for more states than can be indexed.
    pub fn ngram(&self, labels: usize) -> Result<FullNGram> {
        FullNGram::new(labels, self.context).map_err(|error| match error {
            lattice::Error::States { limit, .. } => {
                let states: f64 = (0..=self.context as i32).map(|length| (labels as f64).powi(length)).sum();
                let description = format!("{}, or {states:.1e} states with {labels} labels", self.context);
                let expected = format!("a context with at most {limit} states");
                Error::RecipeValue { key: "loss.context".into(), expected, found: description }
            }
            error => error.into(),
        })
    }

    /// Builds the alignment lattice.
    ///
    /// # Errors
    /// More labels per frame than the lattice supports, which
    /// [`ModelConfig::check`](crate::ModelConfig::check) reports first.
    pub fn alignment(&self) -> Result<AlignmentLattice> {
        Ok(match self.alignment {
            AlignmentKind::FrameDependent => AlignmentLattice::FrameDependent,
            AlignmentKind::LabelsPerFrame(labels) => AlignmentLattice::frame_label_dependent(labels)?,
        })
    }
}
