//! Portable micro-kernel of matrix products: M x N sums in registers.
//!
//! ```text
//! sums = 0
//! for each step:  sums[i][j] += left[step][i] · right[step][j]      i < M, j < N
//! out[i][j] = sums[i][j], or += when accumulating        inside the output
//! ```
//! AVX-512 (`micro_avx512.rs`) and AVX2 (`micro_avx2.rs`) versions are hand-written; this file has
//! plain loops that the compiler vectorizes. Each element is one chain of sums in the order of the
//! steps, whichever tile contains it. `FUSED` selects fused multiply-add.
use super::{
    OperandSource,
    panels::{OutputTile, RightPanels},
};
use crate::{Accumulate, Real};

/// Packs a micro-panel of an operand.
///
/// The micro-panel has `panel_width` rows of a left operand, or columns of a right one, from row or
/// column `first` on, and `out.len() / panel_width` steps from `first_step` on. Padding is 0.
pub(crate) fn pack<F: Real>(
    source: &OperandSource<F>,
    (first, first_step): (usize, usize),
    panel_width: usize,
    out: &mut [F],
) {
    let OperandSource { data, stride, steps_are_rows, .. } = *source;
    let count = panel_width.min(source.sizes().0 - first);
    for (step, out) in (first_step..).zip(out.chunks_exact_mut(panel_width)) {
        match steps_are_rows {
            true => out[..count].copy_from_slice(&data[step * stride + first..][..count]),
            false => (0..count).for_each(|i| out[i] = data[(first + i) * stride + step]),
        }
        out[count..].fill(F::ZERO);
    }
}

/// Computes a tile of `M` rows and at most `N` columns.
///
/// The left micro-panel has `M` rows.
#[inline(always)]
pub(crate) fn tile<F: Real, const M: usize, const N: usize, const FUSED: bool>(
    left: &[F],
    right: RightPanels<F>,
    output: OutputTile<F>,
) {
    let OutputTile { out, rows, cols, stride, accumulate } = output;
    let mut sums = [[F::ZERO; N]; M];
    for (left, right) in left.as_chunks::<M>().0.iter().zip(right.data.chunks(right.step_stride)) {
        let right = right.first_chunk::<N>().expect("a step has a whole panel of columns");
        for (sums, &left) in sums.iter_mut().zip(left) {
            for (sum, &right) in sums.iter_mut().zip(right) {
                *sum = if FUSED { left.mul_add(right, *sum) } else { left * right + *sum };
            }
        }
    }
    for (row, sums) in sums.iter().enumerate().take(rows) {
        for (out, &sum) in out[row * stride..][..cols].iter_mut().zip(sums) {
            *out = if accumulate == Accumulate::Add { *out + sum } else { sum };
        }
    }
}

/// Calls [`tile`] for a number of rows.
macro_rules! tile_of {
    ($rows:expr, $F:ty, $N:literal, $FUSED:literal, $arguments:tt, $($M:literal)*) => {
        match $rows {
            $($M => $crate::packed::micro::tile::<$F, $M, $N, $FUSED> $arguments,)*
            rows => unreachable!("no micro-kernel has {rows} rows"),
        }
    };
}

/// MR and NR of [`portable`].
///
/// 64-bit ARM has fused multiply-add and enough registers for twice as many sums.
pub(crate) const PORTABLE: [usize; 2] = if cfg!(target_arch = "aarch64") { [8, 8] } else { [4, 8] };

/// Computes a tile of at most [`PORTABLE`] rows and columns.
pub(crate) fn portable<F: Real>(rows: usize, left: &[F], right: RightPanels<F>, output: OutputTile<F>) {
    match cfg!(target_arch = "aarch64") {
        true => tile_of!(rows, F, 8, true, (left, right, output), 1 2 3 4 5 6 7 8),
        false => tile_of!(rows, F, 8, false, (left, right, output), 1 2 3 4),
    }
}
