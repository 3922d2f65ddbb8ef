//! Products of 8-bit blocks: 32 steps of a row or column share one scale.
//!
//! Rows have 8 or 16 bits.
//!
//! ```text
//! x[i, k] ≈ s[i, b] q[i, k]     w[k, j] ≈ t[b, j] r[k, j]      k in block b of 32 steps
//! y[i, j] = Σ_b f32(Σ_(k in b) q[i, k] r[k, j]) · (s[i, b] · t[b, j])
//! ```
//! r: integers from -127 to 127, rounded to nearest even; t: the largest |w| of the block divided
//! by 127, rounded up to f16. q: integers from -Q to Q, Q = 127 in 8 bits and 32,512 in 16; s:
//! `f32`, the largest |x| of the block divided by Q. Sums of a block are exact in 32 bits, and in
//! `f32` if rows have 8 bits; a block is added by one product and one sum in `f32`, without fused
//! multiply-add, in the order of the blocks. All instruction sets give the same bits, which depend
//! only on the row and the column.
//!
//! # Error
//! With m = max(|x| of the block) and M = max(|w| of the block), for n blocks,
//!
//! ```text
//! |y - Σ x w| <= Σ_b (t/2 Σ|x| + s/2 Σ|t r|)  +  (n + 7) 2⁻²⁴ Σ_b Σ |s q t r|
//! s = max(m, 2⁻⁶⁰) / Q      M / 127 <= t <= M / 127 · (1 + 2⁻¹⁰) + 2⁻²⁴
//! ```
//! up to factors of 1 + 2⁻²². A NaN or an infinity in x makes the row NaN; in w these, or numbers
//! above 8.3e6, make the column NaN.
//!
//! # Layout
//! ```text
//! left   rows, each in blocks of 32 integers, scale, and -128 Σ q; in 16 bits, two: high, low
//! right  micro-panels of 32 columns, each in blocks: integers [32 / e][32][e], f16 scales [32]
//! ```
//! e: steps that one instruction combines, 4 with 8-bit dot products and tiles (AMX), 2 elsewhere.
//! Those multiply by unsigned integers: then the right operand contains r + 128, and -128 Σ q is
//! added to the sums. An integer of 16 bits is `256 high + low`, with high from -127 to 127 and low
//! from -128 to 127.
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_wide;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
pub(crate) mod matrix;
mod quantize;
#[cfg(test)]
mod tests;

use matrix::QuantizedMatrix;
use quantize::{f16_to_f32, quantize_column_block, quantize_row_block};

use super::{OperandSource, OutputTile};
use crate::{Accumulate, ViewMut, simd::Int8};

/// Steps of a block.
pub(super) const BLOCK_STEPS: usize = 32;
/// Columns of a micro-panel.
pub(super) const PANEL_COLUMNS: usize = 32;
/// Largest number of rows of a micro-kernel with vectors; rows are divided at multiples of it.
pub(super) const MAX_ROWS: usize = 6;

/// Number of bits of a row's integers.
///
/// In 16 bits, the rounding error is at most 1.6e-5 of the largest value of a block instead of
/// 4e-3. Rows need twice the memory; products need twice the operations with 8-bit dot products and
/// tiles, and as many elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowBits {
    /// Integers from -127 to 127.
    #[default]
    Eight,
    /// Integers from -32,512 to 32,512.
    Sixteen,
}

impl RowBits {
    /// Returns the number of bytes of a number, each in a [`RowBlock`].
    pub(super) fn bytes(self) -> usize {
        match self {
            RowBits::Eight => 1,
            RowBits::Sixteen => 2,
        }
    }
}

/// 32 steps of a left row: all 8 bits, or the high or low 8 of 16.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct RowBlock {
    pub(super) values: [i8; BLOCK_STEPS],
    pub(super) scale: f32,
    /// `-128 Σ values`
    pub(super) offset: i32,
}

impl RowBlock {
    pub(super) const ZERO: Self = RowBlock { values: [0; BLOCK_STEPS], scale: 0.0, offset: 0 };
}

/// 32 steps of 32 right columns.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct ColumnBlock {
    pub(super) values: [u8; BLOCK_STEPS * PANEL_COLUMNS],
    pub(super) scales: [u16; PANEL_COLUMNS],
}

