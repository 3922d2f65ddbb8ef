//! `PackedWeight`: a weight that is packed once for products with few rows, in `f32` or in 8-bit
//! blocks.
use kernels::packed::{
    NumberFormat, Operand, PackedOperand, QuantizedMatrix, RightPart, RowBits, SumOrder, multiply,
};
use kernels::{Accumulate, PackedLeft, PackedRight, View, ViewMut, product_of_parts, product_packed};

use crate::{Error, Result};

/// A packed weight `[O, I]`.
#[derive(Debug)]
pub(crate) enum PackedWeight {
    F32(PackedRight<f32>),
    Q8(PackedOperand),
}

/// The rows `[n, I]` of a call.
#[derive(Clone, Copy)]
pub(crate) struct InputRows<'a> {
    rows: View<'a, f32>,
    /// The same rows, packed for several products with `f32` weights.
    packed: Option<&'a PackedLeft<f32>>,
    /// The same rows in blocks; unused with `f32` weights.
    quantized: &'a PackedOperand,
}

impl<'a> InputRows<'a> {
    /// Prepares rows for weights of a format; `memory` is reused.
    pub(crate) fn new(
        rows: View<'a, f32>,
        format: NumberFormat,
        row_bits: RowBits,
        memory: &'a mut PackedOperand,
    ) -> Self {
        if format == NumberFormat::Q8 {
            memory.set_row_bits(row_bits);
            memory.fill(rows);
        }
        InputRows { rows, packed: None, quantized: memory }
    }

    /// Adds packed rows, in one part, for products with `f32` weights.
    pub(crate) fn with_packed(self, packed: Option<&'a PackedLeft<f32>>) -> Self {
        InputRows { packed, ..self }
    }

    /// Returns an operand for the memory of [`Self::new`].
    pub(crate) fn memory() -> PackedOperand {
        PackedOperand::new(NumberFormat::Q8, Operand::Left)
    }
}

impl PackedWeight {
    /// Packs a weight with rows of `inputs` values.
    ///
    /// # Errors
    /// [`Error::Shape`] for numbers that 8-bit blocks cannot represent.
    pub(crate) fn new(name: &str, format: NumberFormat, weight: &[f32], inputs: usize) -> Result<Self> {
        match format {
            NumberFormat::Q8 => match QuantizedMatrix::quantize(weight, inputs) {
                Some(matrix) => Ok(PackedWeight::Q8(PackedOperand::from_quantized_rows(&matrix))),
                None => Err(Error::shape(name, "numbers of at most 8e6".into(), "other values")),
            },
            _ => {
                let view = View::new(weight, weight.len() / inputs, inputs);
                Ok(PackedWeight::F32(PackedRight::new(view.transposed())))
            }
        }
    }

    /// Returns the number of outputs O.
    pub(crate) fn outputs(&self) -> usize {
        match self {
            PackedWeight::F32(weight) => weight.shape().1,
            PackedWeight::Q8(weight) => weight.len(),
        }
    }

    /// Returns the number format.
    pub(crate) fn format(&self) -> NumberFormat {
        match self {
            PackedWeight::F32(_) => NumberFormat::F32,
            PackedWeight::Q8(_) => NumberFormat::Q8,
        }
    }

    /// Computes `out (=|+=) x Wᵀ` on the calling thread.
    pub(crate) fn multiply(&self, out: ViewMut<f32>, x: InputRows, accumulate: Accumulate) {
        match self {
            PackedWeight::F32(weight) => match x.packed {
                Some(rows) => product_of_parts(out, (rows, 0), (weight, 0), accumulate),
                None => product_packed(out, x.rows, weight, accumulate),
            },
            PackedWeight::Q8(operand) => {
                let right = RightPart { operand, first_column: 0, first_step: 0 };
                multiply(out, (x.quantized, 0), right, SumOrder::Sequential, accumulate);
            }
        }
    }
}
