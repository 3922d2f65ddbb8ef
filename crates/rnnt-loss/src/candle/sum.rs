//! Sample-wise training as operations: a weighted sum of losses whose gradients exist as soon as its value does.
use std::sync::Arc;

use candle_core::{
    CpuStorage, CustomOp2, DType, Layout as TensorLayout, Result as TensorResult, Shape, Tensor,
};
use panda_core::{
    Head,
    candle::{Element, with_values},
};

use super::transducer::Arguments;
use crate::{Options, Result, Skipped, Targets, projected_loss};

/// A weighted sum of losses.
#[derive(Debug, Clone)]
pub struct LossSum {
    /// `Σ_b weights[b] loss[b]` over the utterances that have a path, a scalar (`f64`), differentiable.
    pub sum: Tensor,
    /// `-log P` of each utterance, *B*; +inf for those that were left out of the sum.
    pub losses: Vec<f64>,
    /// What [`Options::skip`] left out of the gradients.
    pub skipped: Skipped,
}

/// A share of the sum together with its gradients for two arguments.
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

/// [`transducer_loss`](super::transducer_loss), summed with weights that are known beforehand.
///
/// Joint, head and lattice go through one group of utterances after the other, forwards and backwards, so that memory
/// beside arguments and gradients does not grow with the batch (arXiv 2211.16270; [`projected_loss`]). The price is that
/// the gradients are computed even if nobody asks for them; whatever follows can only scale the sum.
///
/// # Shapes
/// As [`transducer_loss`](super::transducer_loss); `weights` *B*.
///
/// # Errors
/// As [`transducer_loss`](super::transducer_loss); a weight that is not finite.
///
/// # Cost
/// As [`projected_loss`].
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use rnnt_loss::{candle::transducer_loss_sum, Options, Targets};
/// let (device, dtype) = (Device::Cpu, DType::F32);
/// let frames = Var::ones((1, 2, 4), dtype, &device)?; // B = 1, T = 2, H = 4
/// let labels = Tensor::ones((1, 2, 4), dtype, &device)?; // U = 1
/// let (weight, bias) = (Tensor::ones((3, 4), dtype, &device)?, Tensor::zeros(3, dtype, &device)?);
/// let targets = Targets::new(0, vec![2], vec![vec![1]])?;
/// let out = transducer_loss_sum(&frames, &labels, &weight, &bias, &targets, &Options::default(), &[1.0])?;
/// let gradients = out.sum.backward()?;
/// assert_eq!(gradients.get(&frames).unwrap().dims(), [1, 2, 4]);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub fn transducer_loss_sum(
    frames: &Tensor,
    labels: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<LossSum> {
    let arguments = Arguments::new(frames, labels, weight, bias, targets)?;
    match arguments.dtype {
        DType::F32 => run::<f32>(&arguments, targets, options, weights),
        _ => run::<f64>(&arguments, targets, options, weights),
    }
}

fn run<F: Element>(
    arguments: &Arguments,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<LossSum> {
    let Arguments { frames, labels, weight, bias, layout, .. } = arguments;
    let out = with_values([frames, labels, weight, bias], |[f, g, w, b]: [&[F]; 4]| {
        let head = Head::new(w, Some(b), weight.dim(1)?)?;
        projected_loss(f, g, &head, *layout, targets, options, weights)
    })?;
    let possible = out.losses.iter().zip(weights).filter(|(loss, _)| loss.is_finite());
    let value = possible.map(|(loss, weight)| loss * weight).sum();
    let tensor = |values: Vec<F>, like: &Tensor| Tensor::from_vec(values, like.shape(), like.device());
    let rows = Arc::new([tensor(out.frames, frames)?, tensor(out.labels, labels)?]);
    let head = Arc::new([tensor(out.weight, weight)?, tensor(out.bias, bias)?]);
    // An operation has at most three differentiable arguments: the head's share of the sum is 0.
    let sum = frames.apply_op2(labels, Known { value, gradients: rows })?;
    let sum = (sum + weight.apply_op2(bias, Known { value: 0.0, gradients: head })?)?;
    Ok(LossSum { sum, losses: out.losses, skipped: out.skipped })
}