impl ColumnBlock {
    pub(super) const ZERO: Self =
        ColumnBlock { values: [0; BLOCK_STEPS * PANEL_COLUMNS], scales: [0; PANEL_COLUMNS] };

    /// Writes the steps of a column in the layout of `level`.
    pub(super) fn set_column(&mut self, level: Int8, column: usize, values: &[i8; BLOCK_STEPS], scale: u16) {
        self.scales[column] = scale;
        match has_offset(level) {
            true => self.write_steps::<4>(column, values, 128),
            false => self.write_steps::<2>(column, values, 0),
        }
    }

    fn write_steps<const E: usize>(&mut self, column: usize, values: &[i8; BLOCK_STEPS], offset: u8) {
        let groups = self.values.chunks_exact_mut(PANEL_COLUMNS * E);
        for (group, values) in groups.zip(values.chunks_exact(E)) {
            let out = &mut group[column * E..][..E];
            out.iter_mut()
                .zip(values)
                .for_each(|(out, value)| *out = value.cast_unsigned().wrapping_add(offset));
        }
    }
}

/// Returns whether right values have an offset of 128 and groups of 4 steps.
fn has_offset(level: Int8) -> bool {
    match level {
        Int8::Portable => false,
        #[cfg(target_arch = "x86_64")]
        Int8::Avx2(_) => false,
        #[cfg(target_arch = "x86_64")]
        Int8::AvxVnni(_) | Int8::Avx512(_) | Int8::Amx(..) => true,
    }
}

/// Packs blocks of a row, from a step on.
pub(super) fn pack_row(
    level: Int8,
    bits: RowBits,
    source: &OperandSource<f32>,
    (row, first_step): (usize, usize),
    blocks: &mut [RowBlock],
) {
    let OperandSource { data, stride, steps_are_rows, .. } = *source;
    let steps = source.sizes().1;
    if !steps_are_rows {
        let values = &data[row * stride..][first_step.min(steps)..steps];
        return pack_values(level, bits, values, blocks);
    }
    for (index, bytes) in blocks.chunks_mut(bits.bytes()).enumerate() {
        let first = (first_step + index * BLOCK_STEPS).min(steps);
        let mut values = [0.0; BLOCK_STEPS];
        for (value, step) in values.iter_mut().zip(first..steps) {
            *value = data[step * stride + row];
        }
        pack_values(level, bits, &values, bytes);
    }
}

/// Quantizes consecutive steps; steps beyond the values are 0.
fn pack_values(level: Int8, bits: RowBits, values: &[f32], blocks: &mut [RowBlock]) {
    assert!(blocks.len().is_multiple_of(bits.bytes()), "8-bit rows: {} blocks", blocks.len());
    match level {
        Int8::Portable => {
            let mut chunks = values.chunks(BLOCK_STEPS);
            for bytes in blocks.chunks_mut(bits.bytes()) {
                quantize_row_block(bits, chunks.next().unwrap_or(&[]), bytes);
            }
        }
        #[cfg(target_arch = "x86_64")]
        Int8::Avx2(token) => avx2::pack_values(token, bits, values, blocks),
        #[cfg(target_arch = "x86_64")]
        Int8::AvxVnni(token) => avx2::pack_values(token.avx2(), bits, values, blocks),
        #[cfg(target_arch = "x86_64")]
        Int8::Avx512(token) | Int8::Amx(_, token) => avx512::pack_values(token, bits, values, blocks),
    }
}

/// Packs blocks of 32 columns, from a column and step on.
pub(super) fn pack_columns(
    level: Int8,
    source: &OperandSource<f32>,
    (first_column, first_step): (usize, usize),
    blocks: &mut [ColumnBlock],
) {
    let OperandSource { data, stride, steps_are_rows, .. } = *source;
    let (columns, steps) = source.sizes();
    let mut values = [0; BLOCK_STEPS];
    for (index, block) in blocks.iter_mut().enumerate() {
        let first = (first_step + index * BLOCK_STEPS).min(steps);
        let end = steps.min(first + BLOCK_STEPS);
        for offset in 0..PANEL_COLUMNS {
            let column = first_column + offset;
            let mut copy = [0.0; BLOCK_STEPS];
            let w = match (column < columns, steps_are_rows) {
                (false, _) => &[],
                (true, false) => &data[column * stride..][first..end],
                (true, true) => {
                    for (value, step) in copy.iter_mut().zip(first..end) {
                        *value = data[step * stride + column];
                    }
                    &copy[..end - first]
                }
            };
            let scale = quantize_column_block(w, &mut values);
            block.set_column(level, offset, &values, scale);
        }
    }
}

