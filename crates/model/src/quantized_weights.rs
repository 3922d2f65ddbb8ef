//! Weights in 8-bit blocks.
use kernels::packed::QuantizedMatrix;

use crate::encoders::is_linear_weight;
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

/// Returns true for weights of encoders that q8 stores in blocks.
///
/// These are the linear layers of (Fast)Conformer layers, and the matrices of LSTM layers.
pub(crate) fn is_encoder_matrix(name: &str) -> bool {
    is_linear_weight(name) || (name.starts_with("encoder.layers.") && is_lstm_matrix(name))
}

/// Returns whether `panda quantize` rounds a weight outside the encoder.
///
/// These are the matrices of an LSTM predictor, of the joint network and of a CTC head.
pub(crate) fn is_output_matrix(name: &str) -> bool {
    match name.split_once('.') {
        Some(("joint" | "ctc", _)) => name.ends_with(".weight"),
        Some(("predictor", _)) => is_lstm_matrix(name),
        _ => false,
    }
}

fn is_lstm_matrix(name: &str) -> bool {
    let parameter = name.rsplit('.').next().unwrap_or(name);
    parameter.starts_with("weight_ih") || parameter.starts_with("weight_hh")
}
