//! AVX-512 product of recurrent LSTM weights ([`GatePanels`]) with a few rows.
//!
//! Each row and panel has one register of sums; a kernel has at most 24.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::gates::{GatePanels, UNITS_PER_STRIP};
use crate::simd::Avx512;

/// Prefetch distance of the panels in steps; they come from another core's cache or from memory.
const PREFETCH_DISTANCE: usize = 24;

/// Calls the kernel for a number of rows.
macro_rules! kernel_of {
    ($rows:expr, $P:literal, $SAME:literal, $streams:expr, $($M:literal)*) => {
        match $rows {
            // SAFETY: the token that the caller holds proves the features.
            $($M => unsafe { kernel::<$M, $P, $SAME>($streams) },)*
            rows => unreachable!("no kernel has {rows} rows and {} panels", $P),
        }
    };
}

/// Multiplies `panels` = 1, 2 or 4 panels; 4 require at most 6 rows.
pub(crate) fn multiply_panels(_token: Avx512, rows: usize, panels: usize, streams: GatePanels<f32>) {
    match (panels, streams.left_apart == 0) {
        (4, true) => kernel_of!(rows, 4, true, streams, 1 2 3 4 5 6),
        (2, true) => kernel_of!(rows, 2, true, streams, 7 8),
        (4, false) => kernel_of!(rows, 4, false, streams, 1 2 3 4 5 6),
        (2, false) => kernel_of!(rows, 2, false, streams, 1 2 3 4 5 6 7 8),
        _ => kernel_of!(rows, 1, false, streams, 1 2 3 4 5 6 7 8),
    }
}

/// Multiplies M rows with P panels; with `SAME`, all panels share the rows.
#[target_feature(enable = "avx512f,fma")]
fn kernel<const M: usize, const P: usize, const SAME: bool>(streams: GatePanels<f32>) {
    let GatePanels { left, width, left_apart, right, right_apart, steps, out, stride, out_apart } = streams;
    let last = steps.saturating_sub(1);
    assert!((P - 1) * left_apart + last * width + M <= left.len(), "the rows have all steps");
    assert!((P - 1) * right_apart + steps * UNITS_PER_STRIP <= right.len(), "the panels have all steps");
    let mut sums = [[_mm512_setzero_ps(); P]; M];
    let (mut rows, mut lanes) = (left.as_ptr(), right.as_ptr());
    // Prefetching an unmapped address would cost a page walk.
    let end = lanes.wrapping_add(right.len() - (P - 1) * right_apart - UNITS_PER_STRIP);
    for _ in 0..steps {
        let soon = lanes.wrapping_add(PREFETCH_DISTANCE * UNITS_PER_STRIP).min(end);
        let columns: [_; P] = std::array::from_fn(|panel| {
            _mm_prefetch::<_MM_HINT_T0>(soon.wrapping_add(panel * right_apart).cast());
            // SAFETY: inside of `right` at each step, as checked.
            unsafe { _mm512_loadu_ps(lanes.wrapping_add(panel * right_apart)) }
        });
        for (row, sums) in sums.iter_mut().enumerate() {
            for (panel, (sum, column)) in sums.iter_mut().zip(columns).enumerate() {
                let value = rows.wrapping_add(if SAME { 0 } else { panel * left_apart } + row);
                // SAFETY: inside of `left` at each step, as checked.
                *sum = _mm512_fmadd_ps(_mm512_set1_ps(unsafe { *value }), column, *sum);
            }
        }
        (rows, lanes) = (rows.wrapping_add(width), lanes.wrapping_add(UNITS_PER_STRIP));
    }
    for (row, sums) in sums.into_iter().enumerate() {
        for (panel, sum) in sums.into_iter().enumerate() {
            let out: &mut [f32; UNITS_PER_STRIP] =
                out[row * stride + panel * out_apart..].first_chunk_mut().expect("a place for all lanes");
            // SAFETY: the array has as many elements as a register.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), _mm512_add_ps(_mm512_loadu_ps(out.as_ptr()), sum)) };
        }
    }
}
