//! Positions of frames and alignment states, and states of the product lattice.
use crate::AlignmentLattice;

/// A state of a lattice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId {
    /// Frame t.
    pub frame: usize,
    /// Alignment state a.
    pub alignment: usize,
    /// Context state p.
    pub context: usize,
}

/// The sequence of frames and alignment states, at positions `t A + a`; arcs lead to later ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Positions {
    pub frames: usize,
    pub alignment: AlignmentLattice,
}

impl Positions {
    /// A, the number of positions of a frame.
    pub(crate) fn per_frame(&self) -> usize {
        self.alignment.num_states()
    }

    /// The position of all final states.
    pub(crate) fn end(&self) -> usize {
        self.frames * self.per_frame()
    }

    /// The frame of the arcs from a position.
    pub(crate) fn frame(&self, position: usize) -> usize {
        position / self.per_frame()
    }

    /// The position after a blank.
    pub(crate) fn after_blank(&self, position: usize) -> usize {
        self.end_of_arc(position, self.alignment.blank_next(position % self.per_frame()))
    }

    /// The position after a label; none without a label arc.
    pub(crate) fn after_label(&self, position: usize) -> Option<usize> {
        self.alignment.label_next(position % self.per_frame()).map(|next| self.end_of_arc(position, next))
    }

    /// The lattice state of a position and context state.
    pub(crate) fn state_id(&self, position: usize, context: usize) -> StateId {
        StateId { frame: position / self.per_frame(), alignment: position % self.per_frame(), context }
    }

    /// The position of the end of an arc.
    fn end_of_arc(&self, position: usize, end: crate::ArcEnd) -> usize {
        let frame = position / self.per_frame();
        match end {
            crate::ArcEnd::Frame => (frame + 1) * self.per_frame(),
            crate::ArcEnd::State(state) => frame * self.per_frame() + state,
        }
    }
}
