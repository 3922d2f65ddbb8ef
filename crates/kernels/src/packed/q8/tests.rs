//! Products at every instruction set, compared with plain loops and `f64`.
use super::quantize::*;
use super::*;
use crate::View;
use crate::packed::Operand;
use crate::packed::check::synthetic;

/// Sizes around those of blocks, micro-panels and parts; few and many rows.
const SHAPES: [[usize; 3]; 17] = [
    [1, 1, 1],
    [2, 31, 33],
    [3, 32, 16],
    [4, 33, 17],
    [5, 64, 31],
    [6, 100, 32],
    [7, 512, 65],
    [8, 513, 96],
    [13, 1100, 40],
    [16, 33, 31],
    [17, 64, 33],
    [25, 70, 130],
    [31, 160, 1],
    [32, 257, 64],
    [33, 256, 65],
    [63, 31, 1],
    [67, 600, 95],
];

/// Numbers whose magnitude differs among blocks, and a few blocks of zeros.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut values: Vec<f32> = synthetic(count, seed);
    for (block, values) in values.chunks_mut(BLOCK_STEPS).enumerate() {
        let factor = [1.0, 1e-3, 0.0, 7.0, 1e-12, 300.0][(block * 7 + seed as usize) % 6];
        values.iter_mut().for_each(|value| *value *= factor);
    }
    values
}

const BITS: [RowBits; 2] = [RowBits::Eight, RowBits::Sixteen];

fn packed_rows(level: Int8, bits: RowBits, view: View<f32>) -> Vec<RowBlock> {
    let source = OperandSource::new(view, Operand::Left);
    let (rows, steps) = source.sizes();
    let count = bits.bytes() * steps.div_ceil(BLOCK_STEPS);
    let mut blocks = vec![RowBlock::ZERO; rows * count];
    for (row, blocks) in blocks.chunks_mut(count).enumerate() {
        pack_row(level, bits, &source, (row, 0), blocks);
    }
    blocks
}

fn packed_columns(level: Int8, view: View<f32>) -> Vec<ColumnBlock> {
    let source = OperandSource::new(view, Operand::Right);
    let (columns, steps) = source.sizes();
    let count = steps.div_ceil(BLOCK_STEPS);
    let mut blocks = vec![ColumnBlock::ZERO; columns.div_ceil(PANEL_COLUMNS) * count];
    for (panel, blocks) in blocks.chunks_mut(count).enumerate() {
        pack_columns(level, &source, (panel * PANEL_COLUMNS, 0), blocks);
    }
    blocks
}

/// Multiplies `x [m, k]` and `w [n, k]` into rows of `n + 3` values.
fn multiply(
    level: Int8,
    bits: RowBits,
    (x, w): (&[f32], &[f32]),
    [m, k, n]: [usize; 3],
    accumulate: Accumulate,
) -> Vec<f32> {
    let left = packed_rows(level, bits, View::new(x, m, k));
    let right = packed_columns(level, View::new(w, n, k).transposed());
    let stride = k.div_ceil(BLOCK_STEPS);
    let mut out = vec![7.0; m * (n + 3)];
    product(
        level,
        ViewMut::with_stride(&mut out, m, n, n + 3),
        bits,
        Blocks { blocks: &left, stride: bits.bytes() * stride },
        Blocks { blocks: &right, stride },
        stride,
        accumulate,
    );
    out
}

#[test]
fn every_level_gives_the_bits_of_plain_loops() {
    for (shape, bits) in SHAPES.into_iter().flat_map(|shape| BITS.map(|bits| (shape, bits))) {
        let [m, k, n] = shape;
        let (x, w) = (numbers(m * k, 1), numbers(n * k, 2));
        let (mut bytes, mut values) = (vec![RowBlock::ZERO; bits.bytes()], [0; BLOCK_STEPS]);
        for accumulate in [Accumulate::Replace, Accumulate::Add] {
            let mut expected = vec![7.0f32; m * (n + 3)];
            for (index, expected) in expected.iter_mut().enumerate() {
                let (row, column) = (index / (n + 3), index % (n + 3));
                if column == n || column == n + 1 || column == n + 2 {
                    continue;
                }
                let mut sum = if accumulate == Accumulate::Add { 7.0 } else { 0.0f32 };
                for first in (0..k).step_by(BLOCK_STEPS) {
                    let steps = first..k.min(first + BLOCK_STEPS);
                    quantize_row_block(bits, &x[row * k..][steps.clone()], &mut bytes);
                    let scale = f16_to_f32(quantize_column_block(&w[column * k..][steps], &mut values));
                    let product = values.iter().enumerate().fold(0, |product, (step, &r)| {
                        let number = bytes.iter().fold(0, |q, byte| 256 * q + i32::from(byte.values[step]));
                        product + number * i32::from(r)
                    });
                    sum += product as f32 * (bytes[0].scale * scale);
                }
                *expected = sum;
            }
            for level in Int8::all() {
                let actual = multiply(level, bits, (&x, &w), shape, accumulate);
                let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
                let position = actual.iter().zip(&expected).position(differs);
                assert_eq!(position, None, "{level:?} {bits:?} {shape:?} {accumulate:?}");
            }
        }
    }
}