/// Packs rows of a quantized matrix as 32 columns, from `first` on.
pub(super) fn pack_quantized(
    level: Int8,
    matrix: &QuantizedMatrix,
    first: usize,
    blocks: &mut [ColumnBlock],
) {
    for (index, block) in blocks.iter_mut().enumerate() {
        for column in 0..PANEL_COLUMNS {
            let row = first + column;
            let (values, scale) = if row < matrix.rows() { matrix.block(row, index) } else { ([0; _], 0) };
            block.set_column(level, column, &values, scale);
        }
    }
}

/// Blocks of an operand: those of a row or micro-panel, `stride` blocks to the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks<'a, T> {
    pub blocks: &'a [T],
    pub stride: usize,
}

impl<'a, T> Blocks<'a, T> {
    /// Returns the first blocks of a row or micro-panel.
    fn first(&self, index: usize, count: usize) -> &'a [T] {
        &self.blocks[index * self.stride..][..count]
    }
}

/// Computes `out (=|+=) left · right` over a number of blocks of the sum.
pub(super) fn product(
    level: Int8,
    out: ViewMut<f32>,
    bits: RowBits,
    left: Blocks<RowBlock>,
    right: Blocks<ColumnBlock>,
    count: usize,
    accumulate: Accumulate,
) {
    let operands = Operands { left, right, count };
    match bits {
        RowBits::Eight => product_of_rows::<1>(level, out, operands, accumulate),
        RowBits::Sixteen => product_of_rows::<2>(level, out, operands, accumulate),
    }
}

/// Computes a product of rows whose numbers have 1 or 2 bytes.
fn product_of_rows<const BYTES: usize>(
    level: Int8,
    out: ViewMut<f32>,
    operands: Operands,
    accumulate: Accumulate,
) {
    match level {
        Int8::Portable => {
            product_of_tiles::<BYTES>(out, operands, MAX_ROWS, accumulate, |rows, columns, output| {
                with_sums(output, |sums| multiply_plain::<BYTES>(rows, columns, sums));
            })
        }
        #[cfg(target_arch = "x86_64")]
        Int8::Avx2(token) if out.rows >= avx2_wide::MIN_ROWS => {
            avx2_wide::product::<BYTES>(token, out, operands, accumulate);
        }
        #[cfg(target_arch = "x86_64")]
        Int8::Avx2(token) => {
            product_of_tiles::<BYTES>(out, operands, avx2::ROWS, accumulate, |rows, columns, output| {
                with_sums(output, |sums| avx2::multiply::<BYTES>(token, rows, columns, sums));
            })
        }
        #[cfg(target_arch = "x86_64")]
        Int8::AvxVnni(token) => {
            product_of_tiles::<BYTES>(out, operands, avx_vnni::ROWS, accumulate, |rows, columns, output| {
                with_sums(output, |sums| avx_vnni::multiply::<BYTES>(token, rows, columns, sums));
            });
        }
        #[cfg(target_arch = "x86_64")]
        Int8::Amx(amx, vnni) if out.rows >= amx::MIN_ROWS => {
            amx::product::<BYTES>((amx, vnni), out, operands, accumulate);
        }
        #[cfg(target_arch = "x86_64")]
        Int8::Avx512(token) | Int8::Amx(_, token) => {
            product_of_tiles::<BYTES>(out, operands, avx512::ROWS, accumulate, |rows, columns, output| {
                avx512::multiply::<BYTES>(token, rows, columns, output);
            });
        }
    }
}

/// The operands of a product.
#[derive(Clone, Copy)]
struct Operands<'a> {
    left: Blocks<'a, RowBlock>,
    right: Blocks<'a, ColumnBlock>,
    /// Blocks of the sum.
    count: usize,
}

