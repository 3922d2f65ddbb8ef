//! `QuantizedMatrix`: rows of 8-bit blocks, as files contain them.
use super::BLOCK_STEPS;
use super::quantize::{f16_to_f32, quantize_column_block};
use crate::{par_for, parts_mut};

/// Rows that a task quantizes.
const ROWS_PER_TASK: usize = 32;
/// The bits of infinity in f16; those of valid scales are smaller.
const INVALID_SCALE: u16 = 0x7c00;

/// A matrix in 8-bit blocks of 32 columns that share a scale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizedMatrix {
    columns: usize,
    values: Vec<i8>,
    scales: Vec<u16>,
}

impl QuantizedMatrix {
    /// Returns the number of scales of a row.
    pub fn blocks(columns: usize) -> usize {
        columns.div_ceil(BLOCK_STEPS)
    }

    /// Creates a matrix from integers `[rows, columns]` and f16 scales `[rows, blocks]`.
    ///
    /// None if the lengths do not match, or a scale is negative, infinite or NaN.
    pub fn from_parts(columns: usize, values: Vec<i8>, scales: Vec<u16>) -> Option<Self> {
        let rows = values.len() / columns.max(1);
        let is_valid = columns > 0
            && values.len() == rows * columns
            && scales.len() == rows * Self::blocks(columns)
            && scales.iter().all(|&scale| scale < INVALID_SCALE);
        is_valid.then_some(QuantizedMatrix { columns, values, scales })
    }

    /// Quantizes rows of `columns` values, in parallel.
    ///
    /// None if they are not whole rows, or a value is not finite or above 8.3e6.
    pub fn quantize(matrix: &[f32], columns: usize) -> Option<Self> {
        if columns == 0 || !matrix.len().is_multiple_of(columns) {
            return None;
        }
        let (rows, blocks) = (matrix.len() / columns, Self::blocks(columns));
        let (mut values, mut scales) = (vec![0i8; rows * columns], vec![0u16; rows * blocks]);
        let tasks =
            (parts_mut(&mut values, ROWS_PER_TASK * columns), parts_mut(&mut scales, ROWS_PER_TASK * blocks));
        par_for(tasks, |task, (values, scales)| {
            let matrix = &matrix[task * ROWS_PER_TASK * columns..][..values.len()];
            let rows = matrix.chunks(columns).zip(values.chunks_mut(columns)).zip(scales.chunks_mut(blocks));
            for ((row, values), scales) in rows {
                let blocks = row.chunks(BLOCK_STEPS).zip(values.chunks_mut(BLOCK_STEPS)).zip(scales);
                for ((block, values), scale) in blocks {
                    let mut quantized = [0; BLOCK_STEPS];
                    *scale = quantize_column_block(block, &mut quantized);
                    values.copy_from_slice(&quantized[..values.len()]);
                }
            }
        });
        Self::from_parts(columns, values, scales)
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    /// Returns the number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the integers, `[rows, columns]`.
    pub fn values(&self) -> &[i8] {
        &self.values
    }

    /// Returns the scales as bits of f16, `[rows, blocks]`.
    pub fn scales(&self) -> &[u16] {
        &self.scales
    }

    /// Returns the numbers that the blocks represent.
    pub fn dequantize(&self) -> Vec<f32> {
        let scales = self.scales.chunks(Self::blocks(self.columns));
        let rows = self.values.chunks(self.columns).zip(scales);
        let blocks = rows.flat_map(|(values, scales)| values.chunks(BLOCK_STEPS).zip(scales));
        let numbers = blocks.flat_map(|(values, &scale)| {
            let scale = f16_to_f32(scale);
            values.iter().map(move |&value| f32::from(value) * scale)
        });
        numbers.collect()
    }

    /// Appends the rows of another matrix.
    ///
    /// # Panics
    /// If it has another number of columns.
    pub fn append(&mut self, other: &Self) {
        assert_eq!(self.columns, other.columns, "rows of different lengths");
        self.values.extend(&other.values);
        self.scales.extend(&other.scales);
    }

    /// Returns the matrix whose row i is row `index(i)` of this one.
    #[must_use]
    pub fn select_rows(&self, indices: impl IntoIterator<Item = usize>) -> Self {
        let blocks = Self::blocks(self.columns);
        let mut selected = QuantizedMatrix { columns: self.columns, values: Vec::new(), scales: Vec::new() };
        selected.values.reserve(self.values.len());
        selected.scales.reserve(self.scales.len());
        for row in indices {
            selected.values.extend(&self.values[row * self.columns..][..self.columns]);
            selected.scales.extend(&self.scales[row * blocks..][..blocks]);
        }
        selected
    }

    /// Returns the integers and the scale of a block; integers beyond the columns are 0.
    pub(crate) fn block(&self, row: usize, block: usize) -> ([i8; BLOCK_STEPS], u16) {
        let first = block * BLOCK_STEPS;
        let values = &self.values[row * self.columns..][first..self.columns.min(first + BLOCK_STEPS)];
        let mut padded = [0; BLOCK_STEPS];
        padded[..values.len()].copy_from_slice(values);
        (padded, self.scales[row * Self::blocks(self.columns) + block])
    }
}
