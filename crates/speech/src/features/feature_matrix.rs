//! `Features`: log-mel matrix of an utterance, its stacking and normalization.

use crate::feature_float::FeatureFloat;

/// Features of an utterance, a matrix `[T, D]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Number of frames, T.
    pub frames: usize,
    /// Features per frame, D.
    pub dim: usize,
    /// Row-major `[T, D]`.
    pub data: Vec<f32>,
}

impl Features {
    /// Returns frame `t`.
    ///
    /// # Panics
    /// If `t` is not below `frames`.
    pub fn frame(&self, t: usize) -> &[f32] {
        &self.data[t * self.dim..(t + 1) * self.dim]
    }

    /// Concatenates `stack` consecutive frames every `stride` frames.
    ///
    /// # Shapes
    /// `[T, D]` to `[ceil(T / stride), stack D]`; frames beyond the last one are zeros (the mean,
    /// after normalization). A `stack` or `stride` of 0 counts as 1.
    pub fn stack(&self, stack: usize, stride: usize) -> Features {
        self.stack_padded(stack, stride, 0)
    }

    /// [`Features::stack`] with rows zero-padded to `min_dim` values.
    ///
    /// Rows of `stack D` values or more are not padded. MLPerf pads rows of 240 values to 256, a
    /// size for which its matrix products are faster.
    ///
    /// ```
    /// let features = speech::Features { frames: 4, dim: 2, data: (1..9).map(|x| x as f32).collect() };
    /// let rows = features.stack_padded(3, 3, 8);
    /// assert_eq!((rows.frames, rows.dim), (2, 8));
    /// assert_eq!(rows.data, [1., 2., 3., 4., 5., 6., 0., 0., 7., 8., 0., 0., 0., 0., 0., 0.]);
    /// ```
    pub fn stack_padded(&self, stack: usize, stride: usize, min_dim: usize) -> Features {
        let (stack, stride) = (stack.max(1), stride.max(1));
        let (frames, stacked_dim) = (self.frames.div_ceil(stride), stack * self.dim);
        let dim = stacked_dim.max(min_dim);
        let mut data = vec![0.0; frames * dim];
        for (t, row) in data.chunks_exact_mut(dim.max(1)).enumerate() {
            let start = t * stride * self.dim;
            let end = (start + stacked_dim).min(self.data.len());
            row[..end - start].copy_from_slice(&self.data[start..end]);
        }
        Features { frames, dim, data }
    }

    /// Scales each column to mean 0 and variance 1.
    ///
    /// Moments are computed in f64. A column whose deviation is below 0.05 is scaled as if it were
    /// 0.05, so that a constant column becomes zeros.
    pub fn normalize(&mut self) {
        normalize_columns(&mut self.data, self.dim, DEFAULT_DIVISOR);
    }
}

/// The divisor of [`Features::normalize`]: the deviation, but at least 0.05.
pub(super) const DEFAULT_DIVISOR: Divisor = Divisor::DeviationAtLeast(0.05);

/// How the divisor of a column follows from its standard deviation.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Divisor {
    /// The deviation, with a lower bound.
    DeviationAtLeast(f64),
    /// The deviation; a constant column becomes zeros.
    ExactDeviation,
    /// The sample deviation, with a divisor of T - 1, plus a constant.
    SampleDeviationPlus(f64),
}

/// Subtracts the mean of each column and divides by its deviation; `[T, dim]`.
///
/// Moments over all T are computed in f64.
pub(super) fn normalize_columns<F: FeatureFloat>(data: &mut [F], dim: usize, divisor: Divisor) {
    if data.is_empty() || dim == 0 {
        return;
    }
    let num_frames = (data.len() / dim) as f64;
    let mut mean = vec![0f64; dim];
    for row in data.chunks_exact(dim) {
        mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x.to_f64());
    }
    mean.iter_mut().for_each(|mean| *mean /= num_frames);
    // Sums of squares, then the factor of each column.
    let mut scale = vec![0f64; dim];
    for row in data.chunks_exact(dim) {
        scale.iter_mut().zip(row).zip(&mean).for_each(|((sum, x), mean)| *sum += (x.to_f64() - mean).powi(2));
    }
    for (column, scale) in scale.iter_mut().enumerate() {
        let deviation = (*scale / num_frames).sqrt();
        *scale = match divisor {
            Divisor::DeviationAtLeast(minimum) => 1.0 / deviation.max(minimum),
            // Rounding the mean would give a constant column a deviation.
            Divisor::ExactDeviation if deviation == 0.0 || is_constant(data, dim, column) => 0.0,
            Divisor::ExactDeviation => 1.0 / deviation,
            // One frame differs from its mean by rounding only.
            Divisor::SampleDeviationPlus(constant) => {
                1.0 / ((*scale / (num_frames - 1.0).max(1.0)).sqrt() + constant)
            }
        };
    }
    for row in data.chunks_exact_mut(dim) {
        for ((x, mean), scale) in row.iter_mut().zip(&mean).zip(&scale) {
            *x = F::cast((x.to_f64() - mean) * scale);
        }
    }
}

fn is_constant<F: FeatureFloat>(data: &[F], dim: usize, column: usize) -> bool {
    data.chunks_exact(dim).all(|row| row[column] == data[column])
}
