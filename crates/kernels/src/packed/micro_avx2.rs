//! AVX2 micro-kernels of matrix products, for `f32` and `f64`.
//!
//! Up to 6 rows by two registers of columns use 12 registers of sums, two of the right operand,
//! and one for a broadcast element of the left operand. Fewer rows use more columns at once, for as
//! many independent sums.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::panels::{OutputTile, RightPanels};
use crate::{Accumulate, simd::Avx2Fma};

/// Maximum rows of a tile.
pub(crate) const MR: usize = 6;
/// Registers of a right micro-panel.
const REGISTERS_PER_PANEL: usize = 2;

/// Returns the number of right micro-panels that a tile covers.
pub(crate) fn panels(rows: usize) -> usize {
    match rows {
        0..=1 => 4,
        2..=3 => 2,
        _ => 1,
    }
}

/// Calls a tile function for a number of rows.
macro_rules! tile_of {
    ($rows:expr, $tile:ident, $R:literal, $arguments:tt, $($M:literal)*) => {
        match $rows {
            // SAFETY: the token that the caller holds proves the features.
            $($M => unsafe { $tile::<$M, $R> $arguments },)*
            rows => unreachable!("no micro-kernel has {rows} rows and {} registers", $R),
        }
    };
}

/// Defines the micro-kernel of a type: `$kernel` selects the registers, `$tile` computes.
macro_rules! micro_kernel {
    ($kernel:ident, $tile:ident, $F:ty, $lanes:literal,
        [$zero:ident $set1:ident $load:ident $fma:ident $add:ident $store:ident]) => {
        /// Computes a tile of `rows` rows and at most [`panels`] right micro-panels.
        ///
        /// The left micro-panel has `rows` rows.
        pub(crate) fn $kernel(
            _token: Avx2Fma,
            rows: usize,
            left: &[$F],
            right: RightPanels<$F>,
            output: OutputTile<$F>,
        ) {
            match output.cols.div_ceil($lanes) {
                0..=1 => tile_of!(rows, $tile, 1, (left, right, output), 1 2 3 4 5 6),
                2 => tile_of!(rows, $tile, 2, (left, right, output), 1 2 3 4 5 6),
                3..=4 => tile_of!(rows, $tile, 4, (left, right, output), 1 2 3),
                _ => tile_of!(rows, $tile, 8, (left, right, output), 1),
            }
        }

        /// Computes M rows by R registers of columns.
        #[target_feature(enable = "avx2,fma")]
        fn $tile<const M: usize, const R: usize>(left: &[$F], right: RightPanels<$F>, output: OutputTile<$F>) {
            let RightPanels { data, step_stride, panel_stride } = right;
            let OutputTile { out, rows, cols, stride, accumulate } = output;
            let left = left.as_chunks::<M>().0;
            // Position of each register of columns relative to a step.
            let offsets: [usize; R] = std::array::from_fn(|register| {
                register / REGISTERS_PER_PANEL * panel_stride + register % REGISTERS_PER_PANEL * $lanes
            });
            let last_step = left.len().saturating_sub(1) * step_stride;
            assert!(
                offsets.iter().all(|offset| last_step + offset + $lanes <= data.len()),
                "the right side has all steps"
            );
            let mut sums = [[$zero(); R]; M];
            let mut right = data.as_ptr();
            for left in left {
                let columns: [_; R] = std::array::from_fn(|register| {
                    // SAFETY: inside `data` at each step, as checked.
                    unsafe { $load(right.wrapping_add(offsets[register])) }
                });
                right = right.wrapping_add(step_stride);
                for (sums, &left) in sums.iter_mut().zip(left) {
                    let left = $set1(left);
                    for (sum, column) in sums.iter_mut().zip(columns) {
                        *sum = $fma(left, column, *sum);
                    }
                }
            }
            for (row, sums) in sums.into_iter().enumerate().take(rows) {
                let to = &mut out[row * stride..][..cols];
                for (to, sum) in to.chunks_mut($lanes).zip(sums) {
                    // SAFETY: the array has as many elements as a register.
                    let write = |to: &mut [$F; $lanes]| unsafe {
                        let old = match accumulate {
                            Accumulate::Add => $load(to.as_ptr()),
                            Accumulate::Replace => $zero(),
                        };
                        $store(to.as_mut_ptr(), $add(old, sum));
                    };
                    if let Some(to) = to.first_chunk_mut() {
                        write(to);
                    } else {
                        let mut lanes = [0.0; $lanes];
                        lanes[..to.len()].copy_from_slice(to);
                        write(&mut lanes);
                        to.copy_from_slice(&lanes[..to.len()]);
                    }
                }
            }
        }
    };
}

micro_kernel!(kernel_f32, tile_f32, f32, 8,
    [_mm256_setzero_ps _mm256_set1_ps _mm256_loadu_ps _mm256_fmadd_ps _mm256_add_ps _mm256_storeu_ps]);
micro_kernel!(kernel_f64, tile_f64, f64, 4,
    [_mm256_setzero_pd _mm256_set1_pd _mm256_loadu_pd _mm256_fmadd_pd _mm256_add_pd _mm256_storeu_pd]);
