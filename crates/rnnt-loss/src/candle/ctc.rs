//! CTC, alone or as an auxiliary objective of an encoder.
use candle_core::{DType, Tensor};
use panda_core::{
    Head,
    candle::{Element, with_values},
};

use super::{
    LossSum, expect_dims, expect_dtype, expect_rank,
    known::{possible_sum, scalar},
    scores,
};
use crate::{Error, Layout, Options, Result, Targets, ctc::Ctc, objective::Objective};

/// CTC loss *B* (`f64`) of scores (logits), differentiable. Graves et al. 2006.
///
/// Options as for [`ctc_loss`](crate::ctc_loss()), without label smoothing. Where scores would be large,
/// [`ctc_loss_sum`] does without them.
///
/// # Shapes
/// `scores` *B x T x C*, `f32` or `f64`, on the CPU. Rows beyond an utterance's own are never read and get zero gradients.
///
/// # Errors
/// Shapes or types that do not fit, utterances longer than the tensor, labels outside the classes, scores of a real
/// frame that are NaN or +inf. Labels that do not fit into their frames give +inf and zero gradient.
///
/// # Cost
/// O(B T (C + U)) time and memory.
pub fn ctc_loss(scores: &Tensor, targets: &Targets, options: &Options) -> Result<Tensor> {
    expect_rank("scores", scores, "[B, T, C]", 3)?;
    let (_, frames, classes) = scores.dims3()?;
    expect_dims("scores", scores, &[targets.batch(), frames, classes])?;
    let dtype = expect_dtype(&[("scores", scores)])?;
    options.without_head()?;
    targets.check_classes(classes)?;
    let (objective, layout) = (Ctc::new(targets)?, Layout::Padded { frames, positions: 1 });
    layout.check(objective.sites())?;
    let scores = scores.contiguous()?;
    let loss = match dtype {
        DType::F32 => scores::run::<f32>(&scores, layout, &objective, options),
        _ => scores::run::<f64>(&scores, layout, &objective, options),
    };
    loss.map_err(Error::at_frame)
}

/// CTC loss of encoder rows and a head, summed with weights that are known beforehand: no tensor *B x T x C* is kept beyond
/// [`Options::budget`]. As [`ctc_loss`](crate::ctc_loss()).
///
/// # Shapes
/// `rows` *B x T x H*, `weight` *C x H*, `bias` *C*, all `f32` or all `f64`, on the CPU; `weights` *B*.
///
/// # Errors
/// As there; a tensor of another rank, type or device.
///
/// # Cost
/// As there; the gradients are computed even if nobody asks for them.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use rnnt_loss::{candle::ctc_loss_sum, Options, Targets};
/// let (device, dtype) = (Device::Cpu, DType::F32);
/// let rows = Var::ones((1, 2, 4), dtype, &device)?; // B = 1, T = 2, H = 4
/// let (weight, bias) = (Tensor::ones((3, 4), dtype, &device)?, Tensor::zeros(3, dtype, &device)?);
/// let targets = Targets::new(0, vec![2], vec![vec![1]])?;
/// let out = ctc_loss_sum(&rows, &weight, &bias, &targets, &Options::default(), &[1.0])?;
/// assert_eq!(out.sum.backward()?.get(&rows).unwrap().dims(), [1, 2, 4]);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub fn ctc_loss_sum(
    rows: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<LossSum> {
    expect_rank("rows", rows, "[B, T, H]", 3)?;
    expect_rank("weight", weight, "[C, H]", 2)?;
    let (_, frames, width) = rows.dims3()?;
    expect_dims("rows", rows, &[targets.batch(), frames, width])?;
    expect_dims("weight", weight, &[weight.dim(0)?, width])?;
    expect_dims("bias", bias, &[weight.dim(0)?])?;
    let dtype = expect_dtype(&[("rows", rows), ("weight", weight), ("bias", bias)])?;
    let tensors = [rows.contiguous()?, weight.contiguous()?, bias.contiguous()?];
    match dtype {
        DType::F32 => run::<f32>(&tensors, targets, options, weights),
        _ => run::<f64>(&tensors, targets, options, weights),
    }
}

fn run<F: Element>(
    [rows, weight, bias]: &[Tensor; 3],
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<LossSum> {
    let (_, frames, width) = rows.dims3()?;
    let layout = Layout::Padded { frames, positions: 1 };
    let out = with_values([rows, weight, bias], |[x, w, b]: [&[F]; 3]| {
        crate::ctc_loss(x, &Head::new(w, Some(b), width)?, layout, targets, options, weights)
    })?;
    let gradients = [(rows, out.hidden), (weight, out.weight), (bias, out.bias)];
    let sum = scalar(possible_sum(&out.losses, weights), gradients)?;
    Ok(LossSum { sum, losses: out.losses, skipped: out.skipped })
}
