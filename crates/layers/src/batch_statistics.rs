//! Statistics of a batch in trained batch norms.
use candle_core::{DType, Tensor};
use kernels::{Real, par_for, parts, parts_mut};
use serde::{Deserialize, Serialize};

use crate::operation::sum_partials;
use crate::tensors::with_slice;
use crate::{Error, Result};

/// Rows that one task processes.
const ROWS_PER_TASK: usize = 64;

/// Mean and variance of a batch in a trained batch norm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchStatistics {
    /// Name of the norm, such as `encoder.layers.0.conv.batch_norm`.
    pub norm: String,
    /// Number of rows N.
    pub rows: usize,
    /// Mean μ of each channel.
    pub mean: Vec<f64>,
    /// Variance `Σ (x - μ)² / N` of each channel.
    pub variance: Vec<f64>,
}

impl BatchStatistics {
    /// Computes the statistics of contiguous rows `[N, W]`, in `f64`.
    pub(crate) fn new(norm: &str, x: &Tensor) -> Result<Self> {
        let (rows, width) = x.dims2()?;
        let [mean, variance] = match x.dtype() {
            DType::F32 => with_slice(x, |x: &[f32]| Ok(moments(x, rows, width)))?,
            DType::F64 => with_slice(x, |x: &[f64]| Ok(moments(x, rows, width)))?,
            other => return Err(Error::shape("x", "f32 or f64", format!("{other:?}"))),
        };
        Ok(BatchStatistics { norm: norm.to_owned(), rows, mean, variance })
    }
}

/// Returns mean and variance of each channel.
fn moments<F: Real>(x: &[F], rows: usize, width: usize) -> [Vec<f64>; 2] {
    let divide = |mut sums: Vec<f64>| {
        sums.iter_mut().for_each(|sum| *sum /= rows as f64);
        sums
    };
    let mean = divide(channel_sums(x, width, |x, _| x));
    let variance = divide(channel_sums(x, width, |x, channel| (x - mean[channel]) * (x - mean[channel])));
    [mean, variance]
}

/// Returns the sum of `term(x, channel)` of each channel.
///
/// The bits do not depend on threads.
fn channel_sums<F: Real>(x: &[F], width: usize, term: impl Fn(f64, usize) -> f64 + Sync) -> Vec<f64> {
    let values_per_task = ROWS_PER_TASK * width;
    let mut partials = vec![0.0; x.len().div_ceil(values_per_task) * width];
    par_for((parts_mut(&mut partials, width), parts(x, values_per_task)), |_, (sums, x)| {
        for row in x.chunks_exact(width) {
            for (channel, (sum, &x)) in sums.iter_mut().zip(row).enumerate() {
                *sum += term(x.to_f64(), channel);
            }
        }
    });
    sum_partials(&partials, width)
}
