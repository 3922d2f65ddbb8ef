//! Affine layers of decoding networks: weights packed once, few rows per call.
//!
//! A strip is a range of outputs whose weights are packed separately; strips run in parallel. I:
//! inputs of a layer; O: outputs; n: rows of a call.
use kernels::packed::{NumberFormat, PackedOperand, RowBits};
use kernels::{Accumulate, AlignedVec, PackedLeft, View, ViewMut, add, par_for, parts, parts_mut};

use crate::packed_weight::{InputRows, PackedWeight};
use crate::{Error, Result};

/// Weights of a strip; a strip fits into the second-level cache of a core together with the rows.
const WEIGHTS_PER_STRIP: usize = 80_000;
/// Divisor of the columns of a strip: the columns of a micro-panel of the matrix product.
const COLUMN_MULTIPLE: usize = 32;
/// Rows of a parallel task; with more rows than this, tasks are blocks of rows instead of strips.
const ROWS_PER_TASK: usize = 56;

/// `y = x Wᵀ + b` for a few rows at a time.
///
/// The weight `[O, I]` is stored in strips of outputs that are packed separately: with few rows a
/// step is bound by memory bandwidth, so each core reads different strips. Sums have a fixed order
/// that does not depend on the other rows.
#[derive(Debug)]
pub struct AffineLayer {
    strips: Vec<PackedWeight>,
    /// Outputs of a strip; the last strip may have fewer.
    strip_outputs: usize,
    inputs: usize,
    bias: Vec<f32>,
    /// Bits of rows in q8.
    row_bits: RowBits,
}

/// Outputs of a strip of a layer with `inputs` inputs.
pub(crate) fn strip_outputs(inputs: usize) -> usize {
    (WEIGHTS_PER_STRIP / inputs.max(1)).max(1).next_multiple_of(COLUMN_MULTIPLE)
}

impl AffineLayer {
    /// Packs a weight `[O, I]` and a bias `[O]` (none: 0).
    ///
    /// # Errors
    /// [`Error::Shape`] if the weight is not whole rows, or the bias is not O values.
    pub fn new(name: &str, weight: &[f32], inputs: usize, bias: Option<&[f32]>) -> Result<Self> {
        Self::with_format(NumberFormat::F32, name, weight, inputs, bias)
    }

    /// Packs a layer in a number format.
    ///
    /// With [`NumberFormat::Q8`], products have weights and rows in 8-bit blocks and biases in
    /// `f32`; other formats are `f32`. [`Self::with_row_bits`] selects rows of 16 bits.
    ///
    /// # Errors
    /// As [`Self::new`]; also for numbers above 8e6 in 8-bit blocks.
    pub fn with_format(
        format: NumberFormat,
        name: &str,
        weight: &[f32],
        inputs: usize,
        bias: Option<&[f32]>,
    ) -> Result<Self> {
        let outputs = weight.len() / inputs.max(1);
        if inputs == 0 || outputs == 0 || weight.len() != outputs * inputs {
            return Err(Error::shape(
                name,
                format!("whole rows of {inputs}, at least one of each"),
                weight.len(),
            ));
        }
        if let Some(bias) = bias.filter(|bias| bias.len() != outputs) {
            return Err(Error::shape(name, format!("a bias of {outputs}"), bias.len()));
        }
        let strip_outputs = strip_outputs(inputs).min(outputs);
        let strips = weight.chunks(strip_outputs * inputs);
        let strips =
            strips.map(|strip| PackedWeight::new(name, format, strip, inputs)).collect::<Result<_>>()?;
        let bias = bias.map_or_else(|| vec![0.0; outputs], <[f32]>::to_vec);
        Ok(Self { strips, strip_outputs, inputs, bias, row_bits: RowBits::default() })
    }

    /// Returns this layer with another number of bits of rows in q8.
    pub fn with_row_bits(self, row_bits: RowBits) -> Self {
        Self { row_bits, ..self }
    }

    /// Number of inputs I.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of outputs O.
    pub fn outputs(&self) -> usize {
        self.bias.len()
    }

    /// Number of values that [`Self::forward`] needs in scratch memory for `rows` rows.
    pub fn scratch_len(&self, rows: usize) -> usize {
        if rows > ROWS_PER_TASK || self.strips.len() == 1 { 0 } else { rows * self.outputs() }
    }

