//! The yardstick: one large product by a matrix library, candle's, and the threads that the loss uses.
use std::time::Instant;

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::error::Result;
use super::noise::noise;

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
