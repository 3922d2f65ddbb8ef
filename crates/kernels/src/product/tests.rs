//! Tests of matrix products: all shapes, strides and SIMD levels equal plain loops.
use super::*;
use crate::packed::check::synthetic;

#[test]
fn an_empty_sum_writes_only_its_view() {
    let mut out = [1.0f32; 7];
    let (a, b) = (View::new(&[], 1, 0), View::new(&[], 0, 3));
    product(ViewMut::new(&mut out, 1, 3), a, b, 1.0, Accumulate::Replace);
    assert_eq!(out, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    product_packed(ViewMut::new(&mut out[3..6], 1, 3), a, &PackedRight::new(b), Accumulate::Replace);
    assert_eq!(out, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn every_level_of_either_type_equals_plain_loops() {
    for level in SimdLevel::all() {
        equals_plain_loops::<f64>(level, 1e-11);
        equals_plain_loops::<f32>(level, 2e-3);
    }
}

/// Returns shapes around 1 to 3 tiles, and sums of several blocks.
fn shapes<F: Real>(level: SimdLevel) -> Vec<[usize; 3]> {
    let [mr, nr] = F::tile_shape(level);
    let mut shapes =
        vec![[2, 0, 3], [0, 2, 3], [3, 2, 0], [70, 40, 90], [130, 20, 50], [30, 600, 2 * nr + 1]];
    for m in (1..=mr + 1).chain([2 * mr, 2 * mr + 1, 3 * mr]) {
        for n in [1, nr - 1, nr, nr + 1, 2 * nr, 3 * nr, 4 * nr + 1] {
            shapes.push([m, [1, 2, 7, 16, 33, 257, 512][(m + n) % 7], n]);
        }
    }
    shapes
}

/// Compares all combinations of transposes and strides with plain loops.
fn equals_plain_loops<F: Real>(level: SimdLevel, tolerance: f64) {
    for ([m, k, n], case) in shapes::<F>(level).into_iter().flat_map(|shape| (0..16).map(move |i| (shape, i)))
    {
        let (transpose_a, transpose_b, has_padding, add) =
            (case & 1 != 0, case & 2 != 0, case & 4 != 0, case & 8 != 0);
        let pad = if has_padding { 3 } else { 0 };
        let shape = |is_transposed: bool, rows: usize, cols: usize| {
            if is_transposed { (cols, rows) } else { (rows, cols) }
        };
        let ((a_rows, a_cols), (b_rows, b_cols)) = (shape(transpose_a, m, k), shape(transpose_b, k, n));
        let a: Vec<F> = synthetic(a_rows * (a_cols + pad), 5);
        let b: Vec<F> = synthetic(b_rows * (b_cols + pad), 6);
        let old: Vec<F> = synthetic(m * (n + pad), 7);
        let a_element =
            |i: usize, j: usize| a[if transpose_a { j * (a_cols + pad) + i } else { i * (a_cols + pad) + j }];
        let b_element =
            |i: usize, j: usize| b[if transpose_b { j * (b_cols + pad) + i } else { i * (b_cols + pad) + j }];
        let view_a = View::with_stride(&a, a_rows, a_cols, a_cols + pad);
        let view_b = View::with_stride(&b, b_rows, b_cols, b_cols + pad);
        let view_a = if transpose_a { view_a.transposed() } else { view_a };
        let view_b = if transpose_b { view_b.transposed() } else { view_b };
        let accumulate = if add { Accumulate::Add } else { Accumulate::Replace };
        let run = |columns, alpha: f64| {
            let mut out = old.clone();
            let view = ViewMut::with_stride(&mut out, m, n, n + pad);
            let a = (LeftOperand::View(view_a), view_a.shape());
            multiply(level, view, a, (columns, view_b.shape()), F::from_f64(alpha), accumulate);
            out
        };
        let check = |out: &[F], alpha: f64| {
            for i in 0..m {
                for j in 0..n + pad {
                    let index = i * (n + pad) + j;
                    let sum: f64 = if j < n {
                        (0..k).map(|l| a_element(i, l).to_f64() * b_element(l, j).to_f64()).sum()
                    } else {
                        0.0
                    };
                    let before = if add || j >= n { old[index].to_f64() } else { 0.0 };
                    let error = (out[index].to_f64() - before - alpha * sum).abs();
                    assert!(error < tolerance, "{level:?}, {m}x{k}x{n}, case {case}: {error}");
                }
            }
        };
        let joint = run(RightOperand::View(view_b), 1.0);
        check(&joint, 1.0);
        check(&run(RightOperand::View(view_b), 0.5), 0.5);
        // A packed right operand gives the same bits.
        let mut packed = PackedRight::default();
        packed.pack_for(level, view_b);
        assert_eq!(run(packed.columns(), 1.0), joint, "{level:?}, {m}x{k}x{n}, case {case}");
        // So do parts of the left operand, with or without padding of the right operand's rows.
        let padded_columns = n.next_multiple_of(16);
        let mut padded = vec![F::from_f64(f64::NAN); k * padded_columns];
        (0..k).for_each(|l| (0..n).for_each(|j| padded[l * padded_columns + j] = b_element(l, j)));
        let parts = PackedLeft::new_for(level, view_a, 8);
        for view_b in [view_b, View::with_stride(&padded, k, n, padded_columns)] {
            let mut out = old.clone();
            for (index, out) in out.chunks_mut((8 * (n + pad)).max(1)).enumerate() {
                let (part, shape) = parts.part(index);
                let view = ViewMut::with_stride(out, shape.0, n, n + pad);
                let right = (RightOperand::View(view_b), view_b.shape());
                multiply(level, view, (LeftOperand::Packed(part), shape), right, F::ONE, accumulate);
            }
            assert_eq!(out, joint, "{level:?}, {m}x{k}x{n}, case {case}");
        }
    }
}

#[test]
fn rows_and_columns_have_the_same_bits_together_and_separately() {
    let (m, k, n) = (45, 700, 150);
    let (a, b): (Vec<f32>, Vec<f32>) = (synthetic(m * k, 1), synthetic(k * n, 2));
    let mut joint = vec![0.0; m * n];
    product(
        ViewMut::new(&mut joint, m, n),
        View::new(&a, m, k),
        View::new(&b, k, n),
        1.0,
        Accumulate::Replace,
    );
    for (row, rows, col, cols) in [(0, 1, 0, n), (3, 17, 5, 64), (44, 1, 149, 1), (10, 30, 100, 33)] {
        let mut part = vec![0.0; rows * cols];
        product(
            ViewMut::new(&mut part, rows, cols),
            View::new(&a[row * k..], rows, k),
            View::with_stride(&b[col..], k, cols, n),
            1.0,
            Accumulate::Replace,
        );
        for (i, part) in part.chunks(cols).enumerate() {
            assert_eq!(part, &joint[(row + i) * n + col..][..cols], "row {row}, column {col}");
        }
    }
}

#[test]
fn packing_stays_within_its_bytes() {
    let side = 1500;
    let a: Vec<f64> = synthetic(side * side, 1);
    let mut out = vec![0.0; side * side];
    let view = View::new(&a, side, side);
    product(ViewMut::new(&mut out, side, side), view, view.transposed(), 1.0, Accumulate::Replace);
    let bytes = f64::with_scratch(|scratch| scratch.bytes());
    assert!(
        bytes > 0 && bytes <= packing_bytes::<f64>(),
        "{bytes} bytes, planned {}",
        packing_bytes::<f64>()
    );
}
