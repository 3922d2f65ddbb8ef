//! AVX2 product of recurrent LSTM weights ([`GateProduct`]) with a few rows.
//!
//! Each row and panel has two registers of sums; a kernel has at most 12.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::gates::{GateOutput, GatePanels, GateProduct, GateRows, UNITS_PER_STRIP};
use crate::simd::Avx2Fma;

/// Lanes of a register.
const LANES: usize = 8;
/// Maximum rows of a kernel.
const MAX_ROWS: usize = 6;

/// Adds the product of rows and panels to `out`.
///
/// It multiplies as many at once as registers allow.
pub(crate) fn multiply_panels(_token: Avx2Fma, rows: usize, panels: usize, product: GateProduct<f32>) {
    let GateProduct { left, right, steps, out } = product;
    let row_groups = rows.div_ceil(MAX_ROWS).max(1);
    for group in 0..row_groups {
        let [first_row, end_row] = [group, group + 1].map(|group| group * rows / row_groups);
        let mut panel = 0;
        while panel < panels {
            let panel_count = match (end_row - first_row, panels - panel) {
                (1, 4..) => 4,
                (1..=3, 2..) => 2,
                _ => 1,
            };
            let part = GateProduct {
                left: GateRows { data: &left.data[panel * left.panel_stride + first_row..], ..left },
                right: GatePanels { data: &right.data[panel * right.panel_stride..], ..right },
                steps,
                out: GateOutput {
                    data: &mut out.data[first_row * out.row_stride + panel * out.panel_stride..],
                    row_stride: out.row_stride,
                    panel_stride: out.panel_stride,
                },
            };
            // SAFETY: the token proves the features.
            unsafe {
                match (panel_count, end_row - first_row) {
                    (4, _) => kernel::<1, 4>(part),
                    (2, 1) => kernel::<1, 2>(part),
                    (2, 2) => kernel::<2, 2>(part),
                    (2, _) => kernel::<3, 2>(part),
                    (_, 1) => kernel::<1, 1>(part),
                    (_, 2) => kernel::<2, 1>(part),
                    (_, 3) => kernel::<3, 1>(part),
                    (_, 4) => kernel::<4, 1>(part),
                    (_, 5) => kernel::<5, 1>(part),
                    (_, 6) => kernel::<6, 1>(part),
                    _ => {}
                }
            }
            panel += panel_count;
        }
    }
}

/// Adds the product of M rows with P panels to `out`.
#[target_feature(enable = "avx2,fma")]
fn kernel<const M: usize, const P: usize>(product: GateProduct<f32>) {
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
    let mut sums = [[[_mm256_setzero_ps(); UNITS_PER_STRIP / LANES]; P]; M];
    let (mut row_pointer, mut panel_pointer) = (left.data.as_ptr(), right.data.as_ptr());
    for _ in 0..steps {
        let columns: [[_; UNITS_PER_STRIP / LANES]; P] = std::array::from_fn(|panel| {
            std::array::from_fn(|register| {
                // SAFETY: inside of `right.data` at each step, as checked.
                unsafe {
                    _mm256_loadu_ps(panel_pointer.wrapping_add(panel * right.panel_stride + register * LANES))
                }
            })
        });
        for (row, sums) in sums.iter_mut().enumerate() {
            for (panel, (sums, columns)) in sums.iter_mut().zip(columns).enumerate() {
                // SAFETY: inside of `left.data` at each step, as checked.
                let value =
                    _mm256_set1_ps(unsafe { *row_pointer.wrapping_add(panel * left.panel_stride + row) });
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = _mm256_fmadd_ps(value, column, *sum);
                }
            }
        }
        (row_pointer, panel_pointer) =
            (row_pointer.wrapping_add(left.width), panel_pointer.wrapping_add(UNITS_PER_STRIP));
    }
    for (row, sums) in sums.into_iter().enumerate() {
        for (panel, sums) in sums.into_iter().enumerate() {
            let start = row * out.row_stride + panel * out.panel_stride;
            let target: &mut [f32; UNITS_PER_STRIP] =
                out.data[start..].first_chunk_mut().expect("a place for all lanes");
            for (lanes, sum) in target.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
                // SAFETY: the chunk has as many elements as a register.
                unsafe {
                    _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_add_ps(_mm256_loadu_ps(lanes.as_ptr()), sum));
                }
            }
        }
    }
}