/// The bound of the module's documentation, whose n + 7 is the worst case.
#[test]
fn errors_are_within_the_bound() {
    let cases = SHAPES.into_iter().flat_map(|shape| BITS.map(|bits| (shape, bits)));
    for ([m, k, n], bits) in cases {
        let (x, w) = (numbers(m * k, 3), numbers(n * k, 4));
        let actual = multiply(Int8::best(), bits, (&x, &w), [m, k, n], Accumulate::Replace);
        let largest = if bits == RowBits::Eight { 127.0 } else { 32512.0 };
        let max = |values: &[f32]| values.iter().fold(0.0f64, |max, x| max.max(f64::from(x.abs())));
        for (index, actual) in actual.iter().enumerate().filter(|(index, _)| index % (n + 3) < n) {
            let (x, w) = (&x[index / (n + 3) * k..][..k], &w[index % (n + 3) * k..][..k]);
            let (mut exact, mut quantization, mut absolute) = (0.0, 0.0, 0.0);
            for (x, w) in x.chunks(BLOCK_STEPS).zip(w.chunks(BLOCK_STEPS)) {
                let s = max(x).max(0.5f64.powi(60)) / largest;
                let t = max(w) / 127.0 * (1.0 + 0.5f64.powi(10)) + 0.5f64.powi(24);
                for (&x, &w) in x.iter().zip(w) {
                    let (x, w) = (f64::from(x), f64::from(w));
                    exact += x * w;
                    // |t r| <= |w| + t/2
                    quantization += t / 2.0 * x.abs() + s / 2.0 * (w.abs() + t / 2.0);
                    absolute += (x.abs() + s / 2.0) * (w.abs() + t / 2.0);
                }
            }
            let blocks = k.div_ceil(BLOCK_STEPS) as f64;
            let bound = 1.000001 * quantization + (blocks + 3.0) * 0.5f64.powi(24) * absolute;
            let error = (f64::from(*actual) - exact).abs();
            assert!(error <= bound, "[{m}, {k}, {n}] {bits:?} {index}: {error} > {bound}");
        }
    }
}

#[test]
fn every_level_packs_the_same_rows() {
    let (rows, steps) = (5, 200);
    let mut x = numbers(rows * steps, 5);
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX, 1e-40, -1e-40, -0.0, 0.5];
    for (index, value) in special.into_iter().enumerate() {
        x[index * 40 + 3] = value;
    }
    // Halfway between two integers; rounded to even.
    x[600..632].fill(0.0);
    x[600..604].copy_from_slice(&[127.0, 0.5, 1.5, -2.5]);
    let views = [View::new(&x, rows, steps), View::new(&x, steps, rows).transposed()];
    for (view, bits) in views.into_iter().flat_map(|view| BITS.map(|bits| (view, bits))) {
        let expected = packed_rows(Int8::Portable, bits, view);
        assert_eq!(expected.len(), rows * bits.bytes() * steps.div_ceil(BLOCK_STEPS));
        for level in Int8::all() {
            for (index, (actual, expected)) in
                packed_rows(level, bits, view).iter().zip(&expected).enumerate()
            {
                assert_eq!(actual.values, expected.values, "{level:?} {bits:?} {index}");
                assert_eq!(actual.offset, expected.offset, "{level:?} {bits:?} {index}");
                let scales = [actual.scale, expected.scale];
                assert!(scales[0].to_bits() == scales[1].to_bits() || scales.iter().all(|s| s.is_nan()));
            }
        }
    }
    let view = View::new(&x, rows, steps);
    assert_eq!(packed_rows(Int8::best(), RowBits::Eight, view)[21].values[..4], [127, 0, 2, -2]);
    // 127 in 16 bits is 256 · 127.
    let rows = packed_rows(Int8::best(), RowBits::Sixteen, view);
    assert_eq!(rows[42].values[..4], [127, 1, 2, -2]);
    assert_eq!(rows[43].values[..4], [0, -128, -128, -128]);
}

