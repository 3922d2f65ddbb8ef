//! Unigram of the pruned first pass: average softmax of the predictor scores.
//!
//! ```text
//! s[r,c] = softmax_c lm[r]     unigram[c] = 1/R Σ_r s[r,c] + tiny
//! dL/dlm[r,c] = 1/R s[r,c] (g[c] - Σ_c' s[r,c'] g[c'])     with g = dL/dunigram
//! ```
//! lm: predictor scores; r: one of R label rows; c: class; L: loss.
//!
//! `tiny` is the smallest normal number of the type, as in fast_rnnt: no class has probability 0.
//! The unigram is used in the am-only term of the loss.
use std::ops::Range;

use kernels::{AlignedVec, Real, ReusableBuffer, ScratchReq, WorkerSlots, ensure_len, reset};

use crate::{ScoreSource, Side, TaskScratch, tiles};

/// A unigram, and the statistics for its gradient.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UnigramDistribution<F> {
    /// Averaged rows.
    rows: Range<usize>,
    /// Largest score of each row.
    max: Vec<F>,
    /// `Σ_c exp(lm - max)` of each row.
    sums: Vec<f64>,
    /// `unigram[c] / max_probability`, *C*.
    pub relative: Vec<F>,
    /// The largest probability.
    pub max_probability: f64,
}

impl<F: Real> UnigramDistribution<F> {
    /// Creates the unigram of no row.
    pub(crate) fn empty() -> Self {
        Self { rows: 0..0, max: Vec::new(), sums: Vec::new(), relative: Vec::new(), max_probability: 0.0 }
    }

    /// Returns the allocated memory.
    pub(crate) fn allocated(&self) -> ScratchReq {
        self.max.allocated().and(self.sums.allocated()).and(self.relative.allocated())
    }

    /// Returns the scratch of a unigram over `rows` rows.
    pub(crate) fn scratch(rows: usize, classes: usize) -> ScratchReq {
        ScratchReq::new::<F>(rows).and(ScratchReq::new::<f64>(rows)).and(ScratchReq::new::<F>(classes))
    }

    /// Averages the softmax of some rows, in recycled vectors.
    ///
    /// `unigram` is scratch memory of C elements; `max_classes` limits the classes of a tile.
    ///
    /// # Errors
    /// The first row with NaN or +inf, or without a finite score.
    pub(crate) fn average<S: ScoreSource<F>>(
        source: &S,
        rows: Range<usize>,
        max_classes: usize,
        recycled: Self,
        unigram: &mut [f64],
        slots: &WorkerSlots<TaskScratch<F>>,
    ) -> Result<Self, usize> {
        let classes = source.classes();
        // A unigram of another batch may have more classes; then its memory is not reused.
        let recycled = if recycled.relative.capacity() > classes { Self::empty() } else { recycled };
        let mut max = reset(recycled.max, rows.len(), F::NEG_INFINITY);
        let mut sums = reset(recycled.sums, rows.len(), 0.0);
        for tile_classes in tiles::class_tiles(classes, max_classes) {
            for block in row_blocks(&rows) {
                let first_row = block.start - rows.start;
                let mut scratch = slots.lock();
                let (packing, tile, _) = scratch.split(block.len() * tile_classes.len(), 0);
                source.fill_scores(Side::Labels, block, tile_classes.clone(), tile, packing);
                for (row_index, row) in tile.chunks_exact_mut(tile_classes.len()).enumerate() {
                    // Rescales the sum of earlier tiles to the new maximum.
                    sums[first_row + row_index] *= tiles::raise_max(row, &mut max[first_row + row_index]);
                }
                kernels::exp(tile);
                let rows_of_tile = tile.chunks_exact(tile_classes.len());
                sums[first_row..]
                    .iter_mut()
                    .zip(rows_of_tile)
                    .for_each(|(sum, row)| *sum += tiles::row_sum(row));
            }
        }
        if let Some(invalid_row) = sums.iter().position(|&sum| !(sum > 0.0 && sum.is_finite())) {
            return Err(rows.start + invalid_row);
        }
        // The average, which needs the sums of all classes, and then its largest probability.
        let relative = reset(recycled.relative, classes, F::ZERO);
        let mut distribution = Self { rows, max, sums, relative, max_probability: 0.0 };
        let is_f32 = F::MAX.to_f64() <= f64::from(f32::MAX);
        let tiny = if is_f32 { f64::from(f32::MIN_POSITIVE) } else { f64::MIN_POSITIVE };
        let unigram = &mut unigram[..classes];
        unigram.fill(tiny);
        distribution.for_each_softmax(source, max_classes, slots, |tile_classes, softmax, _| {
            let row_count = distribution.rows.len() as f64;
            unigram[tile_classes].iter_mut().zip(softmax).for_each(|(u, s)| *u += s.to_f64() / row_count);
        });
        distribution.max_probability = unigram.iter().fold(0.0, |max, &u| u.max(max));
        let max_probability = distribution.max_probability;
        distribution
            .relative
            .iter_mut()
            .zip(&*unigram)
            .for_each(|(relative, u)| *relative = F::from_f64(u / max_probability));
        Ok(distribution)
    }

