//! The tensor face: the losses as candle operations with autograd.
//!
//! A loss comes out as `f64` *B*, one value an utterance, +inf where no path explains it; weight and sum the values
//! as you like. Gradients have the types of their tensors. The lattice is worked out in the forward pass, the
//! gradients of joint and head in the backward pass, when the weights of the utterances are known. An error in the
//! backward pass (weights that are NaN, say) arrives as candle's own error around the message.
//! [`transducer_loss_sum`] does both at once, utterance by utterance, in memory that does not grow with the batch; so do
//! [`tdt_loss_sum`], [`pruned_loss_sum`] and [`ctc_loss_sum`].
mod ctc;
mod known;
mod pruned;
mod scores;
mod sum;
mod tdt;
mod transducer;

pub use ctc::{ctc_loss, ctc_loss_sum};
pub use pruned::{PrunedSum, TrivialJoiner, pruned_loss_sum};
pub use scores::scores_loss;
pub use sum::{LossSum, transducer_loss_sum};
pub use tdt::tdt_loss_sum;
pub use transducer::transducer_loss;

use candle_core::{DType, Tensor};

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
