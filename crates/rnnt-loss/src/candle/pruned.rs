//! Pruned training as an operation.
use ::pruned::{Heads, Linear, Ranges};
use candle_core::{DType, Tensor};
use panda_core::{
    Head,
    candle::{Element, with_values},
};

use super::{
    expect_dims, expect_dtype, expect_rank,
    known::{possible_sum, scalar},
    transducer::Arguments,
};
use crate::{Options, Pruning, Result, Skipped, Targets, pruned_loss};

/// The trivial joiner: `am = frames am_weightᵀ + am_bias`, `lm` likewise; neither is ever kept.
#[derive(Debug, Clone, Copy)]
pub struct TrivialJoiner<'a> {
    /// Encoder rows *B x T x Ha*.
    pub frames: &'a Tensor,
    /// Predictor rows *B x (U+1) x Hl*.
    pub labels: &'a Tensor,
    /// Weight *C x Ha* and bias *C*.
    pub am: (&'a Tensor, &'a Tensor),
    /// Weight *C x Hl* and bias *C*.
    pub lm: (&'a Tensor, &'a Tensor),
}

/// A weighted sum of both passes' losses.
#[derive(Debug, Clone)]
pub struct PrunedSum {
    /// `Σ_b weights[b] (simple_scale · simple[b] + pruned_scale · pruned[b])` over what is finite, a scalar (`f64`),
    /// differentiable.
    pub sum: Tensor,
    /// `-log P` of each utterance under the trivial joiner, *B*.
    pub simple: Vec<f64>,
    /// `-log P` over the sites that were kept, *B*; +inf without a path.
    pub pruned: Vec<f64>,
    /// Those sites.
    pub ranges: Ranges,
    /// What [`Options::skip`] left out of the gradients.
    pub skipped: Skipped,
}

/// [`pruned_loss`](crate::pruned_loss()) over linear layers, summed with weights that are known beforehand; differentiable
/// in all ten tensors.
///
/// As with [`transducer_loss_sum`](super::transducer_loss_sum), the gradients are computed at once.
///
/// # Shapes
/// `simple`: see [`TrivialJoiner`]. `frames` *B x T x H* and `labels` *B x (U+1) x H* are what the joint adds, `head` its
/// weight *C x H* and bias *C*; all `f32` or all `f64`, on the CPU. `weights` *B*.
///
/// # Errors
/// Those of [`pruned_loss`](crate::pruned_loss()); shapes or types that do not fit. [`Options::topology`] is not read.
///
/// # Cost
/// As [`pruned_loss`](crate::pruned_loss()), with products of H and C for each frame and label position in both directions.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use rnnt_loss::{candle::{TrivialJoiner, pruned_loss_sum}, Options, Pruning, Targets};
/// let (device, dtype) = (Device::Cpu, DType::F32);
/// let x = Var::ones((1, 3, 6), dtype, &device)?; // B = 1, T = 3, Ha = 6
/// let (y, bias) = (Tensor::ones((1, 2, 7), dtype, &device)?, Tensor::zeros(5, dtype, &device)?); // U = 1, Hl = 7, C = 5
/// let (am, lm) = (Tensor::ones((5, 6), dtype, &device)?, Tensor::ones((5, 7), dtype, &device)?);
/// let simple = TrivialJoiner { frames: &x, labels: &y, am: (&am, &bias), lm: (&lm, &bias) };
/// let (frames, labels) = (x.narrow(2, 0, 4)?, y.narrow(2, 0, 4)?); // a projection to H = 4
/// let (weight, targets) = (Tensor::ones((5, 4), dtype, &device)?, Targets::new(0, vec![3], vec![vec![1]])?);
/// let (options, pruning) = (Options::default(), Pruning::default());
/// let out = pruned_loss_sum(&simple, &frames, &labels, (&weight, &bias), &targets, &options, &pruning, &[1.0])?;
/// assert_eq!(out.sum.backward()?.get(&x).unwrap().dims(), [1, 3, 6]);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub fn pruned_loss_sum(
    simple: &TrivialJoiner,
    frames: &Tensor,
    labels: &Tensor,
    head: (&Tensor, &Tensor),
    targets: &Targets,
    options: &Options,
    pruning: &Pruning,
    weights: &[f64],
) -> Result<PrunedSum> {
    let arguments = Arguments::new(frames, labels, head.0, head.1, targets)?;
    let simple = simple.check(&arguments)?;
    match arguments.dtype {
        DType::F32 => run::<f32>(&simple, &arguments, targets, options, pruning, weights),
        _ => run::<f64>(&simple, &arguments, targets, options, pruning, weights),
    }
}

