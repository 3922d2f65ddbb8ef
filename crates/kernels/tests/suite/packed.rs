//! Packed operands as the normaliser uses them: packed in parts, taken apart at multiples of a strip.
use kernels::{
    Accumulate, View, ViewMut,
    packed::{Full, Operand, OperandFormat, half::Half},
};

use super::common::{made_up, plain};

/// A product whose left rows are multiplied a strip at a time, and whose steps were packed a strip at a time.
fn parts_equal_the_whole<N: OperandFormat<f32>>(bar: f64) {
    let strip = N::strip();
    for m in [1, strip - 1, strip, strip + 1, 2 * strip + 5, 3 * strip] {
        let (k, n) = (2 * strip + 7, 75);
        let (a, b): (Vec<f32>, Vec<f32>) = (made_up(m * k, 1), made_up(k * n, 2));
        let mut left = vec![N::ZERO; N::words(Operand::Left, m, k)];
        for first in (0..k).step_by(strip) {
            let steps = strip.min(k - first);
            let view = View::with_stride(&a[first..], m, steps, k);
            N::pack(view, Operand::Left, &mut left, first, k);
        }
        let mut right = vec![N::ZERO; N::words(Operand::Right, n, k)];
        N::pack(View::new(&b, k, n), Operand::Right, &mut right, 0, k);
        let mut out = vec![0.0f32; m * n];
        for (i, out) in out.chunks_mut(strip * n).enumerate() {
            let rows = out.len() / n;
            let left = &left[N::words(Operand::Left, i * strip, k)..];
            N::multiply(ViewMut::new(out, rows, n), left, &right, k, Accumulate::Replace);
        }
        for (found, expected) in out.iter().zip(plain(&a, &b, [m, k, n])) {
            assert!((f64::from(*found) - expected).abs() <= bar, "{m} rows: {found}, expected {expected}");
        }
    }
}

#[test]
fn strips_of_either_kind_of_numbers_equal_plain_loops() {
    parts_equal_the_whole::<Full>(1e-4);
    // 8 bits of a number: 2^-8 of each of some 70 products of up to 4.
    parts_equal_the_whole::<Half>(0.5);
}
