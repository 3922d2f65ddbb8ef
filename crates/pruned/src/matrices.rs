//! Encoder (am) and predictor (lm) scores given as matrices.
//!
//! They are a source of scores for the pruned first pass, if the caller has already computed them.
use std::ops::Range;

use kernels::{AlignedVec, Real, WorkerSlots, add, items_mut, par_for};

use crate::{
    Error, Result, ScoreSource, Side, TaskScratch,
    error::expect_len,
    source::{split_matrix_runs, split_tile_runs},
};

/// Borrowed scores `am` *rows x C* and `lm` *rows x C*.
#[derive(Debug, Clone, Copy)]
pub struct Matrices<'a, F> {
    am: &'a [F],
    lm: &'a [F],
    classes: usize,
}

/// Gradient of [`Matrices`], of the same shape; 0 in padding.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixGradient<F> {
    /// Gradient of the frames' scores.
    pub am: Vec<F>,
    /// Gradient of the labels' scores.
    pub lm: Vec<F>,
}

impl<'a, F: Real> Matrices<'a, F> {
    /// Borrows two row-major matrices.
    ///
    /// # Errors
    /// `classes` is zero or does not divide a length.
    pub fn new(am: &'a [F], lm: &'a [F], classes: usize) -> Result<Self> {
        for (argument, scores) in [("am", am), ("lm", lm)] {
            let rows = scores.len().checked_div(classes).ok_or(Error::Zero { argument: "classes" })?;
            expect_len(argument, rows * classes, scores.len())?;
        }
        Ok(Self { am, lm, classes })
    }

    fn scores(&self, side: Side) -> &'a [F] {
        match side {
            Side::Frames => self.am,
            Side::Labels => self.lm,
        }
    }
}

/// Rows of a task that adds gradients.
const ROWS_PER_TASK: usize = 64;

impl<F: Real> ScoreSource<F> for Matrices<'_, F> {
    type Gradient = MatrixGradient<F>;

    fn classes(&self) -> usize {
        self.classes
    }

    fn rows(&self, side: Side) -> usize {
        self.scores(side).len() / self.classes
    }

    fn packing_bytes(&self, _: usize, _: usize) -> usize {
        0
    }

    fn fill_scores(
        &self,
        side: Side,
        rows: Range<usize>,
        classes: Range<usize>,
        out: &mut [F],
        _: &mut AlignedVec<F>,
    ) {
        let scores = &self.scores(side)[rows.start * self.classes..rows.end * self.classes];
        for (out, row) in out.chunks_exact_mut(classes.len()).zip(scores.chunks_exact(self.classes)) {
            out.copy_from_slice(&row[classes.clone()]);
        }
    }

    fn zero_gradient(&self) -> MatrixGradient<F> {
        MatrixGradient { am: vec![F::ZERO; self.am.len()], lm: vec![F::ZERO; self.lm.len()] }
    }

    fn add_gradient(
        &self,
        side: Side,
        runs: &[Range<usize>],
        classes: Range<usize>,
        gradient: &[F],
        into: &mut MatrixGradient<F>,
        _: &WorkerSlots<TaskScratch<F>>,
    ) {
        let matrix = match side {
            Side::Frames => &mut into.am,
            Side::Labels => &mut into.lm,
        };
        let mut matrix_blocks = split_matrix_runs(matrix, self.classes, runs, ROWS_PER_TASK);
        let tile_blocks = split_tile_runs(gradient, classes.len(), runs, ROWS_PER_TASK);
        par_for(items_mut(&mut matrix_blocks), |block, out| {
            let tile_rows = tile_blocks[block].chunks_exact(classes.len());
            let rows = out.chunks_exact_mut(self.classes).zip(tile_rows);
            rows.for_each(|(out, gradient)| add(&mut out[classes.clone()], gradient));
        });
    }

    fn dense_gradients(into: &mut MatrixGradient<F>) -> Option<[&mut [F]; 2]> {
        Some([&mut into.am, &mut into.lm])
    }
}
