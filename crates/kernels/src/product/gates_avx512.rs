//! [`Streams`] by hand for AVX-512: a register of sums for every row and panel, at most 24 of them.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::gates::{Streams, UNITS};
use crate::simd::Avx512;

/// Steps that panels are called for in advance, from another core's cache or from memory.
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

/// `panels` is 1, 2 or 4, and 4 for at most 6 rows.
pub(crate) fn streams(_proof: Avx512, rows: usize, panels: usize, streams: Streams<f32>) {
    match (panels, streams.left_apart == 0) {
        (4, true) => kernel_of!(rows, 4, true, streams, 1 2 3 4 5 6),
        (2, true) => kernel_of!(rows, 2, true, streams, 7 8),
        (4, false) => kernel_of!(rows, 4, false, streams, 1 2 3 4 5 6),
        (2, false) => kernel_of!(rows, 2, false, streams, 1 2 3 4 5 6 7 8),
        _ => kernel_of!(rows, 1, false, streams, 1 2 3 4 5 6 7 8),
    }
}

/// M rows by P panels; with `SAME` rows for all of them.
#[target_feature(enable = "avx512f,fma")]
fn kernel<const M: usize, const P: usize, const SAME: bool>(streams: Streams<f32>) {
    let Streams { left, width, left_apart, right, right_apart, steps, out, stride, out_apart } = streams;
    let last = steps.saturating_sub(1);
    assert!((P - 1) * left_apart + last * width + M <= left.len(), "the rows have all steps");
    assert!((P - 1) * right_apart + steps * UNITS <= right.len(), "the panels have all steps");
    let mut sums = [[_mm512_setzero_ps(); P]; M];
    let (mut rows, mut lanes) = (left.as_ptr(), right.as_ptr());
    // A call for what nobody owns would take as long as a walk through all pages.
    let end = lanes.wrapping_add(right.len() - (P - 1) * right_apart - UNITS);
    for _ in 0..steps {
        let soon = lanes.wrapping_add(PREFETCH_DISTANCE * UNITS).min(end);
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
        (rows, lanes) = (rows.wrapping_add(width), lanes.wrapping_add(UNITS));
    }
    for (row, sums) in sums.into_iter().enumerate() {
        for (panel, sum) in sums.into_iter().enumerate() {
            let out: &mut [f32; UNITS] =
                out[row * stride + panel * out_apart..].first_chunk_mut().expect("a place for all lanes");
            // SAFETY: as many elements as lanes.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), _mm512_add_ps(_mm512_loadu_ps(out.as_ptr()), sum)) };
        }
    }
}
