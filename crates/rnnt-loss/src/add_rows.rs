//! Rows added to the rows of a sum.
use kernels::{par_for, parts_mut};
use panda_core::Real;

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
    par_for(parts_mut(&mut into[low * width..(high + 1) * width], each * width), |task, into| {
        let first = low + task * each;
        let theirs = first..first + into.len() / width;
        for (row, gradient) in gradient.chunks_exact(width).enumerate() {
            let to = row_of(row);
            if theirs.contains(&to) {
                F::add_slice(&mut into[(to - first) * width..][..width], gradient);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_plain_loops_in_the_order_of_the_gradient() {
        let (rows, width, places) = (700, 3, 300);
        // Numbers of unlike size, so that another order would give other bits; some places get nothing.
        let gradient: Vec<f32> = (0..rows * width).map(|i| 1.1f32.powi((i * 37 % 101) as i32 - 50)).collect();
        for row_of in [|row: usize| row * row % 271 + 7, |row| row / 3, |_| 299] {
            let (mut found, mut expected) = (vec![0.5; places * width], vec![0.5; places * width]);
            add_rows(&gradient, width, row_of, &mut found);
            for (i, g) in gradient.iter().enumerate() {
                expected[row_of(i / width) * width + i % width] += g;
            }
            assert_eq!(found, expected);
        }
        let mut nothing = [1.0f64];
        add_rows(&[], 1, |row| row, &mut nothing);
        assert_eq!(nothing, [1.0]);
    }
}
