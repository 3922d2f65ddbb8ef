//! Matrix products of all shapes and strides, with packed operands or without.
use kernels::{Accumulate, PackedRight, View, ViewMut, packing_bytes, product, product_packed};
use proptest::prelude::*;

use super::common::{assert_close, plain_product, synthetic, transpose};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_shape_equals_plain_loops(
        m in 0usize..90, k in 0usize..90, n in 0usize..150,
        padding in 0usize..3, transpose_b in any::<bool>(), add in any::<bool>(),
    ) {
        let (a, b): (Vec<f64>, Vec<f64>) = (synthetic(m * k, 1), synthetic(k * n, 2));
        let stored = if transpose_b { transpose(&b, k, n) } else { b.clone() };
        let right = if transpose_b { View::new(&stored, n, k).transposed() } else { View::new(&stored, k, n) };
        let mut out = vec![3.0; m * (n + padding)];
        let accumulate = if add { Accumulate::Add } else { Accumulate::Replace };
        product(ViewMut::with_stride(&mut out, m, n, n + padding), View::new(&a, m, k), right, 2.0, accumulate);
        let sums = plain_product(&a, &b, [m, k, n]);
        for (i, actual) in out.iter().enumerate() {
            let (row, col) = (i / (n + padding), i % (n + padding));
            let sum = if col < n { 2.0 * sums[row * n + col] } else { 0.0 };
            let expected = sum + if add || col >= n { 3.0 } else { 0.0 };
            prop_assert!((actual - expected).abs() < 1e-11, "{m}x{k}x{n} [{row},{col}]: {actual} {expected}");
        }
    }

    #[test]
    fn a_packed_right_side_changes_no_bit(
        m in 1usize..40, k in 1usize..700, n in 1usize..150, transpose_a in any::<bool>(),
    ) {
        let (a, b): (Vec<f32>, Vec<f32>) = (synthetic(m * k, 1), synthetic(k * n, 2));
        let left = if transpose_a { View::new(&a, k, m).transposed() } else { View::new(&a, m, k) };
        let right = View::new(&b, k, n);
        let (mut joint, mut packed) = (vec![1.0f32; m * n], vec![1.0f32; m * n]);
        product(ViewMut::new(&mut joint, m, n), left, right, 1.0, Accumulate::Add);
        let right = PackedRight::new(right);
        product_packed(ViewMut::new(&mut packed, m, n), left, &right, Accumulate::Add);
        prop_assert!(joint == packed);
    }
}

#[test]
fn packing_another_matrix_leaves_no_old_elements() {
    let (large, small): (Vec<f32>, Vec<f32>) = (synthetic(50 * 70, 1), synthetic(3 * 5, 2));
    let mut packed = PackedRight::new(View::new(&large, 50, 70));
    packed.pack(View::new(&small, 3, 5));
    assert_eq!(packed.shape(), (3, 5));
    let (row, mut out) = (synthetic::<f32>(3, 3), vec![0.0f32; 5]);
    product_packed(ViewMut::new(&mut out, 1, 5), View::new(&row, 1, 3), &packed, Accumulate::Replace);
    assert_close(&out, &plain_product(&row, &small, [1, 3, 5]), 1e-5, "after another matrix");
}

#[test]
fn packing_memory_is_bounded() {
    assert!(packing_bytes::<f32>() <= 640 << 10 && packing_bytes::<f64>() <= 768 << 10);
    assert_eq!(PackedRight::<f32>::bytes_for(usize::MAX, 2), usize::MAX);
}

#[test]
#[should_panic(expected = "product: shapes 2x3, 2x2, 2x2")]
fn wrong_shapes_are_refused() {
    let (a, b) = ([0.0f32; 6], [0.0f32; 4]);
    product(
        ViewMut::new(&mut [0.0; 4], 2, 2),
        View::new(&a, 2, 3),
        View::new(&b, 2, 2),
        1.0,
        Accumulate::Replace,
    );
}
