//! Alignment lattices: how many labels a frame may emit.
use crate::{Error, Result};

/// One frame as an acyclic automaton over blank and labels; the lattice of T frames chains T of them.
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
    /// Each frame emits at most so many labels, and then a blank ([`AlignmentLattice::frame_label_dependent`]).
    #[non_exhaustive]
    FrameLabelDependent {
        /// K
        expansions: usize,
    },
}

/// Where an arc of an alignment leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArcEnd {
    /// The frame goes on in another state.
    State(usize),
    /// The frame is over.
    Frame,
}

impl AlignmentLattice {
    /// At most so many labels a frame, and then a blank.
    ///
    /// # Errors
    /// More than 2^16.
    pub fn frame_label_dependent(expansions: usize) -> Result<Self> {
        if expansions > 1 << 16 {
            return Err(Error::shape("expansions", "at most 65536 labels a frame", expansions));
        }
        Ok(Self::FrameLabelDependent { expansions })
    }

    /// A
    pub fn num_states(&self) -> usize {
        self.expansions().map_or(1, |labels| labels + 1)
    }

    /// The state that each frame begins with.
    pub fn start(&self) -> usize {
        0
    }

    /// K; none where a label ends the frame.
    pub fn expansions(&self) -> Option<usize> {
        match *self {
            Self::FrameDependent => None,
            Self::FrameLabelDependent { expansions } => Some(expansions),
        }
    }

    /// Where the blank leads from a state.
    pub fn blank_next(&self, _state: usize) -> ArcEnd {
        ArcEnd::Frame
    }

    /// Where a label leads from a state, if there is such an arc.
    pub fn lexical_next(&self, state: usize) -> Option<ArcEnd> {
        match *self {
            Self::FrameDependent => Some(ArcEnd::Frame),
            Self::FrameLabelDependent { expansions } => {
                (state < expansions).then_some(ArcEnd::State(state + 1))
            }
        }
    }

    /// States in an order that all arcs inside of a frame follow.
    pub fn topological_visit(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.num_states()
    }

    /// Whether so many labels fit into so many frames.
    pub fn holds(&self, frames: usize, labels: usize) -> bool {
        labels <= frames.saturating_mul(self.expansions().unwrap_or(1))
    }
}
