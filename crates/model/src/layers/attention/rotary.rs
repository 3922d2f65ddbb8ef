//! Rotary position embedding of queries and keys (RoPE; Su et al., arXiv 2104.09864).
//!
//! Each pair of values is rotated by an angle proportional to the position, so that the product of
//! a query and a key depends on their distance only.
use kernels::Real;

/// Base of the angles; all periods are below 2π · 10,000 positions.
const BASE: f64 = 10_000.0;

/// Cosines and sines of `position / 10000^(2i/d)`, i below d/2.
#[derive(Debug)]
pub(super) struct Rotary<F> {
    half: usize,
    cos: Vec<F>,
    sin: Vec<F>,
}

impl<F: Real> Rotary<F> {
    /// Creates tables for a number of positions.
    ///
    /// Rows have `width` values, an even number.
    pub fn new(positions: usize, width: usize) -> Self {
        let half = width / 2;
        let angle = |at: usize| (at / half) as f64 / BASE.powf((at % half) as f64 / half as f64);
        let table = |f: fn(f64) -> f64| (0..positions * half).map(|at| F::from_f64(f(angle(at)))).collect();
        Rotary { half, cos: table(f64::cos), sin: table(f64::sin) }
    }

    fn at(&self, position: usize) -> impl Iterator<Item = (&F, &F)> {
        let from = position * self.half;
        self.cos[from..][..self.half].iter().zip(&self.sin[from..][..self.half])
    }

    /// Computes `out = factor · R x`: R rotates the pairs `(x_i, x_{i + d/2})`.
    pub fn rotate(&self, position: usize, x: &[F], factor: F, out: &mut [F]) {
        let ((a, b), (to_a, to_b)) = (x.split_at(self.half), out.split_at_mut(self.half));
        for ((to_a, to_b), ((&a, &b), (&cos, &sin))) in
            to_a.iter_mut().zip(to_b).zip(a.iter().zip(b).zip(self.at(position)))
        {
            *to_a = factor * (a * cos - b * sin);
            *to_b = factor * (b * cos + a * sin);
        }
    }

    /// Computes `out += factor · Rᵀ x`, for the backward pass.
    pub fn add_transposed(&self, position: usize, x: &[F], factor: F, out: &mut [F]) {
        let ((a, b), (to_a, to_b)) = (x.split_at(self.half), out.split_at_mut(self.half));
        for ((to_a, to_b), ((&a, &b), (&cos, &sin))) in
            to_a.iter_mut().zip(to_b).zip(a.iter().zip(b).zip(self.at(position)))
        {
            *to_a += factor * (a * cos + b * sin);
            *to_b += factor * (b * cos - a * sin);
        }
    }
}
