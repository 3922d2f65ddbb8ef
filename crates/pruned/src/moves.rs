//! What a topology means for a lattice of which bands are kept.
use rnnt_dp::{Arc, Part, Topology};

use crate::{Error, Result};

/// The moves of blank and label that the first pass knows: of the blank to `(t+1, u)`, of the label to `(t, u+1)` or `(t+1, u+1)`,
/// perhaps with the blank of its new context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Frames that a label moves on: 0 or 1.
    frames: usize,
    /// Whether a label is followed by the blank of its own frame: `e(label at (t,u)) += e(blank at (t,u+1))`.
    pub forced: bool,
}

impl Moves {
    /// Fails for any other topology.
    pub fn new(topology: &Topology) -> Result<Self> {
        let part = |column, labels| Part { column, labels };
        let blank = Arc { frames: 1, labels: 0, may_end: true };
        let known = || {
            let [first, label] = topology.arcs() else { return None };
            let own = topology.columns() == 2 && *first == blank && topology.parts(0) == [part(0, 0)];
            let forced = match topology.parts(1) {
                [own] if *own == part(1, 0) => false,
                [own, blank] if [*own, *blank] == [part(1, 0), part(0, 1)] => true,
                _ => return None,
            };
            let fits = own && label.labels == 1 && label.frames <= 1 && label.may_end == (label.frames == 1);
            fits.then_some(Self { frames: label.frames, forced })
        };
        known().ok_or_else(|| Error::Topology { found: Box::new(topology.clone()) })
    }

    /// Positions that a band must have for a path to go on: those that a move reads or lands on in its own frame.
    pub fn needed(self) -> usize {
        1 + usize::from(self.frames == 0 || self.forced)
    }

    /// How many positions the band of a frame may begin behind that of the frame before.
    pub fn step(self, width: usize) -> usize {
        if self.frames == 0 { width.max(2) - 1 } else { 1 }
    }

    /// The width of bands through which all labels can be emitted.
    pub fn fitting(self, frames: usize, labels: usize) -> usize {
        if self.frames == 0 { labels.div_ceil(frames) + 1 } else { 0 }
    }
}
