//! Micro-kernels by hand for AVX-512: up to 14 rows by two registers of columns in 28 registers of sums, two of the right
//! side, and a row of the left one everywhere in another. Fewer rows take more columns at once, so that as many sums are
//! under way.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::panels::{OutputTile, Right};
use crate::{Accumulate, avx512::filled, simd::Avx512};

/// Rows of a tile.
pub(crate) const MR: usize = 14;
/// Registers of a right micro-panel.
const WIDE: usize = 2;
/// Steps that the right side is called for in advance.
const PREFETCH_DISTANCE: usize = 16;

/// Right micro-panels that a tile of so many rows takes at once.
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

/// Writes the micro-kernel of a type: `$enter` chooses the registers for the place, `$tile` computes.
macro_rules! micro_kernel {
    ($enter:ident, $tile:ident, $F:ty, $lanes:literal, $mask:ty,
        [$zero:ident $set1:ident $load:ident $fma:ident $add:ident $masked_load:ident $masked_store:ident]) => {
        /// A tile of `rows` rows, as wide as the left micro-panel, and at most [`panels`] right micro-panels. What is
        /// `ahead` will be needed soon.
        pub(crate) fn $enter(
            _proof: Avx512,
            rows: usize,
            left: &[$F],
            right: Right<$F>,
            place: OutputTile<$F>,
            ahead: &[$F],
        ) {
            match place.cols.div_ceil($lanes) {
                0..=1 => tile_of!(rows, $tile, 1, (left, right, place, ahead), 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                2 => tile_of!(rows, $tile, 2, (left, right, place, ahead), 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                3..=4 => tile_of!(rows, $tile, 4, (left, right, place, ahead), 1 2 3 4 5),
                _ => tile_of!(rows, $tile, 8, (left, right, place, ahead), 1 2),
            }
        }

        /// M rows by R registers of columns.
        #[target_feature(enable = "avx512f,fma")]
        fn $tile<const M: usize, const R: usize>(
            left: &[$F],
            right: Right<$F>,
            place: OutputTile<$F>,
            ahead: &[$F],
        ) {
            let Right { data, step, panel } = right;
            let OutputTile { out, rows, cols, stride, how } = place;
            let left = left.as_chunks::<M>().0;
            let at: [usize; R] = std::array::from_fn(|part| part / WIDE * panel + part % WIDE * $lanes);
            let last = left.len().saturating_sub(1) * step;
            assert!(at.iter().all(|at| last + at + $lanes <= data.len()), "the right side has all steps");
            let mut sums = [[$zero(); R]; M];
            for row in 0..rows {
                let to = out[row * stride..].as_ptr();
                (0..R).for_each(|part| _mm_prefetch::<_MM_HINT_T0>(to.wrapping_add(part * $lanes).cast()));
            }
            let mut right = data.as_ptr();
            // A call for what nobody owns would take as long as a walk through all pages.
            let end = right.wrapping_add(data.len() - at[R - 1] - $lanes);
            let ahead = if ahead.is_empty() { left.as_flattened() } else { ahead };
            let (mut next, pace) = (ahead.as_ptr(), ahead.len().div_ceil(left.len().max(1)));
            for left in left {
                let soon = right.wrapping_add(PREFETCH_DISTANCE * step).min(end);
                let columns: [_; R] = std::array::from_fn(|part| {
                    _mm_prefetch::<_MM_HINT_T0>(soon.wrapping_add(at[part]).cast());
                    // SAFETY: inside of `data` at each step, as checked.
                    unsafe { $load(right.wrapping_add(at[part])) }
                });
                _mm_prefetch::<_MM_HINT_T1>(next.cast());
                (right, next) = (right.wrapping_add(step), next.wrapping_add(pace));
                for (sums, &left) in sums.iter_mut().zip(left) {
                    let left = $set1(left);
                    for (sum, column) in sums.iter_mut().zip(columns) {
                        *sum = $fma(left, column, *sum);
                    }
                }
            }
            for (row, sums) in sums.into_iter().enumerate().take(rows) {
                let to = &mut out[row * stride..][..cols];
                for (part, sum) in sums.into_iter().enumerate() {
                    let mask = filled(cols.saturating_sub(part * $lanes).min($lanes)) as $mask;
                    let to = to.as_mut_ptr().wrapping_add(part * $lanes);
                    // SAFETY: the mask holds as many lanes as there are elements from here on; no other is touched.
                    unsafe {
                        let old = match how {
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

micro_kernel!(of_f32, tile_f32, f32, 16, __mmask16,
    [_mm512_setzero_ps _mm512_set1_ps _mm512_loadu_ps _mm512_fmadd_ps _mm512_add_ps
        _mm512_maskz_loadu_ps _mm512_mask_storeu_ps]);
micro_kernel!(of_f64, tile_f64, f64, 8, __mmask8,
    [_mm512_setzero_pd _mm512_set1_pd _mm512_loadu_pd _mm512_fmadd_pd _mm512_add_pd
        _mm512_maskz_loadu_pd _mm512_mask_storeu_pd]);
