//! The unigram of the am-only term: the average of the label rows' softmax.
//!
//! ```text
//! s[r,c] = softmax_c lm[r]     unigram[c] = 1/R Σ_r s[r,c] + tiny
//! dL/dlm[r,c] = 1/R s[r,c] (g[c] - Σ_c' s[r,c'] g[c'])     with g = dL/dunigram
//! ```
//!
//! `tiny`, the smallest normal number of the type, is fast_rnnt's: no class has probability 0.
use std::ops::Range;

use kernels::Real;

use crate::{Side, Source, tiles};

/// A unigram, and what its gradient needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row<F> {
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

/// Rows a block: a matrix of all rows of a batch may be long.
const ROWS: usize = 128;

impl<F: Real> Row<F> {
    /// The average over some rows; an odd row, one with NaN or +inf or without a finite score, as the error.
    pub fn average<S: Source<F>>(source: &S, rows: Range<usize>) -> Result<Self, usize> {
        let classes = source.classes();
        let mut max = vec![F::NEG_INFINITY; rows.len()];
        let mut sums = vec![0.0; rows.len()];
        let mut tile = Vec::new();
        for part in tiles::tiles(classes) {
            for block in blocks(&rows) {
                let at = block.start - rows.start;
                fill(source, &block, &part, &mut tile);
                for (i, row) in tile.chunks_exact_mut(part.len()).enumerate() {
                    sums[at + i] *= tiles::raise(row, &mut max[at + i]);
                }
                kernels::exp(&mut tile);
                let found = tile.chunks_exact(part.len());
                sums[at..].iter_mut().zip(found).for_each(|(sum, row)| *sum += tiles::sum(row));
            }
        }
        if let Some(odd) = sums.iter().position(|&sum| !(sum > 0.0 && sum.is_finite())) {
            return Err(rows.start + odd);
        }
        let mut row = Self { rows, max, sums, mass: vec![F::ZERO; classes], largest: 0.0 };
        let tiny = if F::LARGEST.to_f64() < 1e100 { f64::from(f32::MIN_POSITIVE) } else { f64::MIN_POSITIVE };
        let mut unigram = vec![tiny; classes];
        row.visit(source, |part, softmax, _| {
            let count = row.rows.len() as f64;
            unigram[part].iter_mut().zip(softmax).for_each(|(u, s)| *u += s / count);
        });
        row.largest = unigram.iter().fold(0.0, |most, &u| u.max(most));
        row.mass = unigram.iter().map(|u| F::from_f64(u / row.largest)).collect();
        Ok(row)
    }

    /// `unigram[c]`
    pub fn probability(&self, class: usize) -> f64 {
        self.mass[class].to_f64() * self.largest
    }

    /// Adds the gradient of the rows' scores, from that of the probabilities.
    pub fn pull_back<S: Source<F>>(&self, source: &S, gradient: &[f64], into: &mut S::Gradient) {
        let mut means = vec![0.0; self.rows.len()];
        self.visit(source, |part, softmax, row| {
            means[row] += softmax.iter().zip(&gradient[part]).map(|(s, g)| s * g).sum::<f64>();
        });
        let count = self.rows.len() as f64;
        let mut tile = Vec::new();
        for part in tiles::tiles(source.classes()) {
            for block in blocks(&self.rows) {
                self.softmax(source, &block, &part, &mut tile);
                let rows = tile.chunks_exact_mut(part.len());
                for (row, &mean) in rows.zip(&means[block.start - self.rows.start..]) {
                    for (s, g) in row.iter_mut().zip(&gradient[part.clone()]) {
                        *s = F::from_f64(s.to_f64() * (g - mean) / count);
                    }
                }
                source.pull_back(Side::Labels, &[block], part.clone(), &tile, into);
            }
        }
    }

    /// Calls for each row and tile of classes with the softmax there and the row, counted from the first.
    fn visit<S: Source<F>>(&self, source: &S, mut each: impl FnMut(Range<usize>, &[f64], usize)) {
        let (mut tile, mut wide) = (Vec::new(), Vec::new());
        for part in tiles::tiles(source.classes()) {
            for block in blocks(&self.rows) {
                let at = block.start - self.rows.start;
                self.softmax(source, &block, &part, &mut tile);
                for (i, row) in tile.chunks_exact(part.len()).enumerate() {
                    wide.clear();
                    wide.extend(row.iter().map(|s| s.to_f64()));
                    each(part.clone(), &wide, at + i);
                }
            }
        }
    }

    fn softmax<S: Source<F>>(
        &self,
        source: &S,
        block: &Range<usize>,
        part: &Range<usize>,
        tile: &mut Vec<F>,
    ) {
        let at = block.start - self.rows.start;
        fill(source, block, part, tile);
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
    rows.clone().step_by(ROWS).map(move |first| first..(first + ROWS).min(end))
}

fn fill<F: Real, S: Source<F>>(source: &S, block: &Range<usize>, part: &Range<usize>, tile: &mut Vec<F>) {
    tile.resize(block.len() * part.len(), F::ZERO);
    source.fill(Side::Labels, block.clone(), part.clone(), tile);
}
