//! Products of packed operands compared with plain loops.
use super::*;
use crate::packed::check::synthetic;
use crate::{Accumulate, ViewMut};

/// Formats, and the bits of rows.
const FORMATS: [(NumberFormat, RowBits); 4] = [
    (NumberFormat::F32, RowBits::Eight),
    (NumberFormat::Bf16, RowBits::Eight),
    (NumberFormat::Q8, RowBits::Eight),
    (NumberFormat::Q8, RowBits::Sixteen),
];

/// Returns the numbers that packed rows of `steps` values represent.
fn rounded(
    (format, bits): (NumberFormat, RowBits),
    operand: Operand,
    values: &[f32],
    steps: usize,
) -> Vec<f64> {
    let largest = if bits == RowBits::Eight { 127.0 } else { 32512.0 };
    let block = |block: &[f32]| -> Vec<f32> {
        let max = block.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        block.iter().map(|x| (x * (largest / max)).round_ties_even() * (max / largest)).collect()
    };
    let rounded: Vec<f32> = match (format, operand) {
        (NumberFormat::F32, _) => values.to_vec(),
        (NumberFormat::Bf16, _) => {
            let round = |bits: u32| bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
            values.iter().map(|x| f32::from_bits(round(x.to_bits()))).collect()
        }
        (NumberFormat::Q8, Operand::Left) => {
            values.chunks(steps).flat_map(|row| row.chunks(32).flat_map(block)).collect()
        }
        (NumberFormat::Q8, Operand::Right) => QuantizedMatrix::quantize(values, steps).unwrap().dequantize(),
    };
    rounded.into_iter().map(f64::from).collect()
}

/// Packs rows by tiles, in tasks.
fn packed_by_tiles(
    (format, bits): (NumberFormat, RowBits),
    x: &[f32],
    rows: usize,
    depth: usize,
    steps: usize,
) -> PackedOperand {
    let mut packed = PackedOperand::new(format, Operand::Left);
    packed.set_row_bits(bits);
    packed.resize(rows, depth);
    let band = 2 * packed.row_multiple();
    let bands = rows.div_ceil(band);
    par_for(packed.tiles_mut(band, steps), |index, mut tile| {
        let (first_row, first_step) = (index % bands * band, index / bands * steps);
        let (rows, steps) = (band.min(rows - first_row), steps.min(depth - first_step));
        tile.pack(View::with_stride(&x[first_row * depth + first_step..], rows, steps, depth));
    });
    packed
}

#[test]
fn products_of_parts_equal_plain_loops() {
    for (format, bits) in FORMATS {
        for (rows, depth, columns) in [
            (1, 1, 1),
            (2, 40, 70),
            (3, 33, 130),
            (14, 64, 32),
            (15, 100, 65),
            (40, 1100, 300),
            (129, 520, 96),
        ] {
            let x: Vec<f32> = synthetic(rows * depth, 1);
            let w: Vec<f32> = synthetic(columns * (depth + 32), 2);
            let left = packed_by_tiles((format, bits), &x, rows, depth, if depth > 64 { 64 } else { depth });
            let rounded_x = rounded((format, bits), Operand::Left, &x, depth);
            let rounded_w = rounded((format, bits), Operand::Right, &w, depth + 32);
            // Steps 32.. of a deeper weight [O, I].
            let right = PackedOperand::packed(
                format,
                Operand::Right,
                View::new(&w, columns, depth + 32).transposed(),
            );
            let mut serial = PackedOperand::new(format, Operand::Right);
            serial.fill(View::new(&w, columns, depth + 32).transposed());
            let first_column = if columns > 64 { 64 } else { 0 };
            for order in [SumOrder::Blocked, SumOrder::Sequential] {
                let count = columns - first_column;
                let first_row = if rows > 100 { left.row_multiple() } else { 0 };
                let mut out = vec![7.0; (rows - first_row) * (count + 3)];
                let mut same = out.clone();
                for (operand, out) in [(&right, &mut out), (&serial, &mut same)] {
                    let part = RightPart { operand, first_column, first_step: 32 };
                    let view = ViewMut::with_stride(out, rows - first_row, count, count + 3);
                    multiply(view, (&left, first_row), part, order, Accumulate::Add);
                }
                assert_eq!(out, same);
                for (i, row) in out.chunks(count + 3).enumerate() {
                    for (j, actual) in row.iter().enumerate() {
                        let term = |k: usize| {
                            rounded_x[(first_row + i) * depth + k]
                                * rounded_w[(first_column + j) * (depth + 32) + 32 + k]
                        };
                        let expected = 7.0 + if j < count { (0..depth).map(term).sum() } else { 0.0 };
                        let error = (f64::from(*actual) - expected).abs();
                        assert!(
                            error < 2e-4 + 3e-6 * expected.abs(),
                            "{format:?} {bits:?} {rows} x {depth} x {columns}: {actual} {expected}"
                        );
                    }
                }
            }
        }
    }
}

