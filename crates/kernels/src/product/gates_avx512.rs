//! AVX-512 product of recurrent LSTM weights ([`GateProduct`]) with a few rows.
//!
//! Each row and panel has one register of sums; a kernel has at most 24.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::gates::{GateProduct, UNITS_PER_STRIP};
use crate::simd::Avx512;

/// Prefetch distance of the panels in steps; they come from another core's cache or from memory.
const PREFETCH_DISTANCE: usize = 24;

/// Calls the kernel for a number of rows.
macro_rules! kernel_of {
    ($rows:expr, $P:literal, $SHARED_ROWS:literal, $product:expr, $($M:literal)*) => {
        match $rows {
            // SAFETY: the token that the caller holds proves the features.
            $($M => unsafe { kernel::<$M, $P, $SHARED_ROWS>($product) },)*
            rows => unreachable!("no kernel has {rows} rows and {} panels", $P),
        }
    };
}

/// Adds the product of 1, 2 or 4 panels with 1 to 8 rows to `out`.
///
/// 4 panels require at most 6 rows; 2 panels that share the rows are only used for 7 or 8 rows.
pub(crate) fn multiply_panels(_token: Avx512, rows: usize, panels: usize, product: GateProduct<f32>) {
    match (panels, product.left.panel_stride == 0) {
        (4, true) => kernel_of!(rows, 4, true, product, 1 2 3 4 5 6),
        (2, true) => kernel_of!(rows, 2, true, product, 7 8),
        (4, false) => kernel_of!(rows, 4, false, product, 1 2 3 4 5 6),
        (2, false) => kernel_of!(rows, 2, false, product, 1 2 3 4 5 6 7 8),
        (1, _) => kernel_of!(rows, 1, false, product, 1 2 3 4 5 6 7 8),
        _ => unreachable!("no kernel has {panels} panels"),
    }
}

/// Adds the product of M rows with P panels to `out`.
///
/// With `SHARED_ROWS`, all panels share the rows.
#[target_feature(enable = "avx512f,fma")]
fn kernel<const M: usize, const P: usize, const SHARED_ROWS: bool>(product: GateProduct<f32>) {
    let GateProduct { left, right, steps, out } = product;
    let last_step = steps.saturating_sub(1);
    assert!(
        (P - 1) * left.panel_stride + last_step * left.width + M <= left.data.len(),
        "the rows have all steps"
    );
    assert!(
        (P - 1) * right.panel_stride + steps * UNITS_PER_STRIP <= right.data.len(),
        "the panels have all steps"
    );
    let mut sums = [[_mm512_setzero_ps(); P]; M];
    let (mut row_pointer, mut panel_pointer) = (left.data.as_ptr(), right.data.as_ptr());
    // Prefetching an unmapped address would cost a page walk.
    let last_prefetch =
        panel_pointer.wrapping_add(right.data.len() - (P - 1) * right.panel_stride - UNITS_PER_STRIP);
    for _ in 0..steps {
        let prefetch_address =
            panel_pointer.wrapping_add(PREFETCH_DISTANCE * UNITS_PER_STRIP).min(last_prefetch);
        let columns: [_; P] = std::array::from_fn(|panel| {
            _mm_prefetch::<_MM_HINT_T0>(prefetch_address.wrapping_add(panel * right.panel_stride).cast());
            // SAFETY: inside of `right.data` at each step, as checked.
            unsafe { _mm512_loadu_ps(panel_pointer.wrapping_add(panel * right.panel_stride)) }
        });
        for (row, sums) in sums.iter_mut().enumerate() {
            for (panel, (sum, column)) in sums.iter_mut().zip(columns).enumerate() {
                let address =
                    row_pointer.wrapping_add(if SHARED_ROWS { 0 } else { panel * left.panel_stride } + row);
                // SAFETY: inside of `left.data` at each step, as checked.
                *sum = _mm512_fmadd_ps(_mm512_set1_ps(unsafe { *address }), column, *sum);
            }
        }
        (row_pointer, panel_pointer) =
            (row_pointer.wrapping_add(left.width), panel_pointer.wrapping_add(UNITS_PER_STRIP));
    }
    for (row, sums) in sums.into_iter().enumerate() {
        for (panel, sum) in sums.into_iter().enumerate() {
            let start = row * out.row_stride + panel * out.panel_stride;
            let target: &mut [f32; UNITS_PER_STRIP] =
                out.data[start..].first_chunk_mut().expect("a place for all lanes");
            // SAFETY: the array has as many elements as a register.
            unsafe {
                _mm512_storeu_ps(target.as_mut_ptr(), _mm512_add_ps(_mm512_loadu_ps(target.as_ptr()), sum))
            };
        }
    }
}
