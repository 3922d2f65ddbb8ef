//! Weights in 8-bit blocks.
use kernels::packed::QuantizedMatrix;

use crate::{Error, Result};

/// Quantizes the weight `[O, inputs]` of a layer.
///
/// # Errors
/// [`Error::Shape`] for values that are not finite or too large.
pub(crate) fn quantize_weight(name: &str, values: &[f32], inputs: usize) -> Result<QuantizedMatrix> {
    QuantizedMatrix::quantize(values, inputs).ok_or_else(|| {
        // NaN is the largest number in this order.
        let max = values.iter().map(|value| value.abs()).max_by(f32::total_cmp).unwrap_or_default();
        let expected = format!("rows of {inputs} numbers of at most 8e6, to quantize");
        Error::shape(name, expected, format!("{} values of at most {max}", values.len()))
    })
}

/// Returns whether `panda quantize` rounds a weight outside the encoder.
///
/// These are the matrices of an LSTM predictor, of the joint network and of a CTC head.
pub(crate) fn is_output_matrix(name: &str) -> bool {
    let parameter = name.rsplit('.').next().unwrap_or(name);
    match name.split_once('.') {
        Some(("joint" | "ctc", _)) => parameter == "weight",
        Some(("predictor", _)) => parameter.starts_with("weight_ih") || parameter.starts_with("weight_hh"),
        _ => false,
    }
}
