//! A scalar whose gradients exist as soon as its value does.
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout as TensorLayout, Result as TensorResult, Shape, Tensor};
use panda_core::candle::Element;

use crate::Result;

/// An argument and the gradient of the scalar for it, of its shape.
pub(super) type WithGradient<'a, F> = (&'a Tensor, Vec<F>);

/// A share of the scalar together with its gradients for two arguments.
struct Known {
    value: f64,
    gradients: Arc<[Tensor; 2]>,
}

impl CustomOp2 for Known {
    fn name(&self) -> &'static str {
        "loss-sum"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &TensorLayout,
        _: &CpuStorage,
        _: &TensorLayout,
    ) -> TensorResult<(CpuStorage, Shape)> {
        Ok((CpuStorage::F64(vec![self.value]), Shape::from(())))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        upstream: &Tensor,
    ) -> TensorResult<(Option<Tensor>, Option<Tensor>)> {
        let factor = upstream.to_scalar::<f64>()?;
        let scaled = |gradient: &Tensor| match factor == 1.0 {
            true => Ok(Some(gradient.clone())),
            false => gradient.affine(factor, 0.0).map(Some),
        };
        let [first, second] = &*self.gradients;
        Ok((scaled(first)?, scaled(second)?))
    }
}

/// `value` as a function of all arguments.
///
/// An operation has at most three differentiable arguments: each pair is one of its own, and the first has the value.
pub(super) fn scalar<F: Element, const K: usize>(
    value: f64,
    pairs: [[WithGradient<F>; 2]; K],
) -> Result<Tensor> {
    let tensor = |(like, values): WithGradient<F>| Tensor::from_vec(values, like.shape(), like.device());
    let mut shares = std::iter::once(value).chain(std::iter::repeat(0.0));
    let mut sum: Option<Tensor> = None;
    for [first, second] in pairs {
        let (a, b) = (first.0, second.0);
        let gradients = Arc::new([tensor(first)?, tensor(second)?]);
        let share = a.apply_op2(b, Known { value: shares.next().unwrap_or_default(), gradients })?;
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
