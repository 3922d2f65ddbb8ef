//! Packed matrix operands, packed in pieces as the normalizer does.
//!
//! A strip is a range of rows, or of steps of the sum.
use kernels::{
    Accumulate, View, ViewMut,
    packed::{FullFormat, Operand, OperandFormat, bf16::Bf16Format},
};

use super::common::{plain_product, synthetic};

/// Packs and multiplies a left operand in strips.
fn strips_equal_plain_loops<Format: OperandFormat<f32>>(tolerance: f64) {
    let rows_per_product = Format::preferred_rows();
    for m in [
        1,
        rows_per_product - 1,
        rows_per_product,
        rows_per_product + 1,
        2 * rows_per_product + 5,
        3 * rows_per_product,
    ] {
        let (k, n) = (2 * rows_per_product + 7, 75);
        let (a, b): (Vec<f32>, Vec<f32>) = (synthetic(m * k, 1), synthetic(k * n, 2));
        let mut left = vec![Format::ZERO; Format::words(Operand::Left, m, k)];
        for first_step in (0..k).step_by(rows_per_product) {
            let steps = rows_per_product.min(k - first_step);
            let view = View::with_stride(&a[first_step..], m, steps, k);
            Format::pack(view, Operand::Left, &mut left, first_step, k);
        }
        let mut right = vec![Format::ZERO; Format::words(Operand::Right, n, k)];
        Format::pack(View::new(&b, k, n), Operand::Right, &mut right, 0, k);
        let mut out = vec![0.0f32; m * n];
        for (i, out) in out.chunks_mut(rows_per_product * n).enumerate() {
            let rows = out.len() / n;
            let left = &left[Format::words(Operand::Left, i * rows_per_product, k)..];
            Format::multiply(ViewMut::new(out, rows, n), left, &right, k, Accumulate::Replace);
        }
        for (actual, expected) in out.iter().zip(plain_product(&a, &b, [m, k, n])) {
            assert!(
                (f64::from(*actual) - expected).abs() <= tolerance,
                "{m} rows: {actual}, expected {expected}"
            );
        }
    }
}

#[test]
fn strips_of_both_formats_equal_plain_loops() {
    strips_equal_plain_loops::<FullFormat>(1e-4);
    // bf16 has 8 bits: errors of 2^-8 of some 70 products of up to 4.
    strips_equal_plain_loops::<Bf16Format>(0.5);
}
