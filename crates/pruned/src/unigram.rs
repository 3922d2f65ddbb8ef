//! Unigram of the smoothing: the average softmax of the predictor scores.
//!
//! ```text
//! s[r,c] = softmax_c lm[r]     unigram[c] = 1/R Σ_r s[r,c] + tiny
//! dL/dlm[r,c] = 1/R s[r,c] (g[c] - Σ_c' s[r,c'] g[c'])     with g = dL/dunigram
//! ```
//! lm: predictor scores; r: one of R label rows; c: class.
//!
//! `tiny` is the smallest normal number of the type, as in fast_rnnt: no class has probability 0.
//! The unigram is used in the am-only term of the loss.
use std::ops::Range;

use kernels::{AlignedVec, Real, ReusableBuffer, ScratchReq, WorkerSlots, ensure_len, reset};

use crate::{Side, Source, TaskScratch, tiles};

/// A unigram, and the statistics for its gradient.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UnigramRow<F> {
    /// Averaged rows.
    rows: Range<usize>,
    /// Largest score of each row.
    max: Vec<F>,
    /// `Σ_c exp(lm - max)` of each row.
    sums: Vec<f64>,
    /// `unigram[c] / max_probability`, *C*.
    pub mass: Vec<F>,
    /// The largest probability.
    pub max_probability: f64,
}

impl<F: Real> UnigramRow<F> {
    /// Creates the unigram of no row.
    pub fn empty() -> Self {
        Self { rows: 0..0, max: Vec::new(), sums: Vec::new(), mass: Vec::new(), max_probability: 0.0 }
    }

    /// Returns the bytes that are held.
    pub fn requirement(&self) -> ScratchReq {
        self.max.requirement().and(self.sums.requirement()).and(self.mass.requirement())
    }

    /// Returns the scratch of a unigram over `rows` rows.
    pub fn scratch(rows: usize, classes: usize) -> ScratchReq {
        ScratchReq::new::<F>(rows).and(ScratchReq::new::<f64>(rows)).and(ScratchReq::new::<F>(classes))
    }

    /// Averages the softmax of some rows, in recycled vectors.
    ///
    /// # Errors
    /// The first row with NaN or +inf, or without a finite score.
    pub fn average<S: Source<F>>(
        source: &S,
        rows: Range<usize>,
        max_classes: usize,
        (recycled, unigram): (Self, &mut [f64]),
        slots: &WorkerSlots<TaskScratch<F>>,
    ) -> Result<Self, usize> {
        let classes = source.classes();
        // A unigram of another batch may have more classes; then its memory is not reused.
        let recycled = if recycled.mass.capacity() > classes { Self::empty() } else { recycled };
        let mut max = reset(recycled.max, rows.len(), F::NEG_INFINITY);
        let mut sums = reset(recycled.sums, rows.len(), 0.0);
        for part in tiles::tiles(classes, max_classes) {
            for block in row_blocks(&rows) {
                let at = block.start - rows.start;
                let mut scratch = slots.lock();
                let (packing, tile, _) = scratch.split(block.len() * part.len(), 0);
                source.fill(Side::Labels, block, part.clone(), tile, packing);
                for (i, row) in tile.chunks_exact_mut(part.len()).enumerate() {
                    sums[at + i] *= tiles::raise_max(row, &mut max[at + i]);
                }
                kernels::exp(tile);
                let rows_of_tile = tile.chunks_exact(part.len());
                sums[at..].iter_mut().zip(rows_of_tile).for_each(|(sum, row)| *sum += tiles::sum(row));
            }
        }
        if let Some(bad) = sums.iter().position(|&sum| !(sum > 0.0 && sum.is_finite())) {
            return Err(rows.start + bad);
        }
        let mass = reset(recycled.mass, classes, F::ZERO);
        let mut row = Self { rows, max, sums, mass, max_probability: 0.0 };
        let tiny = if F::MAX.to_f64() < 1e100 { f64::from(f32::MIN_POSITIVE) } else { f64::MIN_POSITIVE };
        let unigram = &mut unigram[..classes];
        unigram.fill(tiny);
        row.visit(source, max_classes, slots, |part, softmax, _| {
            let count = row.rows.len() as f64;
            unigram[part].iter_mut().zip(softmax).for_each(|(u, s)| *u += s.to_f64() / count);
        });
        row.max_probability = unigram.iter().fold(0.0, |max, &u| u.max(max));
        let max_probability = row.max_probability;
        row.mass.iter_mut().zip(&*unigram).for_each(|(mass, u)| *mass = F::from_f64(u / max_probability));
        Ok(row)
    }

