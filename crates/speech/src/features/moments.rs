//! Mean and deviation of columns.

use crate::real::Real;

/// What a column's values are divided by.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Deviation {
    /// Their deviation, but at least this.
    AtLeast(f64),
    /// Their deviation; a constant column becomes zeros.
    Exact,
}

/// Brings each column of `[T, dim]` values to mean 0 and divides it by its deviation over all T, moments taken in f64.
pub(super) fn normalise<F: Real>(data: &mut [F], dim: usize, deviation: Deviation) {
    if data.is_empty() || dim == 0 {
        return;
    }
    let n = (data.len() / dim) as f64;
    let mut mean = vec![0f64; dim];
    for row in data.chunks_exact(dim) {
        mean.iter_mut().zip(row).for_each(|(m, x)| *m += x.wide());
    }
    mean.iter_mut().for_each(|m| *m /= n);
    let mut scale = vec![0f64; dim];
    for row in data.chunks_exact(dim) {
        scale.iter_mut().zip(row).zip(&mean).for_each(|((v, x), m)| *v += (x.wide() - m).powi(2));
    }
    for (m, v) in scale.iter_mut().enumerate() {
        let found = (*v / n).sqrt();
        *v = match deviation {
            Deviation::AtLeast(least) => 1.0 / found.max(least),
            // A mean that had to be rounded would make a deviation of a constant column.
            Deviation::Exact if found == 0.0 || is_constant(data, dim, m) => 0.0,
            Deviation::Exact => 1.0 / found,
        };
    }
    for row in data.chunks_exact_mut(dim) {
        for ((x, m), s) in row.iter_mut().zip(&mean).zip(&scale) {
            *x = F::of((x.wide() - m) * s);
        }
    }
}

fn is_constant<F: Real>(data: &[F], dim: usize, m: usize) -> bool {
    data.chunks_exact(dim).all(|row| row[m] == data[m])
}
