//! The unigram of the am-only term: the average of the label rows' softmax.
//!
//! ```text
//! s[r,c] = softmax_c lm[r]     unigram[c] = 1/R Σ_r s[r,c] + tiny
//! dL/dlm[r,c] = 1/R s[r,c] (g[c] - Σ_c' s[r,c'] g[c'])     with g = dL/dunigram
//! ```
//!
//! `tiny`, the smallest normal number of the type, is fast_rnnt's: no class has probability 0.
use std::ops::Range;

use kernels::{AlignedVec, Real, ReusableBuffer, ScratchReq, WorkerSlots, ensure_len, reset};

use crate::{Side, Source, TaskScratch, tiles};

/// A unigram, and what its gradient needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UnigramRow<F> {
    /// Rows that it averages.
    rows: Range<usize>,
    /// Largest score of each.
    max: Vec<F>,
    /// `Σ_c exp(lm - max)` of each.
    sums: Vec<f64>,
    /// `unigram[c] / largest`, *C*.
    pub mass: Vec<F>,
    /// The largest probability.
    pub largest: f64,
}

impl<F: Real> UnigramRow<F> {
    /// Of no row.
    pub fn none() -> Self {
        Self { rows: 0..0, max: Vec::new(), sums: Vec::new(), mass: Vec::new(), largest: 0.0 }
    }

    /// What it holds.
    pub fn requirement(&self) -> ScratchReq {
        self.max.requirement().and(self.sums.requirement()).and(self.mass.requirement())
    }

    /// Scratch of so many rows.
    pub fn scratch(rows: usize, classes: usize) -> ScratchReq {
        ScratchReq::new::<F>(rows).and(ScratchReq::new::<f64>(rows)).and(ScratchReq::new::<F>(classes))
    }

    /// The average over some rows, in the vectors of another and a number for each class; an odd row, one with NaN or +inf or
    /// without a finite score, as the error.
    pub fn average<S: Source<F>>(
        source: &S,
        rows: Range<usize>,
        most: usize,
        (spare, unigram): (Self, &mut [f64]),
        slots: &WorkerSlots<TaskScratch<F>>,
    ) -> Result<Self, usize> {
        let classes = source.classes();
        // Other utterances' rows may be more, but not of more classes.
        let spare = if spare.mass.capacity() > classes { Self::none() } else { spare };
        let mut max = reset(spare.max, rows.len(), F::NEG_INFINITY);
        let mut sums = reset(spare.sums, rows.len(), 0.0);
        for part in tiles::tiles(classes, most) {
            for block in blocks(&rows) {
                let at = block.start - rows.start;
                let mut scratch = slots.lock();
                let (packing, tile, _) = scratch.split(block.len() * part.len(), 0);
                source.fill(Side::Labels, block, part.clone(), tile, packing);
                for (i, row) in tile.chunks_exact_mut(part.len()).enumerate() {
                    sums[at + i] *= tiles::raise(row, &mut max[at + i]);
                }
                kernels::exp(tile);
                let found = tile.chunks_exact(part.len());
                sums[at..].iter_mut().zip(found).for_each(|(sum, row)| *sum += tiles::sum(row));
            }
        }
        if let Some(odd) = sums.iter().position(|&sum| !(sum > 0.0 && sum.is_finite())) {
            return Err(rows.start + odd);
        }
        let mass = reset(spare.mass, classes, F::ZERO);
        let mut row = Self { rows, max, sums, mass, largest: 0.0 };
        let tiny = if F::LARGEST.to_f64() < 1e100 { f64::from(f32::MIN_POSITIVE) } else { f64::MIN_POSITIVE };
        let unigram = &mut unigram[..classes];
        unigram.fill(tiny);
        row.visit(source, most, slots, |part, softmax, _| {
            let count = row.rows.len() as f64;
            unigram[part].iter_mut().zip(softmax).for_each(|(u, s)| *u += s.to_f64() / count);
        });
        row.largest = unigram.iter().fold(0.0, |most, &u| u.max(most));
        let largest = row.largest;
        row.mass.iter_mut().zip(&*unigram).for_each(|(mass, u)| *mass = F::from_f64(u / largest));
        Ok(row)
    }

    /// `unigram[c]`
    pub fn probability(&self, class: usize) -> f64 {
        self.mass[class].to_f64() * self.largest
    }

    /// Adds the gradient of the rows' scores, from that of the probabilities.
    pub fn pull_back<S: Source<F>>(
        &self,
        source: &S,
        gradient: &[f64],
        into: &mut S::Gradient,
        (most, room): (usize, &mut Vec<F>),
        slots: &WorkerSlots<TaskScratch<F>>,
    ) {
        let mut means = vec![0.0; self.rows.len()];
        self.visit(source, most, slots, |part, softmax, row| {
            means[row] += softmax.iter().zip(&gradient[part]).map(|(s, g)| s.to_f64() * g).sum::<f64>();
        });
        let count = self.rows.len() as f64;
        let classes = source.classes();
        ensure_len(room, self.rows.len().min(tiles::ROWS) * tiles::even(classes, most), F::ZERO);
        for part in tiles::tiles(classes, most) {
            for block in blocks(&self.rows) {
                let tile = &mut room[..block.len() * part.len()];
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

    /// Calls for each row and tile of classes with the softmax there and the row, counted from the first.
    fn visit<S: Source<F>>(
        &self,
        source: &S,
        most: usize,
        slots: &WorkerSlots<TaskScratch<F>>,
        mut each: impl FnMut(Range<usize>, &[F], usize),
    ) {
        for part in tiles::tiles(source.classes(), most) {
            for block in blocks(&self.rows) {
                let at = block.start - self.rows.start;
                let mut scratch = slots.lock();
                let (packing, tile, _) = scratch.split(block.len() * part.len(), 0);
                self.softmax(source, &block, &part, tile, packing);
                for (i, row) in tile.chunks_exact(part.len()).enumerate() {
                    each(part.clone(), row, at + i);
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
            tiles::subtract(row, max);
        }
        kernels::exp(tile);
        for (row, &sum) in tile.chunks_exact_mut(part.len()).zip(&self.sums[at..]) {
            let factor = F::from_f64(1.0 / sum);
            row.iter_mut().for_each(|s| *s *= factor);
        }
    }
}

fn blocks(rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.clone().step_by(tiles::ROWS).map(move |first| first..(first + tiles::ROWS).min(end))
}
