//! Helpers of the kernel tests: synthetic numbers, and products in plain loops.
use kernels::Real;

/// Returns numbers between -2 and 2 that use all their digits.
pub(crate) fn synthetic<F: Real>(count: usize, seed: u32) -> Vec<F> {
    let hash = |i: u32| (i ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
    (0..count as u32).map(|i| F::from_f64((f64::from(hash(i)) / f64::from(u32::MAX) - 0.5) * 4.0)).collect()
}

/// Returns `a b` in plain loops.
///
/// `a` is *m x k*, `b` *k x n*, both dense.
pub(crate) fn plain_product<F: Real>(a: &[F], b: &[F], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let element = |i: usize| {
        let (row, col) = (i / n, i % n);
        (0..k).map(|l| a[row * k + l].to_f64() * b[l * n + col].to_f64()).sum()
    };
    (0..m * n).map(element).collect()
}

/// Returns the transpose of a dense *rows x cols* matrix.
pub(crate) fn transpose<F: Copy>(matrix: &[F], rows: usize, cols: usize) -> Vec<F> {
    (0..rows * cols).map(|i| matrix[i % rows * cols + i / rows]).collect()
}

/// Asserts that every element is within `tolerance` of the expected one.
pub(crate) fn assert_close<F: Real>(actual: &[F], expected: &[f64], tolerance: f64, case: &str) {
    assert_eq!(actual.len(), expected.len(), "{case}");
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let error = (actual.to_f64() - expected).abs();
        assert!(error <= tolerance, "{case}, element {i}: {actual:?}, expected {expected}");
    }
}
