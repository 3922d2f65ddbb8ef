//! What a front end makes.

use crate::fft_float::FftFloat;

/// A plane of feature frames.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Number of frames, T.
    pub frames: usize,
    /// Features a frame, D.
    pub dim: usize,
    /// Row-major `[T, D]`.
    pub data: Vec<f32>,
}

impl Features {
    /// One frame.
    ///
    /// # Panics
    /// If `t` is not below `frames`.
    pub fn frame(&self, t: usize) -> &[f32] {
        &self.data[t * self.dim..(t + 1) * self.dim]
    }

    /// Concatenates `stack` consecutive frames every `stride` frames.
    ///
    /// # Shapes
    /// `[T, D]` to `[ceil(T / stride), stack D]`; frames beyond the last one are zeros (the mean, after normalisation). A `stack`
    /// or `stride` of 0 is taken as 1.
    pub fn stack(&self, stack: usize, stride: usize) -> Features {
        self.stack_into(stack, stride, 0)
    }

    /// [`Features::stack`] into rows of `channels` values, those beyond `stack D` zeros; a number of channels below that is taken as
    /// `stack D`.
    ///
    /// MLPerf's 240 channels become 256 so that products have even sizes.
    ///
    /// ```
    /// let plane = speech::Features { frames: 4, dim: 2, data: (1..9).map(|x| x as f32).collect() };
    /// let rows = plane.stack_into(3, 3, 8);
    /// assert_eq!((rows.frames, rows.dim), (2, 8));
    /// assert_eq!(rows.data, [1., 2., 3., 4., 5., 6., 0., 0., 7., 8., 0., 0., 0., 0., 0., 0.]);
    /// ```
    pub fn stack_into(&self, stack: usize, stride: usize, channels: usize) -> Features {
        let (stack, stride) = (stack.max(1), stride.max(1));
        let (frames, width) = (self.frames.div_ceil(stride), stack * self.dim);
        let dim = width.max(channels);
        let mut data = vec![0.0; frames * dim];
        for (t, row) in data.chunks_exact_mut(dim.max(1)).enumerate() {
            let first = t * stride * self.dim;
            let last = (first + width).min(self.data.len());
            row[..last - first].copy_from_slice(&self.data[first..last]);
        }
        Features { frames, dim, data }
    }

    /// Brings each column to mean 0 and variance 1.
    ///
    /// Moments are taken in f64. A column whose deviation is below 0.05 is only centred and scaled as if it were 0.05, so that a
    /// constant column becomes zeros.
    pub fn normalize(&mut self) {
        normalise_columns(&mut self.data, self.dim, LEAST);
    }

    /// Brings each column to mean 0 and variance 1, however small its deviation is; a constant column becomes zeros.
    ///
    /// Moments are taken in f64; the variance is that of the population, the sum of squares over T.
    pub fn standardize(&mut self) {
        normalise_columns(&mut self.data, self.dim, Deviation::Exact);
    }
}

/// Least deviation of [`Features::normalize`].
pub(super) const LEAST: Deviation = Deviation::AtLeast(0.05);

/// What a column's values are divided by.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Deviation {
    /// Their deviation, but at least this.
    AtLeast(f64),
    /// Their deviation; a constant column becomes zeros.
    Exact,
}

/// Brings each column of `[T, dim]` values to mean 0 and divides it by its deviation over all T, moments taken in f64.
pub(super) fn normalise_columns<F: FftFloat>(data: &mut [F], dim: usize, deviation: Deviation) {
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

fn is_constant<F: FftFloat>(data: &[F], dim: usize, m: usize) -> bool {
    data.chunks_exact(dim).all(|row| row[m] == data[m])
}
