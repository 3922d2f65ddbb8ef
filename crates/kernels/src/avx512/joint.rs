//! Products whose right side is made on the way: tangents of sums, and their first product in the same loop, whose adders and
//! quotients then cost next to nothing.
use std::arch::x86_64::*;

use super::{LANES, pairs::pair_lanes, whole, whole_to};
use crate::features::Avx512;

/// Columns of a panel.
const WIDE: usize = 2 * LANES;
/// Rows of a tile: beside their sums, registers stay for the tangents.
pub const MOST: usize = 12;

/// `out += left · h` and `h = 1 - 2 / (1 + panel row)`, which is written to `hidden`.
///
/// # Shapes
/// `left` *k x rows* as packed, `panel` and `hidden` *k x 32*, `row` *k*, `out` *rows x 32*.
///
/// # Panics
/// If there are no rows or more than [`MOST`].
pub fn tanh_tile(
    _proof: Avx512,
    rows: usize,
    left: &[f32],
    (panel, row): (&[f32], &[f32]),
    hidden: &mut [f32],
    out: &mut [f32],
) {
    macro_rules! tile_of {
        ($($M:literal)*) => {
            match rows {
                // SAFETY: the token proves the features.
                $($M => unsafe { tile::<$M>(left, (panel, row), hidden, out) },)*
                rows => unreachable!("no tile has {rows} rows"),
            }
        };
    }
    tile_of!(1 2 3 4 5 6 7 8 9 10 11 12)
}

#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
fn tile<const M: usize>(left: &[f32], (panel, row): (&[f32], &[f32]), hidden: &mut [f32], out: &mut [f32]) {
    let mut sums = [[_mm512_setzero_ps(); 2]; M];
    let steps = left.as_chunks::<M>().0.iter().zip(panel.as_chunks::<WIDE>().0.iter().zip(row));
    for ((left, (panel, &row)), hidden) in steps.zip(hidden.as_chunks_mut::<WIDE>().0) {
        let row = _mm512_set1_ps(row);
        let [a, b] = panel.as_chunks::<LANES>().0 else { unreachable!("a step has two registers") };
        let (a, b) = (pair_lanes(whole(a), row), pair_lanes(whole(b), row));
        let [first, second] = hidden.as_chunks_mut::<LANES>().0 else {
            unreachable!("a step has two registers")
        };
        whole_to(first, a);
        whole_to(second, b);
        for (sums, &left) in sums.iter_mut().zip(left) {
            let left = _mm512_set1_ps(left);
            sums[0] = _mm512_fmadd_ps(left, a, sums[0]);
            sums[1] = _mm512_fmadd_ps(left, b, sums[1]);
        }
    }
    for (out, sums) in out.as_chunks_mut::<WIDE>().0.iter_mut().zip(sums) {
        for (out, sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
            whole_to(out, _mm512_add_ps(whole(out), sum));
        }
    }
}
