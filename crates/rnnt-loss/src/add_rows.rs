//! Rows added to the rows of a sum.
use panda_core::Real;
use rayon::prelude::*;

/// Tasks of a sum of rows.
const TASKS: usize = 64;

/// Adds each row of a gradient to the row of the sum that it belongs to, in their order.
///
/// ```text
/// par for some rows of the sum each:  for each row of the gradient, if it is theirs:  sum += gradient
/// ```
pub(crate) fn add_rows<F: Real>(
    gradient: &[F],
    width: usize,
    row_of: impl Fn(usize) -> usize + Sync,
    into: &mut [F],
) {
    let rows = gradient.len() / width;
    let bounds =
        (0..rows).map(&row_of).fold((usize::MAX, 0), |(low, high), row| (low.min(row), high.max(row)));
    if rows == 0 {
        return;
    }
    let (low, high) = bounds;
    let each = (high + 1 - low).div_ceil(TASKS);
    into[low * width..(high + 1) * width].par_chunks_mut(each * width).enumerate().for_each(
        |(task, into)| {
            let first = low + task * each;
            let theirs = first..first + into.len() / width;
            for (row, gradient) in gradient.chunks_exact(width).enumerate() {
                let to = row_of(row);
                if theirs.contains(&to) {
                    F::add_slice(&mut into[(to - first) * width..][..width], gradient);
                }
            }
        },
    );
}
