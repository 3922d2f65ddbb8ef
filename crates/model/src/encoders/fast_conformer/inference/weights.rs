//! `WeightReader`: reads the weights of an encoder by name, one tensor at a time.
use kernels::packed::NumberFormat;

use crate::encoders::ReadTensor;
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
        let values = (self.read)(name)?;
        if values.len() != count {
            return Err(Error::shape(name, format!("{count} values"), format!("{} values", values.len())));
        }
        Ok(values)
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
