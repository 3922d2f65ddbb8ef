//! Interface to the scores of the first pass: encoder (am) and predictor (lm).
use std::{fmt, ops::Range};

use kernels::{AlignedVec, Real, WorkerSlots};

use crate::TaskScratch;

/// The two terms of the simple joiner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `am`, a row for each frame.
    Frames,
    /// `lm`, a row for each label position.
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

/// Scores `am` and `lm`, computed by tiles of classes, and their gradients.
///
/// A tile is row-major, rows x classes, without gaps. Padding rows are never read.
pub trait Source<F: Real>: Sync {
    /// The gradient that [`Source::pull_back`] adds to.
    type Gradient: Send;
    /// Returns the number of classes C.
    fn classes(&self) -> usize;
    /// Returns the number of rows, including padding.
    fn rows(&self, side: Side) -> usize;
    /// Returns the maximum packing memory of a product, in bytes.
    fn packing_bytes(&self, rows: usize, classes: usize) -> usize;
    /// Writes the scores of some classes and rows, on the calling thread.
    fn fill(
        &self,
        side: Side,
        rows: Range<usize>,
        classes: Range<usize>,
        out: &mut [F],
        packing: &mut AlignedVec<F>,
    );
    /// Creates a zero gradient.
    fn zero_gradient(&self) -> Self::Gradient;
    /// Adds the gradient of a tile of scores, for runs of rows.
    ///
    /// The runs ascend without overlap; `gradient` has their tiles one after the other. Parallel
    /// tasks take scratch memory from `slots`.
    fn pull_back(
        &self,
        side: Side,
        runs: &[Range<usize>],
        classes: Range<usize>,
        gradient: &[F],
        into: &mut Self::Gradient,
        slots: &WorkerSlots<TaskScratch<F>>,
    );
    /// Returns the gradients of `am` and `lm`, if they are dense matrices.
    ///
    /// They may then be written without [`Source::pull_back`].
    fn dense_gradients(_: &mut Self::Gradient) -> Option<[&mut [F]; 2]> {
        None
    }
}

/// Splits runs of matrix rows into blocks of at most `block` rows.
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

/// Splits consecutive tiles of runs into blocks of at most `block` rows.
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