/// Attention and batches rely on it.
#[test]
fn bits_do_not_depend_on_other_rows_nor_on_leading_zeros() {
    let (rows, depth, columns) = (31, 700, 50);
    let (x, w): (Vec<f32>, Vec<f32>) = (synthetic(rows * depth, 3), synthetic(columns * depth, 4));
    for (format, bits) in FORMATS {
        let right = PackedOperand::packed(format, Operand::Right, View::new(&w, columns, depth).transposed());
        let product = |rows: &[f32], depth: usize, right: RightPart, order: SumOrder| {
            let count = rows.len() / depth;
            let mut left = PackedOperand::new(format, Operand::Left);
            left.set_row_bits(bits);
            left.fill(View::new(rows, count, depth));
            let mut out = vec![f32::NAN; count * columns];
            multiply(ViewMut::new(&mut out, count, columns), (&left, 0), right, order, Accumulate::Replace);
            out
        };
        let all_parts = RightPart { operand: &right, first_column: 0, first_step: 0 };
        for order in [SumOrder::Blocked, SumOrder::Sequential] {
            let together = product(&x, depth, all_parts, order);
            for count in [1, 2, 5, 13] {
                assert_eq!(
                    product(&x[..count * depth], depth, all_parts, order),
                    together[..count * columns]
                );
            }
        }
        // 64 zeros in front of the last 636 steps.
        let mut masked = x.clone();
        masked.chunks_mut(depth).for_each(|row| row[..64].fill(0.0));
        let tail: Vec<f32> = x.chunks(depth).flat_map(|row| row[64..].to_vec()).collect();
        let part = RightPart { first_step: 64, ..all_parts };
        let expected = product(&tail, depth - 64, part, SumOrder::Sequential);
        assert_eq!(product(&masked, depth, all_parts, SumOrder::Sequential), expected, "{format:?} {bits:?}");
    }
}

#[test]
fn columns_are_packed_in_several_calls() {
    let (depth, columns) = (20, 150);
    let w: Vec<f32> = synthetic(columns * depth, 5);
    for (format, _) in FORMATS {
        let mut right = PackedOperand::new(format, Operand::Right);
        right.resize(columns, depth);
        for first in [0, 64, 128] {
            let count = 64.min(columns - first);
            right.fill_columns(first, View::new(&w[first * depth..], count, depth).transposed());
        }
        let expected =
            PackedOperand::packed(format, Operand::Right, View::new(&w, columns, depth).transposed());
        let mut left = PackedOperand::new(format, Operand::Left);
        left.fill(View::new(&w, 3, depth));
        let [out, same] = [&right, &expected].map(|operand| {
            let mut out = vec![0.0; 3 * columns];
            let part = RightPart { operand, first_column: 0, first_step: 0 };
            multiply(
                ViewMut::new(&mut out, 3, columns),
                (&left, 0),
                part,
                SumOrder::Blocked,
                Accumulate::Replace,
            );
            out
        });
        assert_eq!(out, same);
    }
}

#[test]
fn an_operand_changes_the_bits_of_its_rows() {
    let (rows, depth, columns) = (7, 70, 33);
    let (x, w): (Vec<f32>, Vec<f32>) = (synthetic(rows * depth, 6), synthetic(columns * depth, 7));
    let (x, w) = (View::new(&x, rows, depth), View::new(&w, columns, depth).transposed());
    let right = PackedOperand::packed(NumberFormat::Q8, Operand::Right, w);
    let product = |left: &PackedOperand| {
        let mut out = vec![0.0; rows * columns];
        let part = RightPart { operand: &right, first_column: 0, first_step: 0 };
        let view = ViewMut::new(&mut out, rows, columns);
        multiply(view, (left, 0), part, SumOrder::Sequential, Accumulate::Replace);
        out
    };
    let new = |bits| {
        let mut left = PackedOperand::new(NumberFormat::Q8, Operand::Left);
        left.set_row_bits(bits);
        left.fill(x);
        left
    };
    let expected = [RowBits::Eight, RowBits::Sixteen].map(|bits| product(&new(bits)));
    assert_ne!(expected[0], expected[1]);
    let mut left = new(RowBits::Sixteen);
    for (bits, expected) in [(RowBits::Eight, &expected[0]), (RowBits::Sixteen, &expected[1])] {
        left.set_row_bits(bits);
        assert!(left.is_empty());
        left.fill(x);
        assert_eq!(&product(&left), expected);
        let requirement = PackedOperand::row_requirement(NumberFormat::Q8, bits, rows, depth);
        assert_eq!(requirement.bytes(), rows * 3 * 40 * if bits == RowBits::Eight { 1 } else { 2 });
    }
}
