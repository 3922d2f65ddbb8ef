//! `WeightReader`: reads the weights of an encoder by name, one tensor at a time.
use kernels::packed::{NumberFormat, QuantizedMatrix, bf16};

use crate::encoders::{ReadTensor, WeightValues};
use crate::quantized_weights::quantize_weight;
use crate::{Error, Result};

/// Reads weights and checks their sizes.
pub(super) struct WeightReader<'a> {
    read: &'a mut ReadTensor<'a>,
    /// Number format of packed weights.
    pub format: NumberFormat,
    /// Whether linear layers and convolutions of the layers have biases.
    pub has_bias: bool,
}

impl<'a> WeightReader<'a> {
    pub(super) fn new(read: &'a mut ReadTensor<'a>, format: NumberFormat, has_bias: bool) -> Self {
        WeightReader { read, format, has_bias }
    }

    /// Reads a parameter of `count` values.
    ///
    /// # Errors
    /// Those of the source; [`Error::Shape`] for another number of values.
    pub(super) fn read(&mut self, name: &str, count: usize) -> Result<Vec<f32>> {
        Ok(self.read_values(name, count)?.into_f32())
    }

    fn read_values(&mut self, name: &str, count: usize) -> Result<WeightValues> {
        let values = (self.read)(name)?;
        if values.count() != count {
            return Err(Error::shape(name, format!("{count} values"), format!("{} values", values.count())));
        }
        Ok(values)
    }

    /// Reads the weight `[outputs, inputs]` of a linear layer.
    ///
    /// # Errors
    /// As [`Self::read`], and as [`quantize_weight`].
    pub(super) fn read_linear(&mut self, name: &str, [outputs, inputs]: [usize; 2]) -> Result<LinearWeight> {
        let values = self.read_values(name, outputs * inputs)?;
        Ok(match (self.format, values) {
            (NumberFormat::Q8, WeightValues::Q8(matrix)) if matrix.columns() == inputs => {
                LinearWeight::Quantized(matrix)
            }
            (NumberFormat::Q8, values) => {
                LinearWeight::Quantized(quantize_weight(name, &values.into_f32(), inputs)?)
            }
            (_, values) => LinearWeight::Values(values.into_f32()),
        })
    }

    /// Reads the bias of a layer, empty if the layers have none.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn read_bias(&mut self, name: &str, count: usize) -> Result<Vec<f32>> {
        if self.has_bias { self.read(&format!("{name}.bias"), count) } else { Ok(Vec::new()) }
    }

    /// Reads `weight` and `bias` of a norm.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn read_norm(&mut self, name: &str, width: usize) -> Result<NormWeights> {
        let weight = self.read(&format!("{name}.weight"), width)?;
        Ok(NormWeights { weight, bias: self.read(&format!("{name}.bias"), width)? })
    }
}

/// The weight of a linear layer before packing.
pub(super) enum LinearWeight {
    Values(Vec<f32>),
    Quantized(QuantizedMatrix),
}

impl LinearWeight {
    /// Appends the rows of another weight of the same format.
    pub(super) fn append(&mut self, other: Self) {
        match (self, other) {
            (LinearWeight::Values(values), LinearWeight::Values(other)) => values.extend(other),
            (LinearWeight::Quantized(matrix), LinearWeight::Quantized(other)) => matrix.append(&other),
            _ => unreachable!("a reader returns the weights of one format"),
        }
    }
}

/// Returns the format of products that 8-bit blocks would make inexact: attention and convolutions.
pub(super) fn unquantized(format: NumberFormat) -> NumberFormat {
    match format {
        NumberFormat::Q8 if bf16::is_native() => NumberFormat::Bf16,
        NumberFormat::Q8 => NumberFormat::F32,
        format => format,
    }
}

/// Weight and bias of a layer norm.
#[derive(Debug)]
pub(super) struct NormWeights {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl NormWeights {
    /// Normalizes one row.
    pub(super) fn apply_row(&self, x: &[f32], out: &mut [f32]) {
        kernels::layer_norm(out, x, &self.weight, &self.bias);
    }

    /// Normalizes each row.
    pub(super) fn apply(&self, x: &[f32], out: &mut [f32]) {
        let width = self.weight.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            self.apply_row(x, out);
        }
    }
}
