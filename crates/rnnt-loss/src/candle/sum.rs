//! Sample-wise training as operations: a weighted sum of losses whose gradients exist as soon as its value does.
use candle_core::{DType, Tensor};
use panda_core::{
    Head,
    candle::{Element, with_values},
};

use super::{
    known::{possible_sum, scalar},
    transducer::Arguments,
};
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
    let gradients = [(frames, out.frames), (labels, out.labels), (weight, out.weight), (bias, out.bias)];
    let sum = scalar(possible_sum(&out.losses, weights), gradients)?;
    Ok(LossSum { sum, losses: out.losses, skipped: out.skipped })
}
