//! A scalar whose gradients exist as soon as its value does.
use candle_core::{CpuStorage, CustomOp1, Layout as TensorLayout, Result as TensorResult, Shape, Tensor};
use panda_core::candle::Element;

use crate::Result;

/// An argument and the gradient of the scalar for it, of its shape.
pub(super) type WithGradient<'a, F> = (&'a Tensor, Vec<F>);

/// A share of the scalar together with its gradient for an argument.
struct Known {
    value: f64,
    gradient: Tensor,
}

impl CustomOp1 for Known {
    fn name(&self) -> &'static str {
        "loss-sum"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &TensorLayout) -> TensorResult<(CpuStorage, Shape)> {
        Ok((CpuStorage::F64(vec![self.value]), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, upstream: &Tensor) -> TensorResult<Option<Tensor>> {
        match upstream.to_scalar::<f64>()? {
            1.0 => Ok(Some(self.gradient.clone())),
            factor => self.gradient.affine(factor, 0.0).map(Some),
        }
    }
}

/// `value` as a function of all arguments: a sum of shares, one for each of them, of which the first has the value.
pub(super) fn scalar<F: Element, const K: usize>(
    value: f64,
    arguments: [WithGradient<F>; K],
) -> Result<Tensor> {
    let mut shares = std::iter::once(value).chain(std::iter::repeat(0.0));
    let mut sum: Option<Tensor> = None;
    for (like, gradient) in arguments {
        let gradient = Tensor::from_vec(gradient, like.shape(), like.device())?;
        let share = like.apply_op1(Known { value: shares.next().unwrap_or_default(), gradient })?;
        sum = Some(match sum {
            None => share,
            Some(sum) => (sum + share)?,
        });
    }
    sum.map_or_else(|| Ok(Tensor::new(value, &candle_core::Device::Cpu)?), Ok)
}

/// `Σ_b weights[b] losses[b]` over the utterances that have a path.
pub(super) fn possible_sum(losses: &[f64], weights: &[f64]) -> f64 {
    losses.iter().zip(weights).filter(|(loss, _)| loss.is_finite()).map(|(loss, weight)| loss * weight).sum()
}
