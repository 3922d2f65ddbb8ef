//! Interface to the scores of the pruned first pass: encoder (am) and predictor (lm).
//!
//! [`Matrices`](crate::Matrices) and [`Heads`](crate::Heads) implement it.
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
pub trait ScoreSource<F: Real>: Sync {
    /// The gradient that [`ScoreSource::add_gradient`] adds to.
    type Gradient: Send;
    /// Returns the number of classes C.
    fn classes(&self) -> usize;
    /// Returns the number of rows, including padding.
    fn rows(&self, side: Side) -> usize;
    /// Returns the maximum packing memory of a product, in bytes.
    fn packing_bytes(&self, rows: usize, classes: usize) -> usize;
    /// Writes the scores of some classes and rows, on the calling thread.
    fn fill_scores(
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
    fn add_gradient(
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
    /// They may then be written without [`ScoreSource::add_gradient`].
    fn dense_gradients(_: &mut Self::Gradient) -> Option<[&mut [F]; 2]> {
        None
    }
}

/// Splits runs of matrix rows into blocks of at most `max_rows` rows.
///
/// Rows outside the runs are left out.
pub(crate) fn split_matrix_runs<'a, F>(
    mut matrix: &'a mut [F],
    width: usize,
    runs: &[Range<usize>],
    max_rows: usize,
) -> Vec<&'a mut [F]> {
    let mut blocks = Vec::new();
    // The row of the whole matrix with which `matrix` starts.
    let mut first_row = 0;
    for run in runs {
        let later_rows = matrix.split_at_mut((run.start - first_row) * width).1;
        let (run_rows, later_rows) = later_rows.split_at_mut(run.len() * width);
        blocks.extend(run_rows.chunks_mut(max_rows.saturating_mul(width).max(1)));
        (matrix, first_row) = (later_rows, run.end);
    }
    blocks
}

/// Splits successive tiles of runs into blocks of at most `max_rows` rows.
pub(crate) fn split_tile_runs<'a, F>(
    mut tiles: &'a [F],
    width: usize,
    runs: &[Range<usize>],
    max_rows: usize,
) -> Vec<&'a [F]> {
    let mut blocks = Vec::new();
    for run in runs {
        let (tile, later_tiles) = tiles.split_at(run.len() * width);
        blocks.extend(tile.chunks(max_rows.saturating_mul(width).max(1)));
        tiles = later_tiles;
    }
    blocks
}
