//! Reference rates of this machine: a large matrix product, and memory reads.
//!
//! Results are reported relative to them, so that they are comparable between machines.
use std::hint::black_box;
use std::time::Instant;

use candle_core::{Device, Tensor};
use kernels::{par_for, parts};
use rayon::prelude::*;

use super::error::Result;
use super::inputs::noise;
use super::workload::median;

/// Sizes of the reference product: rows, inner dimension, columns.
const ROWS: usize = 2600;
const DEPTH: usize = 512;
const COLUMNS: usize = 8192;
/// Columns per task; larger results are not reused by the allocator, and page faults would count.
const COLUMNS_PER_TASK: usize = 512;
/// Maximum number of stripes of rows.
const MAX_STRIPES: usize = 4;

/// The product `[2600, 512] · [512, 8192]`, both row-major, the library's fastest layout.
pub(crate) struct Sgemm {
    left: Tensor,
    right: Tensor,
}

impl Sgemm {
    /// Allocates the operands.
    ///
    /// # Errors
    /// Errors of candle; the same holds for the other functions.
    pub(crate) fn new() -> Result<Self> {
        let matrix = |purpose, rows, columns| {
            Tensor::from_vec(noise(purpose, rows * columns, 1.0), (rows, columns), &Device::Cpu)
        };
        Ok(Self { left: matrix(101, ROWS, DEPTH)?, right: matrix(102, DEPTH, COLUMNS)? })
    }

    /// Measures GFLOP/s of the product.
    ///
    /// Returns the faster of two ways: the library's threads, and one task per block of columns.
    pub(crate) fn rate(&self) -> Result<f64> {
        Ok(measure_rate(|| self.run_in_library())?.max(measure_rate(|| self.run_in_tasks())?))
    }

    fn run_in_library(&self) -> candle_core::Result<()> {
        self.left.matmul(&self.right).map(drop)
    }

    fn run_in_tasks(&self) -> candle_core::Result<()> {
        // A task multiplies a stripe of rows with a block of columns.
        let stripes = rayon::current_num_threads().min(MAX_STRIPES);
        let (stripe_rows, column_blocks) = (ROWS.div_ceil(stripes), COLUMNS / COLUMNS_PER_TASK);
        let threshold = gemm::get_threading_threshold();
        // One thread per product; the setting is global.
        gemm::set_threading_threshold(usize::MAX);
        let result = (0..stripes * column_blocks).into_par_iter().try_for_each(|task| {
            let (row, column) = (task % stripes * stripe_rows, task / stripes * COLUMNS_PER_TASK);
            let left = self.left.narrow(0, row, stripe_rows.min(ROWS - row))?;
            left.matmul(&self.right.narrow(1, column, COLUMNS_PER_TASK)?).map(drop)
        });
        gemm::set_threading_threshold(threshold);
        result
    }
}

/// Measures GFLOP/s of one product.
fn measure_rate(product: impl FnOnce() -> candle_core::Result<()>) -> Result<f64> {
    let start = Instant::now();
    product()?;
    Ok((2 * ROWS * DEPTH * COLUMNS) as f64 / start.elapsed().as_secs_f64() / 1e9)
}

/// Values per task; small enough that the caches of a core keep little for the next pass.
const VALUES_PER_TASK: usize = 1 << 16;
/// Passes over the values; the first one is a warm-up.
const PASSES: usize = 9;
/// Number of independent sums; their additions overlap.
const PARTIAL_SUMS: usize = 64;

/// Measures GB/s of repeated sums of `count` values on all threads; returns the median.
pub(crate) fn read_rate(count: usize) -> f64 {
    let values = vec![1u32; count];
    let rate = |_| {
        let start = Instant::now();
        par_for(parts(&values, VALUES_PER_TASK), |_, values| {
            black_box(sum_integers(values));
        });
        size_of_val(&*values) as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    let rates: Vec<f64> = (0..PASSES).map(rate).collect();
    median(&rates[1..]).unwrap_or_default()
}

/// Sums integers at the speed of reading; their order is arbitrary.
fn sum_integers(values: &[u32]) -> u32 {
    let mut sums = [0u32; PARTIAL_SUMS];
    let (rows, rest) = values.as_chunks::<PARTIAL_SUMS>();
    for row in rows {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, value| sum.wrapping_add(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_read_and_the_rate_is_finite() {
        assert_eq!(sum_integers(&vec![1; 3 * PARTIAL_SUMS + 5]), 3 * PARTIAL_SUMS as u32 + 5);
        let rate = read_rate(1 << 16);
        assert!(rate > 0.0 && rate.is_finite(), "{rate}");
    }
}
