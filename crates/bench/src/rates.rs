//! Reference rates of the machine: one large product by candle, and how fast numbers are read.
use std::hint::black_box;
use std::time::Instant;

use candle_core::{Device, Tensor};
use kernels::{par_for, parts};
use rayon::prelude::*;

use super::answer::median;
use super::error::Result;
use super::inputs::noise;

const ROWS: usize = 2600;
const DEPTH: usize = 512;
const COLUMNS: usize = 8192;
/// Columns of a task: few enough that its result is not new memory from the system each time.
const TASK: usize = 512;

/// *[2600 x 512] · [512 x 8192]*, both row-major, which the library likes best.
pub struct Sgemm {
    left: Tensor,
    right: Tensor,
}

impl Sgemm {
    /// Makes the operands.
    ///
    /// # Errors
    /// Candle's own errors, here and below.
    pub fn new() -> Result<Self> {
        let matrix = |purpose, rows, columns| {
            Tensor::from_vec(noise(purpose, rows * columns, 1.0), (rows, columns), &Device::Cpu)
        };
        Ok(Self { left: matrix(101, ROWS, DEPTH)?, right: matrix(102, DEPTH, COLUMNS)? })
    }

    /// GFLOP/s of one product, the faster of two ways to share it: the library's own, and a part for each thread alone.
    pub fn rate(&self) -> Result<f64> {
        Ok(rate(|| self.whole())?.max(rate(|| self.parts())?))
    }

    fn whole(&self) -> candle_core::Result<()> {
        self.left.matmul(&self.right).map(drop)
    }

    fn parts(&self) -> candle_core::Result<()> {
        let stripes = rayon::current_num_threads().min(4);
        let (rows, columns) = (ROWS.div_ceil(stripes), COLUMNS / TASK);
        let threshold = gemm::get_threading_threshold();
        gemm::set_threading_threshold(usize::MAX);
        let done = (0..stripes * columns).into_par_iter().try_for_each(|task| {
            let (first, column) = (task % stripes * rows, task / stripes * TASK);
            let left = self.left.narrow(0, first, rows.min(ROWS - first))?;
            left.matmul(&self.right.narrow(1, column, TASK)?).map(drop)
        });
        gemm::set_threading_threshold(threshold);
        done
    }
}

fn rate(product: impl FnOnce() -> candle_core::Result<()>) -> Result<f64> {
    let start = Instant::now();
    product()?;
    Ok((2 * ROWS * DEPTH * COLUMNS) as f64 / start.elapsed().as_secs_f64() / 1e9)
}

/// Numbers that a task reads: few enough that both caches near a core see little of the next pass.
const PIECE: usize = 1 << 16;
/// Passes over the numbers; the first one does not count.
const PASSES: usize = 9;
/// Sums side by side.
const LANES: usize = 64;

/// GB/s of adding up `count` numbers by all threads, again and again: the median pass.
pub fn read_rate(count: usize) -> f64 {
    let values = vec![1u32; count];
    let rate = |_| {
        let start = Instant::now();
        par_for(parts(&values, PIECE), |_, piece| {
            black_box(sum(piece));
        });
        size_of_val(&*values) as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    let rates: Vec<f64> = (0..PASSES).map(rate).collect();
    median(&rates[1..]).unwrap_or_default()
}

/// Whole numbers, whose sum may be taken in any order, so that it goes as fast as reading.
fn sum(values: &[u32]) -> u32 {
    let mut sums = [0u32; LANES];
    let (rows, rest) = values.as_chunks::<LANES>();
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
    fn every_number_is_read_and_time_passes() {
        assert_eq!(sum(&vec![1; 3 * LANES + 5]), 3 * LANES as u32 + 5);
        let rate = read_rate(1 << 16);
        assert!(rate > 0.0 && rate.is_finite(), "{rate}");
    }
}
