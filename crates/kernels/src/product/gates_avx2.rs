//! [`Streams`] by hand for AVX2: two registers of sums for every row and panel, at most 12 of them.
#![allow(unsafe_code)]
use std::arch::x86_64::*;

use super::gates::{Streams, UNITS};
use crate::simd::Avx2Fma;

/// Lanes of a register.
const LANES: usize = 8;
/// LeftOperand of a kernel.
const MOST: usize = 6;

/// Any number of rows and panels, as many at once as there are registers for.
pub(crate) fn streams(_proof: Avx2Fma, rows: usize, panels: usize, streams: Streams<f32>) {
    let Streams { left, width, left_apart, right, right_apart, steps, out, stride, out_apart } = streams;
    let count = rows.div_ceil(MOST).max(1);
    for part in 0..count {
        let [first, end] = [part, part + 1].map(|part| part * rows / count);
        let mut panel = 0;
        while panel < panels {
            let together = match (end - first, panels - panel) {
                (1, 4..) => 4,
                (1..=3, 2..) => 2,
                _ => 1,
            };
            let these = Streams {
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
                match (together, end - first) {
                    (4, _) => kernel::<1, 4>(these),
                    (2, 1) => kernel::<1, 2>(these),
                    (2, 2) => kernel::<2, 2>(these),
                    (2, _) => kernel::<3, 2>(these),
                    (_, 1) => kernel::<1, 1>(these),
                    (_, 2) => kernel::<2, 1>(these),
                    (_, 3) => kernel::<3, 1>(these),
                    (_, 4) => kernel::<4, 1>(these),
                    (_, 5) => kernel::<5, 1>(these),
                    (_, 6) => kernel::<6, 1>(these),
                    _ => {}
                }
            }
            panel += together;
        }
    }
}

/// M rows by P panels.
#[target_feature(enable = "avx2,fma")]
fn kernel<const M: usize, const P: usize>(streams: Streams<f32>) {
    let Streams { left, width, left_apart, right, right_apart, steps, out, stride, out_apart } = streams;
    let last = steps.saturating_sub(1);
    assert!((P - 1) * left_apart + last * width + M <= left.len(), "the rows have all steps");
    assert!((P - 1) * right_apart + steps * UNITS <= right.len(), "the panels have all steps");
    let mut sums = [[[_mm256_setzero_ps(); UNITS / LANES]; P]; M];
    let (mut rows, mut lanes) = (left.as_ptr(), right.as_ptr());
    for _ in 0..steps {
        let columns: [[_; UNITS / LANES]; P] = std::array::from_fn(|panel| {
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
        (rows, lanes) = (rows.wrapping_add(width), lanes.wrapping_add(UNITS));
    }
    for (row, sums) in sums.into_iter().enumerate() {
        for (panel, sums) in sums.into_iter().enumerate() {
            let out: &mut [f32; UNITS] =
                out[row * stride + panel * out_apart..].first_chunk_mut().expect("a place for all lanes");
            for (out, sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
                // SAFETY: as many elements as lanes.
                unsafe {
                    _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(_mm256_loadu_ps(out.as_ptr()), sum));
                }
            }
        }
    }
}
