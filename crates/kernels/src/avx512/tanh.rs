//! AVX-512 tanh for joint-network rows, optionally overlapped with a matrix product.
//!
//! `tanh(x + y) = 1 - 2 / (1 + a b)` with prepared addends `a = exp(2x)` and `b = exp(2y)`. When
//! overlapped, the divider computes tanh of the next product during the sums of the current one.
use std::arch::x86_64::*;

use super::{LANES, lanes, load, load_from, load_full, store, store_full, store_to};
use crate::simd::Avx512;

/// Columns of a panel: two registers.
const PANEL_COLUMNS: usize = 2 * LANES;
const _: () = assert!(PANEL_COLUMNS == crate::PANEL_COLUMNS);

/// Returns `1 - 2 / (1 + a b)`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(super) fn pair_lanes(a: __m512, b: __m512) -> __m512 {
    let denominator = _mm512_fmadd_ps(a, b, _mm512_set1_ps(1.0));
    _mm512_sub_ps(_mm512_set1_ps(1.0), _mm512_div_ps(_mm512_set1_ps(2.0), denominator))
}

/// As [`crate::math::tanh_pairs`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn tanh_pairs(out: &mut [f32], a: &[f32], b: &[f32]) {
    let ((out, last), (a, last_a), (b, last_b)) = (out.as_chunks_mut(), a.as_chunks(), b.as_chunks());
    for (out, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
        store_full(out, pair_lanes(load_full(a), load_full(b)));
    }
    if !last.is_empty() {
        store(last, 0, pair_lanes(load(last_a, 0, 1.0), load(last_b, 0, 1.0)));
    }
}

/// As [`crate::math::tanh_panel`].
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
pub(crate) fn tanh_panel(out: &mut [f32], panel: &[f32], row_addends: &[f32]) {
    let width = (panel.len() / row_addends.len().max(1)).max(1);
    if width == PANEL_COLUMNS {
        let steps = out.as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0.iter_mut();
        let steps = steps.zip(panel.as_chunks::<LANES>().0.as_chunks::<2>().0);
        for (([first, second], [first_a, second_a]), &b) in steps.zip(row_addends) {
            let b = _mm512_set1_ps(b);
            store_full(first, pair_lanes(load_full(first_a), b));
            store_full(second, pair_lanes(load_full(second_a), b));
        }
        return;
    }
    for ((out, a), &b) in out.chunks_exact_mut(width).zip(panel.chunks_exact(width)).zip(row_addends) {
        let b = _mm512_set1_ps(b);
        lanes!(width, |offset| {
            store_to::<FULL>(out, offset, pair_lanes(load_from::<FULL>(a, offset, 1.0), b));
        });
    }
}

/// A tanh job: `out = 1 - 2 / (1 + a b)` for a part of a panel, two registers for each row.
pub(crate) struct TanhJob<'a> {
    pub out: &'a mut [[f32; LANES]],
    /// The prepared addends a of the panel.
    pub panel: &'a [[f32; LANES]],
    /// The prepared addends b, one for each row of the whole panel.
    pub row_addends: &'a [f32],
    /// Index of the first register.
    pub first_register: usize,
}

/// Computes `out += left · hidden` and a tanh job meanwhile.
///
/// The job has one or two registers for each step.
///
/// # Shapes
/// `left` *k x rows* as packed, `hidden` *k x 32*, `out` *rows x 32*.
///
/// # Panics
/// If the number of rows is not between 1 and 12, or the job has another size.
pub(crate) fn tile_with_tanh(
    _token: Avx512,
    rows: usize,
    left: &[f32],
    hidden: &[f32],
    out: &mut [f32],
    job: TanhJob,
) {
    let steps = left.len() / rows.max(1);
    assert!(
        left.len() == steps * rows
            && hidden.len() == steps * PANEL_COLUMNS
            && out.len() == rows * PANEL_COLUMNS,
        "a tile of {rows} rows and {steps} steps"
    );
    let has_two_registers = job.out.len() == 2 * steps;
    assert!(
        has_two_registers || job.out.len() == steps,
        "a job of {} registers for {steps} steps",
        job.out.len()
    );
    macro_rules! tile_of {
        ($($M:literal)*) => {
            match (rows, has_two_registers) {
                // SAFETY: the token proves the features.
                $(($M, false) => unsafe { tile::<$M, 1>(left, hidden, out, job) },)*
                // SAFETY: as above.
                $(($M, true) => unsafe { tile::<$M, 2>(left, hidden, out, job) },)*
                (rows, _) => unreachable!("no tile has {rows} rows"),
            }
        };
    }
    tile_of!(1 2 3 4 5 6 7 8 9 10 11 12)
}

/// Computes a tile of M rows; each step also computes R registers of tanh.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn tile<const M: usize, const R: usize>(left: &[f32], hidden: &[f32], out: &mut [f32], job: TanhJob) {
    let mut sums = [[_mm512_setzero_ps(); 2]; M];
    let steps = left.as_chunks::<M>().0.iter().zip(hidden.as_chunks::<PANEL_COLUMNS>().0);
    let job_steps = job.out.as_chunks_mut::<R>().0.iter_mut().zip(job.panel.as_chunks::<R>().0);
    for (step, ((left, hidden), (to, from))) in steps.zip(job_steps).enumerate() {
        for (register, (to, from)) in to.iter_mut().zip(from).enumerate() {
            let register = job.first_register + step * R + register;
            let row_addend = _mm512_set1_ps(job.row_addends[register / 2]);
            store_full(to, pair_lanes(load_full(from), row_addend));
        }
        let [a, b] = hidden.as_chunks::<LANES>().0 else { unreachable!("a step has two registers") };
        let (a, b) = (load_full(a), load_full(b));
        for (sums, &left) in sums.iter_mut().zip(left) {
            let left = _mm512_set1_ps(left);
            sums[0] = _mm512_fmadd_ps(left, a, sums[0]);
            sums[1] = _mm512_fmadd_ps(left, b, sums[1]);
        }
    }
    for (out, sums) in out.as_chunks_mut::<PANEL_COLUMNS>().0.iter_mut().zip(sums) {
        for (out, sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
            store_full(out, _mm512_add_ps(load_full(out), sum));
        }
    }
}