    /// Returns `unigram[c]`.
    pub(crate) fn probability(&self, class: usize) -> f64 {
        self.relative[class].to_f64() * self.max_probability
    }

    /// Adds the gradient of the rows' scores.
    ///
    /// `gradient` is that of the probabilities, *C*.
    pub(crate) fn pull_back<S: ScoreSource<F>>(
        &self,
        source: &S,
        gradient: &[f64],
        into: &mut S::Gradient,
        max_classes: usize,
        buffer: &mut Vec<F>,
        slots: &WorkerSlots<TaskScratch<F>>,
    ) {
        // `Σ_c s[r,c] g[c]` of each row.
        let mut mean_gradients = vec![0.0; self.rows.len()];
        self.for_each_softmax(source, max_classes, slots, |tile_classes, softmax, row| {
            mean_gradients[row] +=
                softmax.iter().zip(&gradient[tile_classes]).map(|(s, g)| s.to_f64() * g).sum::<f64>();
        });
        let row_count = self.rows.len() as f64;
        let classes = source.classes();
        ensure_len(
            buffer,
            self.rows.len().min(tiles::BLOCK_ROWS) * tiles::even_size(classes, max_classes),
            F::ZERO,
        );
        for tile_classes in tiles::class_tiles(classes, max_classes) {
            for block in row_blocks(&self.rows) {
                let tile = &mut buffer[..block.len() * tile_classes.len()];
                self.fill_softmax(source, &block, &tile_classes, tile, &mut slots.lock().packing);
                let rows = tile.chunks_exact_mut(tile_classes.len());
                for (row, &mean_gradient) in rows.zip(&mean_gradients[block.start - self.rows.start..]) {
                    for (s, g) in row.iter_mut().zip(&gradient[tile_classes.clone()]) {
                        *s = F::from_f64(s.to_f64() * (g - mean_gradient) / row_count);
                    }
                }
                source.add_gradient(Side::Labels, &[block], tile_classes.clone(), tile, into, slots);
            }
        }
    }

    /// Calls `visit_row(classes, softmax, index)` for each row of each tile.
    fn for_each_softmax<S: ScoreSource<F>>(
        &self,
        source: &S,
        max_classes: usize,
        slots: &WorkerSlots<TaskScratch<F>>,
        mut visit_row: impl FnMut(Range<usize>, &[F], usize),
    ) {
        for tile_classes in tiles::class_tiles(source.classes(), max_classes) {
            for block in row_blocks(&self.rows) {
                let first_row = block.start - self.rows.start;
                let mut scratch = slots.lock();
                let (packing, tile, _) = scratch.split(block.len() * tile_classes.len(), 0);
                self.fill_softmax(source, &block, &tile_classes, tile, packing);
                for (row_index, row) in tile.chunks_exact(tile_classes.len()).enumerate() {
                    visit_row(tile_classes.clone(), row, first_row + row_index);
                }
            }
        }
    }

    /// Computes the softmax of a block of rows for some classes.
    fn fill_softmax<S: ScoreSource<F>>(
        &self,
        source: &S,
        block: &Range<usize>,
        classes: &Range<usize>,
        tile: &mut [F],
        packing: &mut AlignedVec<F>,
    ) {
        let first_row = block.start - self.rows.start;
        source.fill_scores(Side::Labels, block.clone(), classes.clone(), tile, packing);
        for (row, &max) in tile.chunks_exact_mut(classes.len()).zip(&self.max[first_row..]) {
            tiles::subtract_max(row, max);
        }
        kernels::exp(tile);
        for (row, &sum) in tile.chunks_exact_mut(classes.len()).zip(&self.sums[first_row..]) {
            let factor = F::from_f64(1.0 / sum);
            row.iter_mut().for_each(|s| *s *= factor);
        }
    }
}

/// Splits rows into blocks, each the work of a task.
fn row_blocks(rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.clone().step_by(tiles::BLOCK_ROWS).map(move |start| start..(start + tiles::BLOCK_ROWS).min(end))
}