    /// Returns `unigram[c]`.
    pub fn probability(&self, class: usize) -> f64 {
        self.mass[class].to_f64() * self.max_probability
    }

    /// Adds the gradient of the rows' scores, given that of the probabilities.
    pub fn pull_back<S: Source<F>>(
        &self,
        source: &S,
        gradient: &[f64],
        into: &mut S::Gradient,
        (max_classes, buffer): (usize, &mut Vec<F>),
        slots: &WorkerSlots<TaskScratch<F>>,
    ) {
        let mut means = vec![0.0; self.rows.len()];
        self.visit(source, max_classes, slots, |part, softmax, row| {
            means[row] += softmax.iter().zip(&gradient[part]).map(|(s, g)| s.to_f64() * g).sum::<f64>();
        });
        let count = self.rows.len() as f64;
        let classes = source.classes();
        ensure_len(
            buffer,
            self.rows.len().min(tiles::BLOCK_ROWS) * tiles::even_size(classes, max_classes),
            F::ZERO,
        );
        for part in tiles::tiles(classes, max_classes) {
            for block in row_blocks(&self.rows) {
                let tile = &mut buffer[..block.len() * part.len()];
                self.softmax(source, &block, &part, tile, &mut slots.lock().packing);
                let rows = tile.chunks_exact_mut(part.len());
                for (row, &mean) in rows.zip(&means[block.start - self.rows.start..]) {
                    for (s, g) in row.iter_mut().zip(&gradient[part.clone()]) {
                        *s = F::from_f64(s.to_f64() * (g - mean) / count);
                    }
                }
                source.pull_back(Side::Labels, &[block], part.clone(), tile, into, slots);
            }
        }
    }

    /// Calls `visit_row(classes, softmax, index)` for each row of each tile.
    fn visit<S: Source<F>>(
        &self,
        source: &S,
        max_classes: usize,
        slots: &WorkerSlots<TaskScratch<F>>,
        mut visit_row: impl FnMut(Range<usize>, &[F], usize),
    ) {
        for part in tiles::tiles(source.classes(), max_classes) {
            for block in row_blocks(&self.rows) {
                let at = block.start - self.rows.start;
                let mut scratch = slots.lock();
                let (packing, tile, _) = scratch.split(block.len() * part.len(), 0);
                self.softmax(source, &block, &part, tile, packing);
                for (i, row) in tile.chunks_exact(part.len()).enumerate() {
                    visit_row(part.clone(), row, at + i);
                }
            }
        }
    }

    fn softmax<S: Source<F>>(
        &self,
        source: &S,
        block: &Range<usize>,
        part: &Range<usize>,
        tile: &mut [F],
        packing: &mut AlignedVec<F>,
    ) {
        let at = block.start - self.rows.start;
        source.fill(Side::Labels, block.clone(), part.clone(), tile, packing);
        for (row, &max) in tile.chunks_exact_mut(part.len()).zip(&self.max[at..]) {
            tiles::subtract_max(row, max);
        }
        kernels::exp(tile);
        for (row, &sum) in tile.chunks_exact_mut(part.len()).zip(&self.sums[at..]) {
            let factor = F::from_f64(1.0 / sum);
            row.iter_mut().for_each(|s| *s *= factor);
        }
    }
}

fn row_blocks(rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.clone().step_by(tiles::BLOCK_ROWS).map(move |first| first..(first + tiles::BLOCK_ROWS).min(end))
}
