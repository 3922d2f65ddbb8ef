//! `InferenceEncoder`: the trait of encoders with packed weights.
use std::collections::BTreeMap;
use std::sync::Arc;

use candle_nn::VarBuilder;
use kernels::packed::{NumberFormat, QuantizedMatrix};

use super::EncoderStream;
use crate::checkpoint_file::matrix_shape;
use crate::quantized_weights::{is_encoder_matrix, quantize_weight};
use crate::{Error, Parameters, Result};

/// Encoder rows of several utterances, one after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodedRows {
    /// `[Σ T_b, W]`
    pub rows: Vec<f32>,
    /// The number of rows of each utterance.
    pub lengths: Vec<usize>,
}

/// The values of a parameter, as they are stored.
#[derive(Debug, Clone, PartialEq)]
pub enum WeightValues {
    /// Numbers.
    F32(Vec<f32>),
    /// 8-bit blocks; the rows are those of the first axis.
    Q8(QuantizedMatrix),
}

impl From<Vec<f32>> for WeightValues {
    fn from(values: Vec<f32>) -> Self {
        WeightValues::F32(values)
    }
}

impl WeightValues {
    /// Returns the numbers; those of blocks are exact products of integer and scale.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            WeightValues::F32(values) => values,
            WeightValues::Q8(matrix) => matrix.dequantize(),
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        match self {
            WeightValues::F32(values) => values.len(),
            WeightValues::Q8(matrix) => matrix.values().len(),
        }
    }
}

/// Returns the values of a parameter by its full name.
pub type ReadTensor<'a> = dyn FnMut(&str) -> Result<WeightValues> + 'a;

/// An encoder for inference: it owns its weights, packed for products.
///
/// The rows of an utterance have the same bits alone and in a batch, for every number of threads.
pub trait InferenceEncoder: Send + Sync {
    /// Returns the width D of input rows.
    fn input_width(&self) -> usize;

    /// Returns the width W of encoder rows.
    fn width(&self) -> usize;

    /// Encodes utterances of input rows `[T, D]`.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for a number of values that is not a multiple of D.
    fn encode(&self, utterances: &[&[f32]]) -> Result<EncodedRows>;

    /// Returns the bytes that encoding needs in addition to weights and input.
    ///
    /// `input_rows` are those of each utterance.
    fn bytes(&self, input_rows: &[usize]) -> usize;

    /// Returns a streaming encoder with these weights; none if rows depend on whole utterances.
    fn stream(self: Arc<Self>) -> Option<Arc<dyn EncoderStream>>;
}

/// Returns the number of rows of each utterance.
///
/// # Errors
/// [`Error::Shape`] for a number of values that is not a multiple of `width`.
pub(super) fn count_rows(utterances: &[&[f32]], width: usize) -> Result<Vec<usize>> {
    let count = |(index, rows): (usize, &&[f32])| match rows.len().is_multiple_of(width) {
        true => Ok(rows.len() / width),
        false => {
            let (expected, found) = (format!("rows of {width} values"), format!("{} values", rows.len()));
            Err(Error::shape(format!("utterance {index}"), expected, found))
        }
    };
    utterances.iter().enumerate().map(count).collect()
}

/// Builds layers from the values of their parameters, in `f32`.
///
/// In q8, matrices have the numbers of their blocks, whether they were stored in blocks or not.
pub(super) fn build_from_values<T>(
    format: NumberFormat,
    read: &mut ReadTensor,
    make: impl Fn(VarBuilder<'static>) -> Result<T>,
) -> Result<T> {
    let (shapes, _) = Parameters::plan(&make)?;
    let mut values = BTreeMap::new();
    for (name, shape) in shapes {
        let stored = read(&name)?;
        let count = shape.iter().product::<usize>();
        if stored.count() != count {
            return Err(Error::shape(name, format!("{count} values"), stored.count().to_string()));
        }
        let numbers = match stored {
            WeightValues::F32(numbers) if format == NumberFormat::Q8 && is_encoder_matrix(&name) => {
                let matrix = quantize_weight(&name, &numbers, matrix_shape(&shape).1)?;
                drop(numbers);
                matrix.dequantize()
            }
            stored => stored.into_f32(),
        };
        values.insert(name, numbers);
    }
    Ok(Parameters::from_values(values, make)?.1)
}
