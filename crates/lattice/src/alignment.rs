//! Alignment lattices: how many labels a frame may emit.
//!
//! One of the three components of a recognition lattice, next to contexts and weight functions.
use crate::{Error, Result};

/// One frame as an acyclic automaton over blank and labels; T frames are a chain of T copies.
///
/// | | states A | blank | label |
/// |---|---|---|---|
/// | `FrameDependent` | 1 | ends the frame | ends the frame |
/// | `FrameLabelDependent` K | K + 1 | ends the frame | from state a to a + 1, none from K |
///
/// (LAST, arXiv 2304.13134, section 2.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlignmentLattice {
    /// Each frame emits a blank or exactly one label.
    FrameDependent,
    /// Each frame emits at most K labels, and then a blank.
    ///
    /// See [`AlignmentLattice::frame_label_dependent`].
    #[non_exhaustive]
    FrameLabelDependent {
        /// K, the largest number of labels of a frame.
        expansions: usize,
    },
}

/// Target of an arc of an alignment lattice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArcEnd {
    /// Another state of the same frame.
    State(usize),
    /// The next frame.
    Frame,
}

impl AlignmentLattice {
    /// A lattice with at most `expansions` labels before each blank.
    ///
    /// # Errors
    /// More than 2^16 labels per frame.
    pub fn frame_label_dependent(expansions: usize) -> Result<Self> {
        if expansions > 1 << 16 {
            return Err(Error::shape("expansions", "at most 65536 labels per frame", expansions));
        }
        Ok(Self::FrameLabelDependent { expansions })
    }

    /// A, the number of states of a frame.
    pub fn num_states(&self) -> usize {
        self.expansions().map_or(1, |labels| labels + 1)
    }

    /// The state in which each frame begins.
    pub fn start(&self) -> usize {
        0
    }

    /// K, the largest number of labels per frame; none if a label ends the frame.
    pub fn expansions(&self) -> Option<usize> {
        match *self {
            Self::FrameDependent => None,
            Self::FrameLabelDependent { expansions } => Some(expansions),
        }
    }

    /// Returns the target of the blank from a state.
    pub fn blank_next(&self, _state: usize) -> ArcEnd {
        ArcEnd::Frame
    }

    /// Returns the target of a label arc from a state, if any.
    pub fn label_next(&self, state: usize) -> Option<ArcEnd> {
        match *self {
            Self::FrameDependent => Some(ArcEnd::Frame),
            Self::FrameLabelDependent { expansions } => {
                (state < expansions).then_some(ArcEnd::State(state + 1))
            }
        }
    }

    /// Iterates over the states of a frame in topological order.
    pub fn topological_visit(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.num_states()
    }

    /// Returns true if `labels` labels fit into `frames` frames.
    pub fn has_path(&self, frames: usize, labels: usize) -> bool {
        labels <= frames.saturating_mul(self.expansions().unwrap_or(1))
    }
}
