//! The tensor face: sessions over candle tensors, with autograd.
//!
//! A [`LossSession`] is a [`Session`](crate::Session) for tensors of either type. [`LossSession::forward`] gives losses *B* (`f64`), one
//! value an utterance, +inf where no path explains it; weight and sum the values as you like. The lattice is worked out in
//! the forward pass, the gradients of joint and head in the backward pass, when the weights of the utterances are known. An
//! error in the backward pass (weights that are NaN, say) arrives as candle's own error around the message.
//! [`LossSession::sum`] does both at once, utterance group by utterance group, in memory that does not grow with the batch.
//! Gradients have the types of their tensors. Nothing is copied but tensors with gaps.
//!
//! [`transducer_loss`], [`transducer_loss_sum`], [`scores_loss`] and [`ctc_loss`] are sessions of one call.
mod inputs;
mod session;

use candle_core::{DType, Tensor};
pub use inputs::{
    HeadTensors, HiddenTensors, JointTensors, PrunedTensors, ScoreTensors, SimpleTensors, TensorInputs,
};
pub use session::{LossSession, LossSum, ctc_loss, scores_loss, transducer_loss, transducer_loss_sum};

use crate::{Error, Result};

/// Fails unless a tensor has as many axes, named like `[B, T, H]`, as expected.
fn expect_rank(argument: &'static str, tensor: &Tensor, axes: &'static str, rank: usize) -> Result<()> {
    if tensor.rank() == rank {
        return Ok(());
    }
    Err(Error::Shape { argument, expected: axes.into(), found: format!("{:?}", tensor.dims()) })
}

/// Fails unless a tensor's axes have the expected sizes.
fn expect_dims(argument: &'static str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
    if tensor.dims() == expected {
        return Ok(());
    }
    Err(Error::Shape { argument, expected: format!("{expected:?}"), found: format!("{:?}", tensor.dims()) })
}

/// The common type of the arguments, `f32` or `f64`.
fn expect_dtype(tensors: &[(&'static str, &Tensor)]) -> Result<DType> {
    let first = tensors[0].1.dtype();
    for (argument, tensor) in tensors {
        let dtype = tensor.dtype();
        if !matches!(dtype, DType::F32 | DType::F64) || dtype != first {
            let expected =
                if matches!(first, DType::F32 | DType::F64) { first.as_str() } else { "f32 or f64" };
            return Err(Error::Shape { argument, expected: expected.into(), found: dtype.as_str().into() });
        }
    }
    Ok(first)
}