    /// Computes `y = x Wᵀ + b`.
    ///
    /// # Shapes
    /// `x` *n x I*, `y` *n x O*.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn forward(&self, x: &[f32], y: &mut [f32], scratch: &mut NetworkScratch) {
        let rows = y.len() / self.outputs();
        let ([products, ..], [quantized, _]) = scratch.buffers([self.scratch_len(rows), 0, 0]);
        self.forward_in(x, y, products, quantized);
    }

    /// Returns `x Wᵀ + b` as a new vector.
    ///
    /// # Panics
    /// If the rows are not whole.
    pub fn forward_rows(&self, x: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; x.len() / self.inputs * self.outputs()];
        self.forward(x, &mut y, &mut NetworkScratch::default());
        y
    }

    /// [`Self::forward`] with scratch memory of [`Self::scratch_len`] values from the caller.
    ///
    /// `quantized` is the memory of [`InputRows`].
    ///
    /// ```text
    /// few rows:   for strips of outputs: strip = x W[strip]ᵀ, then y[:, strip] = strip + b
    /// many rows:  for blocks of rows, for strips of outputs:
    ///                 y[block, strip] = x[block] W[strip]ᵀ + b
    /// ```
    pub(crate) fn forward_in(
        &self,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut [f32],
        quantized: &mut PackedOperand,
    ) {
        let (inputs, outputs, strip_outputs) = (self.inputs, self.outputs(), self.strip_outputs);
        let rows = y.len() / outputs;
        assert!(x.len() == rows * inputs && y.len() == rows * outputs, "affine: {inputs} to {outputs}");
        if rows == 0 {
            return;
        }
        // Many rows: a task computes a block of rows.
        if rows > ROWS_PER_TASK || self.strips.len() == 1 {
            par_for(
                (parts_mut(y, ROWS_PER_TASK * outputs), parts(x, ROWS_PER_TASK * inputs)),
                |_, (y, x)| self.forward_block(x, y),
            );
            return;
        }
        // Few rows: a task computes a strip of outputs, then the strips are copied into the rows.
        let products = &mut scratch[..rows * outputs];
        let x = InputRows::new(View::new(x, rows, inputs), self.format(), self.row_bits, quantized);
        par_for(
            (parts_mut(products, rows * strip_outputs), parts(&self.strips, 1)),
            |_, (product, strip)| {
                let columns = product.len() / rows;
                strip[0].multiply(ViewMut::new(product, rows, columns), x, Accumulate::Replace);
            },
        );
        for (strip, (product, bias)) in
            products.chunks(rows * strip_outputs).zip(self.bias.chunks(strip_outputs)).enumerate()
        {
            for (row, product_row) in product.chunks_exact(bias.len()).enumerate() {
                let y_strip = &mut y[row * outputs + strip * strip_outputs..][..bias.len()];
                y_strip.copy_from_slice(product_row);
                add(y_strip, bias);
            }
        }
    }

    fn format(&self) -> NumberFormat {
        self.strips[0].format()
    }

    /// Computes a block of rows, one parallel task.
    fn forward_block(&self, x: &[f32], y: &mut [f32]) {
        let (inputs, outputs) = (self.inputs, self.outputs());
        let rows = y.len() / outputs;
        let (x, format) = (View::new(x, rows, inputs), self.format());
        // Packed once for all strips.
        let packs_rows = format == NumberFormat::F32 && self.strips.len() > 1;
        let packed = packs_rows.then(|| PackedLeft::new(x, rows));
        let mut quantized = InputRows::memory();
        let x = InputRows::new(x, format, self.row_bits, &mut quantized).with_packed(packed.as_ref());
        for (index, strip) in self.strips.iter().enumerate() {
            let columns = strip.outputs();
            let out = ViewMut::with_stride(&mut y[index * self.strip_outputs..], rows, columns, outputs);
            strip.multiply(out, x, Accumulate::Replace);
        }
        y.chunks_exact_mut(outputs).for_each(|y| add(y, &self.bias));
    }
}

/// Scratch memory of networks, reused from step to step; buffers only grow.
#[derive(Debug)]
pub struct NetworkScratch {
    buffers: [AlignedVec<f32>; 3],
    quantized: [PackedOperand; 2],
}

impl Default for NetworkScratch {
    fn default() -> Self {
        let quantized = [InputRows::memory(), InputRows::memory()];
        NetworkScratch { buffers: Default::default(), quantized }
    }
}

impl NetworkScratch {
    /// Returns buffers of at least the given lengths, and memory of [`InputRows`].
    ///
    /// They contain the values of earlier steps.
    pub(crate) fn buffers(&mut self, sizes: [usize; 3]) -> ([&mut [f32]; 3], &mut [PackedOperand; 2]) {
        let mut sizes = sizes.into_iter();
        let buffers = self.buffers.each_mut().map(|buffer| buffer.ensure_len(sizes.next().unwrap_or(0), 0.0));
        (buffers, &mut self.quantized)
    }
}

