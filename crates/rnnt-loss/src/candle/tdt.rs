//! Token-and-duration training as an operation.
use candle_core::{DType, Tensor};
use panda_core::{
    Head,
    candle::{Element, with_values},
};

use super::{
    LossSum, expect_dims, expect_dtype, expect_rank,
    known::{possible_sum, scalar},
    transducer::Arguments,
};
use crate::{Options, Result, Targets, tdt_loss};

/// [`tdt_loss`](crate::tdt_loss()), summed with weights that are known beforehand; differentiable in all six tensors.
///
/// As with [`transducer_loss_sum`](super::transducer_loss_sum), the gradients are computed at once, a group of utterances
/// at a time.
///
/// # Shapes
/// `frames` *B x T x H*, `labels` *B x (U+1) x H*; `tokens` is weight *C x H* and bias *C* of the token head, `durations` weight
/// *D x H* and bias *D* of the duration head, whose classes are those of [`Topology::tdt`](crate::Topology::tdt) in their
/// order; all `f32` or all `f64`, on the CPU. `weights` *B*.
///
/// # Errors
/// As [`transducer_loss_sum`](super::transducer_loss_sum); a topology without as many durations.
///
/// # Cost
/// As [`tdt_loss`](crate::tdt_loss()).
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use rnnt_loss::{candle::tdt_loss_sum, Options, Targets, Topology};
/// let (device, dtype) = (Device::Cpu, DType::F32);
/// let frames = Var::ones((1, 3, 4), dtype, &device)?; // B = 1, T = 3, H = 4
/// let labels = Tensor::ones((1, 2, 4), dtype, &device)?; // U = 1
/// let tokens = (Tensor::ones((5, 4), dtype, &device)?, Tensor::zeros(5, dtype, &device)?); // C = 5
/// let durations = (Tensor::ones((3, 4), dtype, &device)?, Tensor::zeros(3, dtype, &device)?); // D = 3
/// let options = Options { topology: Topology::tdt(&[0, 1, 2])?, sigma: 0.05, ..Options::default() };
/// let targets = Targets::new(0, vec![3], vec![vec![1]])?;
/// let out = tdt_loss_sum(
///     &frames, &labels, (&tokens.0, &tokens.1), (&durations.0, &durations.1), &targets, &options, &[1.0],
/// )?;
/// assert_eq!(out.sum.backward()?.get(&frames).unwrap().dims(), [1, 3, 4]);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub fn tdt_loss_sum(
    frames: &Tensor,
    labels: &Tensor,
    tokens: (&Tensor, &Tensor),
    durations: (&Tensor, &Tensor),
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<LossSum> {
    let arguments = Arguments::new(frames, labels, tokens.0, tokens.1, targets)?;
    expect_rank("durations.weight", durations.0, "[D, H]", 2)?;
    let count = durations.0.dim(0)?;
    expect_dims("durations.weight", durations.0, &[count, arguments.weight.dim(1)?])?;
    expect_dims("durations.bias", durations.1, &[count])?;
    expect_dtype(&[("frames", frames), ("durations.weight", durations.0), ("durations.bias", durations.1)])?;
    let durations = (durations.0.contiguous()?, durations.1.contiguous()?);
    match arguments.dtype {
        DType::F32 => run::<f32>(&arguments, &durations, targets, options, weights),
        _ => run::<f64>(&arguments, &durations, targets, options, weights),
    }
}

fn run<F: Element>(
    arguments: &Arguments,
    (d_weight, d_bias): &(Tensor, Tensor),
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<LossSum> {
    let Arguments { frames, labels, weight, bias, layout, .. } = arguments;
    let tensors = [frames, labels, weight, bias, d_weight, d_bias];
    let out = with_values(tensors, |[f, g, w, b, dw, db]: [&[F]; 6]| {
        let width = weight.dim(1)?;
        let (tokens, durations) = (Head::new(w, Some(b), width)?, Head::new(dw, Some(db), width)?);
        tdt_loss(f, g, &tokens, &durations, *layout, targets, options, weights)
    })?;
    let gradients = [
        (frames, out.frames),
        (labels, out.labels),
        (weight, out.tokens.0),
        (bias, out.tokens.1),
        (d_weight, out.durations.0),
        (d_bias, out.durations.1),
    ];
    let sum = scalar(possible_sum(&out.losses, weights), gradients)?;
    Ok(LossSum { sum, losses: out.losses, skipped: out.skipped })
}