#[test]
fn nonfinite_rows_and_columns_give_nan() {
    let (k, n) = (70, 40);
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let cases = values.into_iter().flat_map(|value| [(value, 4), (value, 35)]);
    for ((value, m), bits) in cases.flat_map(|case| BITS.map(|bits| (case, bits))) {
        let (mut x, mut w) = (numbers(m * k, 6), numbers(n * k, 7));
        (x[k + 65], w[3 * k + 2]) = (value, value);
        for level in Int8::all() {
            let out = multiply(level, bits, (&x, &w), [m, k, n], Accumulate::Replace);
            for (index, y) in out.iter().enumerate().filter(|(index, _)| index % (n + 3) < n) {
                let is_nan = index / (n + 3) == 1 || index % (n + 3) == 3;
                assert_eq!(y.is_nan(), is_nan, "{level:?} {bits:?} {value} {index}");
            }
        }
    }
}

#[test]
fn scales_are_the_next_larger_f16() {
    for bits in 0..0x7c00 {
        let value = f16_to_f32(bits);
        assert_eq!(f16_from_f32_up(value), bits);
        if bits > 0 {
            assert!(value > f16_to_f32(bits - 1));
            assert_eq!(f16_from_f32_up(value.next_down()), bits);
        }
    }
    assert_eq!(f16_to_f32(0x3c00), 1.0);
    assert_eq!(f16_to_f32(0x7bff), F16_MAX);
    assert_eq!([f16_from_f32_up(65504.1), f16_from_f32_up(f32::NAN)], [F16_NAN; 2]);
    assert!(f16_to_f32(F16_NAN).is_nan());
}

#[test]
fn quantized_matrices_have_the_blocks_of_packed_columns() {
    for (rows, columns) in [(1, 1), (33, 100), (70, 64)] {
        let w = numbers(rows * columns, 8);
        let matrix = QuantizedMatrix::quantize(&w, columns).unwrap();
        let count = columns.div_ceil(BLOCK_STEPS);
        for level in Int8::all() {
            let expected = packed_columns(level, View::new(&w, rows, columns).transposed());
            for (panel, expected) in expected.chunks(count).enumerate() {
                let mut blocks = vec![ColumnBlock::ZERO; count];
                pack_quantized(level, &matrix, panel * PANEL_COLUMNS, &mut blocks);
                for (block, expected) in blocks.iter().zip(expected) {
                    assert!(block.values == expected.values && block.scales == expected.scales);
                }
            }
        }
        // The rounding error is half of the scale, which is rounded up to f16.
        let numbers = matrix.dequantize();
        let rows = numbers.chunks(columns).zip(w.chunks(columns));
        for (numbers, w) in rows.flat_map(|(n, w)| n.chunks(BLOCK_STEPS).zip(w.chunks(BLOCK_STEPS))) {
            let max = w.iter().fold(0.0f32, |max, w| max.max(w.abs()));
            let scale = max / 127.0 * (1.0 + 0.5f32.powi(10)) + 0.5f32.powi(24);
            for (number, w) in numbers.iter().zip(w) {
                assert!((number - w).abs() <= scale * 0.5001, "{number} {w} {scale}");
            }
        }
        let parts = (matrix.values().to_vec(), matrix.scales().to_vec());
        assert_eq!(QuantizedMatrix::from_parts(columns, parts.0, parts.1).unwrap(), matrix);
    }
    assert_eq!(QuantizedMatrix::quantize(&[1.0, f32::NAN], 2), None);
    assert_eq!(QuantizedMatrix::quantize(&[1.0, 9e6], 2), None);
    assert_eq!(QuantizedMatrix::quantize(&[1.0; 3], 2), None);
    assert_eq!(QuantizedMatrix::from_parts(2, vec![1; 4], vec![0x7c00, 0]), None);
    assert_eq!(QuantizedMatrix::from_parts(2, vec![1; 4], vec![0; 3]), None);
}
