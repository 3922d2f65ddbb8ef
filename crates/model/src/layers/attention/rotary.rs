//! Rotation of rows by their place.
use kernels::Real;

/// Slowest rotation: once in 2π · 10,000 places.
const BASE: f64 = 10_000.0;

/// Cosines and sines of `place / 10000^(2i/d)`, i below d/2.
#[derive(Debug)]
pub(super) struct Rotary<F> {
    half: usize,
    cos: Vec<F>,
    sin: Vec<F>,
}

impl<F: Real> Rotary<F> {
    /// For places below `places` and rows of `width` values, an even number.
    pub fn new(places: usize, width: usize) -> Self {
        let half = width / 2;
        let angle = |at: usize| (at / half) as f64 / BASE.powf((at % half) as f64 / half as f64);
        let table = |f: fn(f64) -> f64| (0..places * half).map(|at| F::from_f64(f(angle(at)))).collect();
        Rotary { half, cos: table(f64::cos), sin: table(f64::sin) }
    }

    fn at(&self, place: usize) -> impl Iterator<Item = (&F, &F)> {
        let from = place * self.half;
        self.cos[from..][..self.half].iter().zip(&self.sin[from..][..self.half])
    }

    /// `out = factor · R x`: pairs `(x_i, x_{i + d/2})` are turned by the angles of the place.
    pub fn turn(&self, place: usize, x: &[F], factor: F, out: &mut [F]) {
        let ((a, b), (to_a, to_b)) = (x.split_at(self.half), out.split_at_mut(self.half));
        for ((to_a, to_b), ((&a, &b), (&cos, &sin))) in
            to_a.iter_mut().zip(to_b).zip(a.iter().zip(b).zip(self.at(place)))
        {
            *to_a = factor * (a * cos - b * sin);
            *to_b = factor * (b * cos + a * sin);
        }
    }

    /// `out += factor · Rᵀ x`
    pub fn add_back(&self, place: usize, x: &[F], factor: F, out: &mut [F]) {
        let ((a, b), (to_a, to_b)) = (x.split_at(self.half), out.split_at_mut(self.half));
        for ((to_a, to_b), ((&a, &b), (&cos, &sin))) in
            to_a.iter_mut().zip(to_b).zip(a.iter().zip(b).zip(self.at(place)))
        {
            *to_a += factor * (a * cos + b * sin);
            *to_b += factor * (b * cos - a * sin);
        }
    }
}
