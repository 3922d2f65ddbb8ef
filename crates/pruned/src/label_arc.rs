//! Topologies that the pruned first pass supports, described by their label arc.
//!
//! Supported are the regular, modified and constrained topologies: one blank and one label arc. The
//! blank arc is the same in all of them. t: frame; u: label position.
use rnnt_dp::{EmissionTerm, Topology, TopologyArc};

use crate::{Error, Result};

/// The label arc of a supported topology.
///
/// From `(t, u)`, the blank leads to `(t+1, u)`, the label to `(t, u+1)` (regular) or `(t+1, u+1)`
/// (modified; constrained, where the label is followed by the blank of its frame).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LabelArc {
    /// Frames that a label advances: 0 or 1.
    label_frames: usize,
    /// Whether the label arc includes a blank in the same frame.
    ///
    /// The blank must follow the label. The log-probability of the arc is
    /// `e(label at (t,u)) + e(blank at (t,u+1))`.
    pub forces_blank: bool,
}

impl LabelArc {
    /// Fails for unsupported topologies.
    pub(crate) fn new(topology: &Topology) -> Result<Self> {
        let term = |column, label_offset| EmissionTerm { column, label_offset };
        let expected_blank = TopologyArc { frames: 1, labels: 0, may_end: true };
        let describe = || {
            let [blank_arc, label_arc] = topology.arcs() else { return None };
            let has_standard_blank = topology.num_columns() == 2
                && *blank_arc == expected_blank
                && topology.emission_terms(0) == [term(0, 0)];
            let forces_blank = match topology.emission_terms(1) {
                [label] if *label == term(1, 0) => false,
                [label, blank] if [*label, *blank] == [term(1, 0), term(0, 1)] => true,
                _ => return None,
            };
            let is_supported = has_standard_blank
                && label_arc.labels == 1
                && label_arc.frames <= 1
                && label_arc.may_end == (label_arc.frames == 1);
            is_supported.then_some(Self { label_frames: label_arc.frames, forces_blank })
        };
        describe().ok_or_else(|| Error::Topology { found: Box::new(topology.clone()) })
    }

    /// Returns the minimum width of a band.
    ///
    /// It is 2 if arcs use two label positions of the same frame: a label that stays in its frame,
    /// or the blank after a label.
    pub(crate) fn min_width(self) -> usize {
        1 + usize::from(self.label_frames == 0 || self.forces_blank)
    }

    /// Returns the maximum distance between the starts of bands of consecutive frames.
    ///
    /// If labels stay in their frame, consecutive bands must share a position, where the blank
    /// leads from one to the next. A label that advances a frame moves by one position. A width of
    /// 1 occurs only without labels, where all starts are 0.
    pub(crate) fn max_start_step(self, width: usize) -> usize {
        if self.label_frames == 0 { width.max(2) - 1 } else { 1 }
    }

    /// Returns the minimum width of bands that can emit all labels.
    ///
    /// If labels stay in their frame, starts advance by at most the width minus 1 per frame, and
    /// the bands must reach the last label. It is 0 if a label advances a frame: then any width
    /// can.
    pub(crate) fn feasible_width(self, frames: usize, labels: usize) -> usize {
        if self.label_frames == 0 { labels.div_ceil(frames) + 1 } else { 0 }
    }
}
