//! Sessions of one call.
use candle_core::Tensor;

use super::{HeadTensors, JointTensors, LossSession, LossSum, ScoreTensors};
use crate::{Loss, Options, Result, Targets};

/// Transducer loss *B* (`f64`) of projected encodings and predictions; differentiable in all four tensors.
///
/// `h(t,u) = act(encoded[t] + predicted[u])`, `z = h weightᵀ + bias`; of `z` no more is kept than [`Options::budget`] has room
/// for. Again and again, use a [`LossSession`], whose buffers stay.
///
/// # Shapes
/// `encoded` *B x T x H*, `predicted` *B x (U+1) x H*, `weight` *C x H*, `bias` *C*, all `f32` or all `f64`, on the CPU.
/// Rows beyond an utterance's own are never read and get zero gradients.
///
/// # Errors
/// Those of [`LossSession::forward`].
///
/// # Cost
/// 2 N H C floating-point operations forward, 4 to 6 N H C backward. What a site needs beside its scores, about 100 bytes,
/// grows with the batch; [`transducer_loss_sum`] does without that.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use rnnt_loss::{candle::transducer_loss, Options, Targets};
/// let (device, dtype) = (Device::Cpu, DType::F32);
/// let encoded = Var::ones((1, 2, 4), dtype, &device)?; // B = 1, T = 2, H = 4
/// let predicted = Tensor::ones((1, 2, 4), dtype, &device)?; // U = 1
/// let (weight, bias) = (Tensor::ones((3, 4), dtype, &device)?, Tensor::zeros(3, dtype, &device)?);
/// let targets = Targets::new(0, vec![2], vec![vec![1]])?;
/// let loss = transducer_loss(&encoded, &predicted, &weight, &bias, &targets, &Options::default())?;
/// let gradients = loss.mean_all()?.backward()?;
/// assert_eq!(gradients.get(&encoded).unwrap().dims(), [1, 2, 4]);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
pub fn transducer_loss(
    encoded: &Tensor,
    predicted: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    targets: &Targets,
    options: &Options,
) -> Result<Tensor> {
    LossSession::new(options)?.forward(joint(encoded, predicted, weight, bias), targets)
}

/// [`transducer_loss`], summed with weights that are known beforehand: [`LossSession::sum`].
///
/// # Shapes
/// As there; `weights` *B*.
///
/// # Errors
/// As there; a weight that is not finite.
///
/// # Cost
/// As [`LossSession::sum`].
pub fn transducer_loss_sum(
    encoded: &Tensor,
    predicted: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<LossSum> {
    LossSession::new(options)?.sum(joint(encoded, predicted, weight, bias), targets, weights)
}

fn joint<'a>(
    encoded: &'a Tensor,
    predicted: &'a Tensor,
    weight: &'a Tensor,
    bias: &'a Tensor,
) -> JointTensors<'a> {
    let head = HeadTensors { weight, bias: Some(bias) };
    JointTensors { encoded, predicted, head, durations: None, dropout: None }
}

/// Loss *B* (`f64`) of scores (logits), differentiable.
///
/// # Shapes
/// `scores` *B x T x (U+1) x C*, `f32` or `f64`, on the CPU; C classes, and behind them D durations for
/// [`Loss::Tdt`]. Sites beyond an utterance's own are never read and get zero gradients.
///
/// # Errors
/// Those of [`LossSession::forward`].
///
/// # Cost
/// O(N C) time; a copy of the scores in the backward pass.
pub fn scores_loss(scores: &Tensor, targets: &Targets, options: &Options) -> Result<Tensor> {
    LossSession::new(options)?.forward(ScoreTensors { scores }, targets)
}

/// CTC loss *B* (`f64`) of scores (logits), differentiable. Graves et al. 2006.
///
/// Where scores would be large, [`LossSession::sum`] of [`RowTensors`](super::RowTensors) under [`Loss::Ctc`] does without them.
/// [`Options::loss`] is not read.
///
/// # Shapes
/// `scores` *B x T x C*, `f32` or `f64`, on the CPU. Rows beyond an utterance's own are never read and get zero gradients.
///
/// # Errors
/// Those of [`LossSession::forward`]. Labels that do not fit into their frames give +inf and zero gradient.
///
/// # Cost
/// O(B T (C + U)) time and memory.
pub fn ctc_loss(scores: &Tensor, targets: &Targets, options: &Options) -> Result<Tensor> {
    let options = Options { loss: Loss::Ctc, ..options.clone() };
    LossSession::new(&options)?.forward(ScoreTensors { scores }, targets)
}
