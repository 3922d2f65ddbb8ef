//! Where the scores of frames and labels come from.
use std::{fmt, ops::Range};

use kernels::{AlignedVec, Real, WorkerSlots};

use crate::TaskScratch;

/// The two terms of the trivial joiner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `am`, one row a frame.
    Frames,
    /// `lm`, one row a label position.
    Labels,
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Frames => "frame",
            Self::Labels => "label",
        })
    }
}

/// Rows of scores `am` and `lm` that can be had a few classes at a time, and that take their gradient back likewise.
///
/// A tile of rows x classes lies row-major, without gaps. Rows that nobody asks for (padding) are never looked at.
pub trait Source<F: Real>: Sync {
    /// What [`Source::pull_back`] sums into.
    type Gradient: Send;
    /// C
    fn classes(&self) -> usize;
    /// Rows there are, padding included.
    fn rows(&self, side: Side) -> usize;
    /// Bytes that either direction packs of so many rows of so many classes for a product, at most.
    fn packing(&self, rows: usize, classes: usize) -> usize;
    /// Writes the scores of some classes in some rows; one task.
    fn fill(
        &self,
        side: Side,
        rows: Range<usize>,
        classes: Range<usize>,
        out: &mut [F],
        packing: &mut AlignedVec<F>,
    );
    /// A zero gradient.
    fn zero_gradient(&self) -> Self::Gradient;
    /// Adds the gradient of the scores of some classes in some runs of rows; the runs ascend and share nothing, their
    /// tiles lie one behind the other. Its tasks work in the slots.
    fn pull_back(
        &self,
        side: Side,
        runs: &[Range<usize>],
        classes: Range<usize>,
        gradient: &[F],
        into: &mut Self::Gradient,
        slots: &WorkerSlots<TaskScratch<F>>,
    );
    /// The gradients of `am` and `lm`, *rows x C*, if they are kept as such: they may then be written without
    /// [`Source::pull_back`].
    fn whole(_: &mut Self::Gradient) -> Option<[&mut [F]; 2]> {
        None
    }
}

/// Cuts some rows of a row-major matrix into one slice a run, and blocks of at most `block` rows.
pub(crate) fn blocks_mut<'a, F>(
    mut matrix: &'a mut [F],
    width: usize,
    runs: &[Range<usize>],
    block: usize,
) -> Vec<&'a mut [F]> {
    let (mut parts, mut at) = (Vec::new(), 0);
    for run in runs {
        let rest = matrix.split_at_mut((run.start - at) * width).1;
        let (part, rest) = rest.split_at_mut(run.len() * width);
        parts.extend(part.chunks_mut(block.saturating_mul(width).max(1)));
        (matrix, at) = (rest, run.end);
    }
    parts
}

/// The same cut for tiles that lie one behind the other.
pub(crate) fn blocks<'a, F>(
    mut tiles: &'a [F],
    width: usize,
    runs: &[Range<usize>],
    block: usize,
) -> Vec<&'a [F]> {
    let mut parts = Vec::new();
    for run in runs {
        let (part, rest) = tiles.split_at(run.len() * width);
        parts.extend(part.chunks(block.saturating_mul(width).max(1)));
        tiles = rest;
    }
    parts
}