impl TrivialJoiner<'_> {
    /// Rows, weight and bias of frames, then of labels, contiguous; their shapes fit.
    fn check(&self, arguments: &Arguments) -> Result<[Tensor; 6]> {
        let Self { frames, labels, am, lm } = *self;
        expect_rank("simple.frames", frames, "[B, T, Ha]", 3)?;
        expect_rank("simple.labels", labels, "[B, U+1, Hl]", 3)?;
        let classes = arguments.weight.dim(0)?;
        let rows = |tensor: &Tensor| tensor.dims()[..2].to_vec();
        for (argument, tensor, like, width) in [
            ("simple.frames", frames, &arguments.frames, frames.dim(2)?),
            ("simple.labels", labels, &arguments.labels, labels.dim(2)?),
        ] {
            expect_dims(argument, tensor, &[rows(like), vec![width]].concat())?;
        }
        expect_dims("simple.am.weight", am.0, &[classes, frames.dim(2)?])?;
        expect_dims("simple.lm.weight", lm.0, &[classes, labels.dim(2)?])?;
        expect_dims("simple.am.bias", am.1, &[classes])?;
        expect_dims("simple.lm.bias", lm.1, &[classes])?;
        expect_dtype(&[
            ("frames", &arguments.frames),
            ("simple.frames", frames),
            ("simple.labels", labels),
            ("simple.am.weight", am.0),
            ("simple.am.bias", am.1),
            ("simple.lm.weight", lm.0),
            ("simple.lm.bias", lm.1),
        ])?;
        let [x, wx, bx, y, wy, by] = [frames, am.0, am.1, labels, lm.0, lm.1].map(Tensor::contiguous);
        Ok([x?, wx?, bx?, y?, wy?, by?])
    }
}

fn run<F: Element>(
    [x, am_weight, am_bias, y, lm_weight, lm_bias]: &[Tensor; 6],
    arguments: &Arguments,
    targets: &Targets,
    options: &Options,
    pruning: &Pruning,
    weights: &[f64],
) -> Result<PrunedSum> {
    let Arguments { frames, labels, weight, bias, layout, .. } = arguments;
    let tensors = [x, am_weight, am_bias, y, lm_weight, lm_bias, frames, labels, weight, bias];
    let out = with_values(tensors, |[x, wx, bx, y, wy, by, f, g, w, b]: [&[F]; 10]| {
        let am = Linear::new(x, wx, Some(bx), am_weight.dim(1)?)?;
        let lm = Linear::new(y, wy, Some(by), lm_weight.dim(1)?)?;
        let (source, head) = (Heads::new(am, lm)?, Head::new(w, Some(b), weight.dim(1)?)?);
        pruned_loss(&source, f, g, &head, *layout, targets, options, pruning, weights)
    })?;
    let value = pruning.simple_scale * possible_sum(&out.simple, weights)
        + pruning.pruned_scale * possible_sum(&out.second.losses, weights);
    let (second, am, lm) = (out.second, out.source.am, out.source.lm);
    let gradients = [
        (frames, second.frames),
        (labels, second.labels),
        (weight, second.weight),
        (bias, second.bias),
        (x, am.rows),
        (am_weight, am.weight),
        (am_bias, am.bias),
        (y, lm.rows),
        (lm_weight, lm.weight),
        (lm_bias, lm.bias),
    ];
    let sum = scalar(value, gradients)?;
    Ok(PrunedSum {
        sum,
        simple: out.simple,
        pruned: second.losses,
        ranges: out.ranges,
        skipped: second.skipped,
    })
}
