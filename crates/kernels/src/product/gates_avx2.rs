//! AVX2 product of recurrent LSTM weights ([`GatePanels`]) with a few rows.
//!
//! Each row and panel has two registers of sums; a kernel has at most 12.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::gates::{GatePanels, UNITS_PER_STRIP};
use crate::simd::Avx2Fma;

/// Lanes of a register.
const LANES: usize = 8;
/// Maximum rows of a kernel.
const MAX_ROWS: usize = 6;

/// Multiplies rows and panels, as many at once as registers allow.
pub(crate) fn multiply_panels(_token: Avx2Fma, rows: usize, panels: usize, streams: GatePanels<f32>) {
    let GatePanels { left, width, left_apart, right, right_apart, steps, out, stride, out_apart } = streams;
    let count = rows.div_ceil(MAX_ROWS).max(1);
    for part in 0..count {
        let [first, end] = [part, part + 1].map(|part| part * rows / count);
        let mut panel = 0;
        while panel < panels {
            let panel_count = match (end - first, panels - panel) {
                (1, 4..) => 4,
                (1..=3, 2..) => 2,
                _ => 1,
            };
            let panels_at_once = GatePanels {
                left: &left[panel * left_apart + first..],
                width,
                left_apart,
                right: &right[panel * right_apart..],
                right_apart,
                steps,
                out: &mut out[first * stride + panel * out_apart..],
                stride,
                out_apart,
            };
            // SAFETY: the token proves the features.
            unsafe {
                match (panel_count, end - first) {
                    (4, _) => kernel::<1, 4>(panels_at_once),
                    (2, 1) => kernel::<1, 2>(panels_at_once),
                    (2, 2) => kernel::<2, 2>(panels_at_once),
                    (2, _) => kernel::<3, 2>(panels_at_once),
                    (_, 1) => kernel::<1, 1>(panels_at_once),
                    (_, 2) => kernel::<2, 1>(panels_at_once),
                    (_, 3) => kernel::<3, 1>(panels_at_once),
                    (_, 4) => kernel::<4, 1>(panels_at_once),
                    (_, 5) => kernel::<5, 1>(panels_at_once),
                    (_, 6) => kernel::<6, 1>(panels_at_once),
                    _ => {}
                }
            }
            panel += panel_count;
        }
    }
}

/// Multiplies M rows with P panels.
#[target_feature(enable = "avx2,fma")]
fn kernel<const M: usize, const P: usize>(streams: GatePanels<f32>) {
    let GatePanels { left, width, left_apart, right, right_apart, steps, out, stride, out_apart } = streams;
    let last = steps.saturating_sub(1);
    assert!((P - 1) * left_apart + last * width + M <= left.len(), "the rows have all steps");
    assert!((P - 1) * right_apart + steps * UNITS_PER_STRIP <= right.len(), "the panels have all steps");
    let mut sums = [[[_mm256_setzero_ps(); UNITS_PER_STRIP / LANES]; P]; M];
    let (mut rows, mut lanes) = (left.as_ptr(), right.as_ptr());
    for _ in 0..steps {
        let columns: [[_; UNITS_PER_STRIP / LANES]; P] = std::array::from_fn(|panel| {
            std::array::from_fn(|part| {
                // SAFETY: inside of `right` at each step, as checked.
                unsafe { _mm256_loadu_ps(lanes.wrapping_add(panel * right_apart + part * LANES)) }
            })
        });
        for (row, sums) in sums.iter_mut().enumerate() {
            for (panel, (sums, columns)) in sums.iter_mut().zip(columns).enumerate() {
                // SAFETY: inside of `left` at each step, as checked.
                let value = _mm256_set1_ps(unsafe { *rows.wrapping_add(panel * left_apart + row) });
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = _mm256_fmadd_ps(value, column, *sum);
                }
            }
        }
        (rows, lanes) = (rows.wrapping_add(width), lanes.wrapping_add(UNITS_PER_STRIP));
    }
    for (row, sums) in sums.into_iter().enumerate() {
        for (panel, sums) in sums.into_iter().enumerate() {
            let out: &mut [f32; UNITS_PER_STRIP] =
                out[row * stride + panel * out_apart..].first_chunk_mut().expect("a place for all lanes");
            for (out, sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
                // SAFETY: the chunk has as many elements as a register.
                unsafe {
                    _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(_mm256_loadu_ps(out.as_ptr()), sum));
                }
            }
        }
    }
}
