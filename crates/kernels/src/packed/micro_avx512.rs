//! AVX-512 micro-kernels of matrix products, for `f32` and `f64`.
//!
//! Up to 14 rows by two registers of columns use 28 registers of sums, two of the right operand,
//! and one for a broadcast element of the left operand. Fewer rows use more columns at once, for as
//! many independent sums.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::panels::{OutputTile, RightPanels};
use crate::{Accumulate, avx512::lane_mask, simd::Avx512};

/// Maximum rows of a tile.
pub(crate) const MR: usize = 14;
/// Registers of a right micro-panel.
const REGISTERS_PER_PANEL: usize = 2;
/// Prefetch distance of the right operand, in steps.
const PREFETCH_DISTANCE: usize = 16;

/// Returns the number of right micro-panels that a tile covers.
pub(crate) fn panels(rows: usize) -> usize {
    match rows {
        0..=2 => 4,
        3..=5 => 2,
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
    ($kernel:ident, $tile:ident, $F:ty, $lanes:literal, $mask:ty,
        [$zero:ident $set1:ident $load:ident $fma:ident $add:ident $masked_load:ident $masked_store:ident]) => {
        /// Computes a tile of `rows` rows and at most [`panels`] right micro-panels.
        ///
        /// The left micro-panel has `rows` rows. `prefetch` is loaded into the second-level cache.
        pub(crate) fn $kernel(
            _token: Avx512,
            rows: usize,
            left: &[$F],
            right: RightPanels<$F>,
            output: OutputTile<$F>,
            prefetch: &[$F],
        ) {
            match output.cols.div_ceil($lanes) {
                0..=1 => tile_of!(rows, $tile, 1, (left, right, output, prefetch), 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                2 => tile_of!(rows, $tile, 2, (left, right, output, prefetch), 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                3..=4 => tile_of!(rows, $tile, 4, (left, right, output, prefetch), 1 2 3 4 5),
                _ => tile_of!(rows, $tile, 8, (left, right, output, prefetch), 1 2),
            }
        }

        /// Computes M rows by R registers of columns.
        #[target_feature(enable = "avx512f,fma")]
        fn $tile<const M: usize, const R: usize>(
            left: &[$F],
            right: RightPanels<$F>,
            output: OutputTile<$F>,
            prefetch: &[$F],
        ) {
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
            for row in 0..rows {
                let to = out[row * stride..].as_ptr();
                (0..R).for_each(|register| {
                    _mm_prefetch::<_MM_HINT_T0>(to.wrapping_add(register * $lanes).cast())
                });
            }
            let mut right = data.as_ptr();
            // Prefetching an unmapped address would cost a page walk.
            let last_prefetch = right.wrapping_add(data.len() - offsets[R - 1] - $lanes);
            let prefetch = if prefetch.is_empty() { left.as_flattened() } else { prefetch };
            let (mut prefetch_address, prefetch_stride) =
                (prefetch.as_ptr(), prefetch.len().div_ceil(left.len().max(1)));
            for left in left {
                let right_prefetch = right.wrapping_add(PREFETCH_DISTANCE * step_stride).min(last_prefetch);
                let columns: [_; R] = std::array::from_fn(|register| {
                    _mm_prefetch::<_MM_HINT_T0>(right_prefetch.wrapping_add(offsets[register]).cast());
                    // SAFETY: inside `data` at each step, as checked.
                    unsafe { $load(right.wrapping_add(offsets[register])) }
                });
                _mm_prefetch::<_MM_HINT_T1>(prefetch_address.cast());
                right = right.wrapping_add(step_stride);
                prefetch_address = prefetch_address.wrapping_add(prefetch_stride);
                for (sums, &left) in sums.iter_mut().zip(left) {
                    let left = $set1(left);
                    for (sum, column) in sums.iter_mut().zip(columns) {
                        *sum = $fma(left, column, *sum);
                    }
                }
            }
            for (row, sums) in sums.into_iter().enumerate().take(rows) {
                let to = &mut out[row * stride..][..cols];
                for (register, sum) in sums.into_iter().enumerate() {
                    let mask = lane_mask(cols.saturating_sub(register * $lanes).min($lanes)) as $mask;
                    let to = to.as_mut_ptr().wrapping_add(register * $lanes);
                    // SAFETY: the mask contains only lanes that have elements.
                    unsafe {
                        let old = match accumulate {
                            Accumulate::Add => $masked_load(mask, to),
                            Accumulate::Replace => $zero(),
                        };
                        $masked_store(to, mask, $add(old, sum));
                    }
                }
            }
        }
    };
}

micro_kernel!(kernel_f32, tile_f32, f32, 16, __mmask16,
    [_mm512_setzero_ps _mm512_set1_ps _mm512_loadu_ps _mm512_fmadd_ps _mm512_add_ps
        _mm512_maskz_loadu_ps _mm512_mask_storeu_ps]);
micro_kernel!(kernel_f64, tile_f64, f64, 8, __mmask8,
    [_mm512_setzero_pd _mm512_set1_pd _mm512_loadu_pd _mm512_fmadd_pd _mm512_add_pd
        _mm512_maskz_loadu_pd _mm512_mask_storeu_pd]);