/// Resizes a buffer to exactly `len` values without freeing memory.
pub(crate) fn resized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    // `truncate` first, so that existing values are not written again.
    buffer.truncate(len);
    buffer.resize(len, 0.0);
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_values(count: usize, step: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * step).sin()).collect()
    }

    #[test]
    fn rows_match_plain_loops_for_every_batch() {
        for (inputs, outputs) in [(1, 1), (3, 5), (640, 300), (2000, 100), (700, 129)] {
            let (weight, bias) = (test_values(inputs * outputs, 0.37), test_values(outputs, 1.1));
            let layer = AffineLayer::new("weight", &weight, inputs, Some(&bias)).unwrap();
            let x = test_values(120 * inputs, 0.11);
            let mut y_of_all_rows = vec![f32::NAN; 120 * outputs];
            layer.forward(&x, &mut y_of_all_rows, &mut NetworkScratch::default());
            for rows in [1, 2, 7, 56, 57] {
                let mut y = vec![f32::NAN; rows * outputs];
                layer.forward(&x[..rows * inputs], &mut y, &mut NetworkScratch::default());
                assert_eq!(y, y_of_all_rows[..rows * outputs], "{rows} rows, {inputs} to {outputs}");
            }
            for (y, x) in y_of_all_rows.chunks(outputs).zip(x.chunks(inputs)) {
                for ((y, w), b) in y.iter().zip(weight.chunks(inputs)).zip(&bias) {
                    let sum: f64 = w.iter().zip(x).map(|(w, x)| f64::from(w * x)).sum();
                    assert!((f64::from(*y) - sum - f64::from(*b)).abs() < 1e-3, "{y} {sum}");
                }
            }
        }
    }

    /// An upper bound of the error of `x · w` in 8-bit blocks.
    fn quantization_error(bits: RowBits, x: &[f32], w: &[f32]) -> f64 {
        let largest = if bits == RowBits::Eight { 127.0 } else { 32512.0 };
        let max = |values: &[f32]| values.iter().fold(0.0, |max: f64, v| max.max(f64::from(v.abs())));
        let sum = |values: &[f32]| values.iter().map(|v| f64::from(v.abs())).sum::<f64>();
        let block = |(x, w): (&[f32], &[f32])| {
            let (s, t) = (max(x) / largest, max(w) / 127.0 * (1.0 + 2f64.powi(-10)) + 2f64.powi(-24));
            t / 2.0 * sum(x) + s / 2.0 * (sum(w) + x.len() as f64 * t / 2.0)
        };
        x.chunks(32).zip(w.chunks(32)).map(block).sum()
    }

    #[test]
    fn quantized_rows_are_within_the_error_of_blocks_for_every_batch() {
        let shapes = [(1, 1), (3, 5), (640, 300), (2000, 100), (700, 129), (33, 2500)];
        let cases = shapes.into_iter().flat_map(|shape| [(shape, RowBits::Eight), (shape, RowBits::Sixteen)]);
        for ((inputs, outputs), bits) in cases {
            let (weight, bias) = (test_values(inputs * outputs, 0.37), test_values(outputs, 1.1));
            let layer =
                AffineLayer::with_format(NumberFormat::Q8, "weight", &weight, inputs, Some(&bias)).unwrap();
            let layer = layer.with_row_bits(bits);
            assert_eq!((layer.inputs(), layer.outputs()), (inputs, outputs));
            let x = test_values(120 * inputs, 0.11);
            let mut y_of_all_rows = vec![f32::NAN; 120 * outputs];
            let mut scratch = NetworkScratch::default();
            layer.forward(&x, &mut y_of_all_rows, &mut scratch);
            for rows in [1, 2, 7, 56, 57] {
                let mut y = vec![f32::NAN; rows * outputs];
                layer.forward(&x[..rows * inputs], &mut y, &mut scratch);
                assert_eq!(y, y_of_all_rows[..rows * outputs], "{rows} rows, {inputs} to {outputs}");
            }
            let mut has_error = false;
            for (y, x) in y_of_all_rows.chunks(outputs).zip(x.chunks(inputs)) {
                for ((y, w), b) in y.iter().zip(weight.chunks(inputs)).zip(&bias) {
                    let sum: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                    let error = (f64::from(*y) - sum - f64::from(*b)).abs();
                    has_error |= error > 1e-6;
                    assert!(
                        error <= quantization_error(bits, x, w) + 1e-4,
                        "{error} {bits:?} {inputs} to {outputs}"
                    );
                }
            }
            // A weight of 0 is exact.
            assert!(has_error || inputs == 1, "8-bit blocks round, {inputs} to {outputs}");
        }
    }

    #[test]
    fn numbers_that_blocks_cannot_represent_are_errors() {
        for value in [f32::NAN, f32::INFINITY, 1e7] {
            let error = AffineLayer::with_format(NumberFormat::Q8, "head", &[1.0, value], 2, None);
            assert!(error.unwrap_err().to_string().starts_with("head: expected numbers of at most 8e6"));
        }
    }

    #[test]
    fn mismatched_shapes_are_errors() {
        let error = |weight: usize, inputs, bias: Option<&[f32]>| {
            AffineLayer::new("head", &vec![0.0; weight], inputs, bias).unwrap_err().to_string()
        };
        assert!(error(5, 2, None).starts_with("head: expected whole rows of 2"));
        assert!(error(0, 2, None).contains("at least one"));
        assert!(error(6, 2, Some(&[0.0])).contains("a bias of 3"));
    }
}
