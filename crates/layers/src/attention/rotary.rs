//! Rotary position embedding of queries and keys (RoPE; Su et al., arXiv 2104.09864).
//!
//! Each pair of values is rotated by an angle proportional to the position, so that the product of
//! a query and a key depends on their distance only.
use kernels::Real;

/// Base of the angles; all periods are below 2π · 10,000 positions.
const ANGLE_BASE: f64 = 10_000.0;

/// Tables of the cosines and sines of `position / 10000^(2i/d)`, i below d/2.
#[derive(Debug)]
pub(super) struct Rotary<F> {
    /// Number of rotated pairs, d/2.
    pair_count: usize,
    cos: Vec<F>,
    sin: Vec<F>,
}

impl<F: Real> Rotary<F> {
    /// Creates tables for a number of positions.
    ///
    /// Rows have `width` values, an even number.
    pub(super) fn new(positions: usize, width: usize) -> Self {
        let pair_count = width / 2;
        let angle = |index: usize| {
            (index / pair_count) as f64 / ANGLE_BASE.powf((index % pair_count) as f64 / pair_count as f64)
        };
        let table = |f: fn(f64) -> f64| {
            (0..positions * pair_count).map(|index| F::from_f64(f(angle(index)))).collect()
        };
        Rotary { pair_count, cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Iterates over the cosines and sines of a position.
    fn cos_and_sin(&self, position: usize) -> impl Iterator<Item = (&F, &F)> {
        let start = position * self.pair_count;
        self.cos[start..][..self.pair_count].iter().zip(&self.sin[start..][..self.pair_count])
    }

    /// Computes `out = factor · R x`: R rotates the pairs `(x_i, x_{i + d/2})`.
    pub(super) fn rotate(&self, position: usize, x: &[F], factor: F, out: &mut [F]) {
        let ((a, b), (out_a, out_b)) = (x.split_at(self.pair_count), out.split_at_mut(self.pair_count));
        for ((out_a, out_b), ((&a, &b), (&cos, &sin))) in
            out_a.iter_mut().zip(out_b).zip(a.iter().zip(b).zip(self.cos_and_sin(position)))
        {
            *out_a = factor * (a * cos - b * sin);
            *out_b = factor * (b * cos + a * sin);
        }
    }

    /// Computes `out += factor · Rᵀ x`, for the backward pass.
    pub(super) fn add_transposed(&self, position: usize, x: &[F], factor: F, out: &mut [F]) {
        let ((a, b), (out_a, out_b)) = (x.split_at(self.pair_count), out.split_at_mut(self.pair_count));
        for ((out_a, out_b), ((&a, &b), (&cos, &sin))) in
            out_a.iter_mut().zip(out_b).zip(a.iter().zip(b).zip(self.cos_and_sin(position)))
        {
            *out_a += factor * (a * cos + b * sin);
            *out_b += factor * (b * cos - a * sin);
        }
    }
}