/// Computes a product tile by tile.
///
/// A tile has up to `kernel_rows` rows and 32 columns.
///
/// ```text
/// for columns J of 32:
///   for rows I of a micro-kernel:  out[I, J] (=|+=) left[I] · right[J]
/// ```
/// A micro-panel of 4096 steps has 136 KiB and stays in the second-level cache.
#[inline(always)]
fn product_of_tiles<const BYTES: usize>(
    out: ViewMut<f32>,
    Operands { left, right, count }: Operands,
    kernel_rows: usize,
    accumulate: Accumulate,
    multiply: impl Fn(&[&[RowBlock]], &[ColumnBlock], OutputTile<f32>),
) {
    let ViewMut { data, rows, cols, stride } = out;
    // Groups of nearly equal size.
    let group = rows.div_ceil(rows.div_ceil(kernel_rows).max(1)).max(1);
    for col in (0..cols).step_by(PANEL_COLUMNS) {
        let columns = right.first(col / PANEL_COLUMNS, count);
        for row in (0..rows).step_by(group) {
            let mut tile_rows: [&[RowBlock]; MAX_ROWS] = [&[]; MAX_ROWS];
            let tile_rows = &mut tile_rows[..group.min(rows - row)];
            for (index, tile_row) in tile_rows.iter_mut().enumerate() {
                *tile_row = left.first(row + index, BYTES * count);
            }
            let (out, rows, cols) = (&mut data[row * stride + col..], tile_rows.len(), cols - col);
            let output = OutputTile { out, rows, cols: cols.min(PANEL_COLUMNS), stride, accumulate };
            multiply(tile_rows, columns, output);
        }
    }
}

/// Returns the bytes of the numbers of a block of a row.
#[inline(always)]
fn block_bytes<const BYTES: usize>(row: &[RowBlock], block: usize) -> &[RowBlock; BYTES] {
    row[BYTES * block..].first_chunk().expect("the bytes of a block")
}

/// Returns the integers of a block: `256 high + low` for two bytes.
#[inline(always)]
fn row_integers<const BYTES: usize>(bytes: &[RowBlock; BYTES]) -> [i16; BLOCK_STEPS] {
    std::array::from_fn(|step| {
        bytes.iter().fold(0, |value, byte| (value << 8) + i16::from(byte.values[step]))
    })
}

/// Sums of a row of a tile.
type TileRow = [f32; PANEL_COLUMNS];

/// Calls `multiply` with a copy of the output tile.
#[inline(always)]
fn with_sums<const M: usize>(output: OutputTile<f32>, multiply: impl FnOnce(&mut [TileRow; M])) {
    let OutputTile { out, rows, cols, stride, accumulate } = output;
    let mut sums = [[0.0; PANEL_COLUMNS]; M];
    if accumulate == Accumulate::Add {
        for (row, sums) in sums.iter_mut().enumerate().take(rows) {
            sums[..cols].copy_from_slice(&out[row * stride..][..cols]);
        }
    }
    multiply(&mut sums);
    for (row, sums) in sums.iter().enumerate().take(rows) {
        out[row * stride..][..cols].copy_from_slice(&sums[..cols]);
    }
}

/// Portable micro-kernel in plain loops.
fn multiply_plain<const BYTES: usize>(
    rows: &[&[RowBlock]],
    columns: &[ColumnBlock],
    sums: &mut [TileRow; MAX_ROWS],
) {
    for (index, column_block) in columns.iter().enumerate() {
        let scales = column_block.scales.map(f16_to_f32);
        let mut widened = [0i16; BLOCK_STEPS * PANEL_COLUMNS];
        for (to, value) in widened.iter_mut().zip(&column_block.values) {
            *to = i16::from(value.cast_signed());
        }
        for (row, sums) in rows.iter().zip(sums.iter_mut()) {
            let bytes: &[RowBlock; BYTES] = block_bytes(row, index);
            let mut products = [0i32; PANEL_COLUMNS];
            let numbers = row_integers(bytes);
            let pairs = numbers.as_chunks::<2>().0;
            for (pair, values) in pairs.iter().zip(widened.as_chunks::<{ 2 * PANEL_COLUMNS }>().0) {
                let [first, second] = pair.map(i32::from);
                for (column, sum) in products.iter_mut().enumerate() {
                    *sum +=
                        first * i32::from(values[2 * column]) + second * i32::from(values[2 * column + 1]);
                }
            }
            for ((sum, product), scale) in sums.iter_mut().zip(products).zip(scales) {
                *sum += product as f32 * (bytes[0].scale * scale);
            }
        }
    }
}
