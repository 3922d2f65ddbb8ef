//! Transducer and CTC losses of candle tensors, with autograd.
//!
//! A [`LossSession`] is a [`Session`](crate::Session) for `f32` and `f64` tensors.
//! [`LossSession::forward`] returns losses *B* (`f64`), +inf for an utterance without a path, for
//! any weighted sum. The lattice is evaluated in the forward pass, the gradients of joint and head
//! in the backward pass, when the weights of the utterances are known. An error in the backward
//! pass, such as a weight of NaN, is returned as a candle error. [`LossSession::sum`] computes
//! losses and gradients one group of utterances at a time, in memory that does not grow with the
//! batch. Gradients have the types of their tensors. Only tensors that are not contiguous are
//! copied.
//!
//! [`transducer_loss`], [`transducer_loss_sum`], [`scores_loss`] and [`ctc_loss`] use a session for
//! one call.
mod inputs;
mod session;

use candle_core::{DType, Tensor};
pub use inputs::{
    HeadTensors, HiddenTensors, JointTensors, PrunedTensors, ScoreTensors, SimpleTensors, TensorInputs,
};
pub use session::{LossSession, LossSum, ctc_loss, scores_loss, transducer_loss, transducer_loss_sum};

use crate::{Error, Result};

/// Fails unless a tensor has the expected axes, such as `[B, T, H]`.
fn expect_rank(argument: &'static str, tensor: &Tensor, axes: &'static str, rank: usize) -> Result<()> {
    if tensor.rank() == rank {
        return Ok(());
    }
    Err(Error::Shape { argument, expected: axes.into(), found: format!("{:?}", tensor.dims()) })
}

/// Fails unless a tensor has the expected shape.
fn expect_dims(argument: &'static str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
    if tensor.dims() == expected {
        return Ok(());
    }
    Err(Error::Shape { argument, expected: format!("{expected:?}"), found: format!("{:?}", tensor.dims()) })
}

/// Returns the common type of the arguments, `f32` or `f64`.
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
