//! Transducer loss sessions over candle tensors, and loss functions for single calls.
//!
//! Gradients of `forward` are computed in the backward pass, when the weights of the utterances are
//! known; those of `sum` are computed at once.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Tensor};
use panda_core::candle::{Element as CandleElement, with_custom_grad};

use super::inputs::{HeadTensors, JointTensors, NamedTensors, ScoreTensors, TensorInputs};
use crate::{
    Loss, LossOutput, Options, PassScales, PruningOutput, Result, SkippedSites, Targets,
    budget::SessionBuffers, engine::ForwardState,
};

/// A [`Session`](crate::Session) over candle tensors, `f32` or `f64`.
///
/// Its buffers are reused from step to step, and clones share them.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use rnnt_loss::{Options, Targets, candle::{HeadTensors, JointTensors, LossSession}};
/// let (device, dtype) = (Device::Cpu, DType::F32);
/// let encoded = Var::ones((1, 2, 4), dtype, &device)?; // B = 1, T = 2, H = 4
/// let predicted = Tensor::ones((1, 2, 4), dtype, &device)?; // U = 1
/// let weight = Var::ones((3, 4), dtype, &device)?; // C = 3
/// let head = HeadTensors { weight: &weight, bias: None };
/// let (encoded_rows, predicted_rows) = (&*encoded, &predicted);
/// let joint = JointTensors {
///     encoded: encoded_rows, predicted: predicted_rows, head, durations: None, dropout: None,
/// };
/// let session = LossSession::new(&Options::default())?;
/// let targets = Targets::new(0, vec![2], vec![vec![1]])?;
/// let losses = session.forward(joint, &targets)?; // [B]
/// assert_eq!(losses.mean_all()?.backward()?.get(&encoded).unwrap().dims(), [1, 2, 4]);
/// let out = session.sum(joint, &targets, &[1.0])?; // the same, sample-wise
/// assert_eq!(out.sum.backward()?.get(&weight).unwrap().dims(), [3, 4]);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct LossSession {
    options: Options,
    f32_buffers: Arc<Mutex<SessionBuffers<f32>>>,
    f64_buffers: Arc<Mutex<SessionBuffers<f64>>>,
}

/// A weighted sum of losses.
#[derive(Debug, Clone)]
pub struct LossSum {
    /// `Σ_b weights[b] loss[b]` over the utterances with a path, differentiable.
    ///
    /// A scalar (`f64`). With pruning it has both losses, times their scales.
    pub sum: Tensor,
    /// Loss of each utterance, *B*; +inf without a path.
    pub losses: Vec<f64>,
    /// Output of the simple joiner, only with pruning.
    pub first_pass: Option<PruningOutput>,
    /// Sites that [`Options::skip`] excluded from the gradients.
    pub skipped: SkippedSites,
}

/// Name of the operation in candle.
const OPERATION_NAME: &str = "transducer-loss";

/// A type of tensors and its buffers in a session.
trait SessionDtype: CandleElement + crate::Element {
    fn buffers(session: &LossSession) -> &Arc<Mutex<SessionBuffers<Self>>>;
}

impl SessionDtype for f32 {
    fn buffers(session: &LossSession) -> &Arc<Mutex<SessionBuffers<f32>>> {
        &session.f32_buffers
    }
}

impl SessionDtype for f64 {
    fn buffers(session: &LossSession) -> &Arc<Mutex<SessionBuffers<f64>>> {
        &session.f64_buffers
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Calls do not depend on the contents of the buffers, so that a poisoned lock is usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LossSession {
    /// Creates a session; buffers are allocated on first use.
    ///
    /// # Errors
    /// Those of [`Session::new`](crate::Session::new).
    pub fn new(options: &Options) -> Result<Self> {
        options.check()?;
        Ok(Self { options: options.clone(), f32_buffers: Arc::default(), f64_buffers: Arc::default() })
    }

    /// Creates a session of another loss that shares buffers and budget.
    ///
    /// For several losses of a step that are computed with [`sum`](Self::sum), such as a transducer
    /// loss and an auxiliary CTC loss: together they stay within the budget. `budget`,
    /// `keep_scores`, `precision` and `plan` of `options` are replaced by those of `self`.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn with_shared_buffers(&self, options: &Options) -> Result<Self> {
        let Options { budget, keep_scores, precision, plan, .. } = self.options;
        let options = Options { budget, keep_scores, precision, plan, ..options.clone() };
        options.check()?;
        let (f32_buffers, f64_buffers) = (Arc::clone(&self.f32_buffers), Arc::clone(&self.f64_buffers));
        Ok(Self { options, f32_buffers, f64_buffers })
    }

    /// Options of the session.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Computes losses *B* (`f64`), differentiable in all tensors.
    ///
    /// Padding is never read and has zero gradients. With pruning, a loss is the sum of both
    /// passes, times their scales, and +inf if either has no path.
    ///
    /// # Shapes
    /// Those of the inputs.
    ///
    /// # Errors
    /// Those of [`Session::forward`](crate::Session::forward); a tensor of another rank, type or
    /// device.
    ///
    /// # Cost
    /// That of [`Session::forward`](crate::Session::forward); a second backward pass over the same
    /// graph repeats the forward pass.
    pub fn forward<'a>(&self, inputs: impl Into<TensorInputs<'a>>, targets: &Targets) -> Result<Tensor> {
        self.forward_tensors(inputs.into(), targets)
    }

    fn forward_tensors(&self, inputs: TensorInputs, targets: &Targets) -> Result<Tensor> {
        let arguments = self.arguments(inputs, targets)?;
        match arguments.dtype {
            DType::F32 => self.forward_typed::<f32>(arguments, targets),
            _ => self.forward_typed::<f64>(arguments, targets),
        }
    }

    /// Computes a weighted sum of losses.
    ///
    /// Memory does not grow with the batch. Gradients are always computed, in the forward pass; the
    /// backward pass scales them.
    ///
    /// # Shapes
    /// Those of the inputs; `weights` *B*.
    ///
    /// # Errors
    /// Those of [`Session::sum`](crate::Session::sum); a tensor of another rank, type or device.
    ///
    /// # Cost
    /// That of [`Session::sum`](crate::Session::sum).
    pub fn sum<'a>(
        &self,
        inputs: impl Into<TensorInputs<'a>>,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<LossSum> {
        self.sum_tensors(inputs.into(), targets, weights)
    }

    fn sum_tensors(&self, inputs: TensorInputs, targets: &Targets, weights: &[f64]) -> Result<LossSum> {
        let arguments = self.arguments(inputs, targets)?;
        match arguments.dtype {
            DType::F32 => self.sum_typed::<f32>(&arguments, targets, weights),
            _ => self.sum_typed::<f64>(&arguments, targets, weights),
        }
    }

    fn arguments(&self, inputs: TensorInputs, targets: &Targets) -> Result<NamedTensors> {
        if let (TensorInputs::Scores(scores), Loss::Ctc) = (inputs, &self.options.loss) {
            super::expect_rank("scores", scores.scores, "[B, T, C]", 3)?;
        } else if let TensorInputs::Scores(scores) = inputs {
            super::expect_rank("scores", scores.scores, "[B, T, U+1, C]", 4)?;
        }
        NamedTensors::new(&inputs, targets, self.options.loss.num_durations())
    }

    fn forward_typed<F: SessionDtype>(&self, arguments: NamedTensors, targets: &Targets) -> Result<Tensor> {
        let (buffers, options) = (Arc::clone(F::buffers(self)), self.options.clone());
        let state = arguments
            .with_inputs(|inputs| ForwardState::new(inputs, targets, &options, &mut lock(&buffers)))?;
        let losses = match (state.first_pass(), arguments.scales()) {
            (Some(first), Some(scales)) => combine_losses(&first.losses, state.losses(), scales),
            _ => state.losses().to_vec(),
        };
        let has_path = losses.iter().map(|loss| loss.is_finite()).collect();
        let tensors: Vec<Tensor> = arguments.tensors.iter().map(|(_, tensor)| tensor.clone()).collect();
        let progress = Mutex::new(BackwardProgress::Forward(Box::new(state)));
        let targets = targets.clone();
        let batch = targets.batch();
        let gradients = DeferredGradients { buffers, options, arguments, targets, has_path, progress };
        let grad_fn = move |index, upstream: &Tensor| gradients.gradient(index, upstream);
        Ok(with_custom_grad(OPERATION_NAME, &tensors, losses, batch, grad_fn)?)
    }

    fn sum_typed<F: SessionDtype>(
        &self,
        arguments: &NamedTensors,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<LossSum> {
        let out = arguments.with_inputs::<F, _>(|inputs| {
            F::engine(&mut lock(F::buffers(self))).sum(inputs, targets, weights, &self.options)
        })?;
        let LossOutput { losses, first_pass, gradients, skipped } = out;
        let value = match (&first_pass, arguments.scales()) {
            (Some(first), Some(PassScales { simple, pruned })) => {
                simple * sum_with_path(&first.losses, weights) + pruned * sum_with_path(&losses, weights)
            }
            _ => sum_with_path(&losses, weights),
        };
        let gradients = arguments.gradients(gradients)?;
        let tensors: Vec<Tensor> = arguments.tensors.iter().map(|(_, tensor)| tensor.clone()).collect();
        let grad_fn = move |index: usize, upstream: &Tensor| match upstream.to_scalar::<f64>()? {
            1.0 => Ok(gradients[index].clone()),
            factor => gradients[index].affine(factor, 0.0),
        };
        let sum = with_custom_grad(OPERATION_NAME, &tensors, vec![value], (), grad_fn)?;
        Ok(LossSum { sum, losses, first_pass, skipped })
    }
}

/// `Σ_b weights[b] losses[b]` over the utterances with a path.
fn sum_with_path(losses: &[f64], weights: &[f64]) -> f64 {
    losses.iter().zip(weights).filter(|(loss, _)| loss.is_finite()).map(|(loss, weight)| loss * weight).sum()
}

/// Combines the losses of both passes, +inf if either has no path.
fn combine_losses(simple: &[f64], pruned: &[f64], scales: PassScales) -> Vec<f64> {
    let sum = |(simple, pruned): (&f64, &f64)| match simple.is_finite() && pruned.is_finite() {
        true => scales.simple * simple + scales.pruned * pruned,
        false => f64::INFINITY,
    };
    simple.iter().zip(pruned).map(sum).collect()
}

/// Gradients of losses whose weights arrive with the backward pass.
struct DeferredGradients<F> {
    buffers: Arc<Mutex<SessionBuffers<F>>>,
    options: Options,
    arguments: NamedTensors,
    targets: Targets,
    /// Whether the loss of each utterance is finite.
    has_path: Vec<bool>,
    progress: Mutex<BackwardProgress<F>>,
}

/// Progress of the backward pass of a loss.
enum BackwardProgress<F> {
    /// The forward pass is done.
    Forward(Box<ForwardState<F>>),
    /// Weights of the utterances, and gradients that candle has not fetched.
    Backward(Vec<f64>, Vec<Option<Tensor>>),
}

impl<F: CandleElement> DeferredGradients<F> {
    /// Computes gradients of all tensors; repeats the forward pass if `state` is `None`.
    fn backward(&self, state: Option<ForwardState<F>>, weights: &[f64]) -> Result<Vec<Tensor>> {
        let (Self { options, targets, arguments, .. }, buffers) = (self, &mut lock(&self.buffers));
        let out = arguments.with_inputs(|inputs| {
            let state = state.map_or_else(|| ForwardState::new(inputs, targets, options, buffers), Ok)?;
            state.backward(&inputs.values(), weights, options, buffers)
        })?;
        arguments.gradients(out.gradients)
    }

    /// Returns the gradient of the tensor with an index.
    ///
    /// Candle calls it once per tensor. The first call computes all gradients; later calls with the
    /// same weights take theirs from the cache.
    fn gradient(&self, index: usize, upstream: &Tensor) -> candle_core::Result<Tensor> {
        let mut weights = upstream.to_vec1::<f64>()?;
        // An infinite loss has no gradient in either pass, though its weight may be NaN.
        let pairs = weights.iter_mut().zip(&self.has_path);
        pairs.filter(|(_, has_path)| !**has_path).for_each(|(weight, _)| *weight = 0.0);
        let mut progress = lock(&self.progress);
        if let BackwardProgress::Backward(cached, gradients) = &mut *progress
            && is_bitwise_equal(cached, &weights)
            && let Some(gradient) = gradients[index].take()
        {
            return Ok(gradient);
        }
        let previous = std::mem::replace(&mut *progress, BackwardProgress::Backward(Vec::new(), Vec::new()));
        let state = if let BackwardProgress::Forward(state) = previous { Some(*state) } else { None };
        let gradients = self.backward(state, &weights).map_err(candle_core::Error::wrap)?;
        let tensors = &self.arguments.tensors;
        let gradient_if_tracked =
            |(gradient, (_, tensor)): (Tensor, &(_, Tensor))| tensor.track_op().then_some(gradient);
        let mut gradients: Vec<_> = gradients.into_iter().zip(tensors).map(gradient_if_tracked).collect();
        let gradient = gradients[index].take();
        *progress = BackwardProgress::Backward(weights, gradients);
        gradient
            .ok_or_else(|| candle_core::Error::msg("gradient requested for a tensor outside of the graph"))
    }
}

/// Compares the bits of two lists.
fn is_bitwise_equal(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Computes the transducer loss *B* (`f64`), differentiable in all four tensors.
///
/// `h(t,u) = act(encoded[t] + predicted[u])`, `z = h weightᵀ + bias`; `z` is kept only within
/// [`Options::budget`]. For repeated calls use a [`LossSession`], which reuses its buffers.
///
/// # Shapes
/// `encoded` *B x T x H*, `predicted` *B x (U+1) x H*, `weight` *C x H*, `bias` *C*, all `f32` or
/// all `f64`, on the CPU. Padding is never read and has zero gradients.
///
/// # Errors
/// Those of [`LossSession::forward`].
///
/// # Cost
/// 2 N H C floating-point operations forward, 4 to 6 N H C backward. In addition to scores, a site
/// takes about 100 bytes, so that memory grows with the batch; with [`transducer_loss_sum`] it does
/// not.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use rnnt_loss::{candle::transducer_loss, Options, Targets};
/// let (device, dtype) = (Device::Cpu, DType::F32);
/// let encoded = Var::ones((1, 2, 4), dtype, &device)?; // B = 1, T = 2, H = 4
/// let predicted = Tensor::ones((1, 2, 4), dtype, &device)?; // U = 1
/// let (weight, bias) = (Tensor::ones((3, 4), dtype, &device)?, Tensor::zeros(3, dtype, &device)?);
/// let targets = Targets::new(0, vec![2], vec![vec![1]])?;
/// let options = Options::default();
/// let loss = transducer_loss(&encoded, &predicted, &weight, &bias, &targets, &options)?;
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

/// Computes a weighted sum of [`transducer_loss`] by [`LossSession::sum`].
///
/// # Shapes
/// Those of [`transducer_loss`]; `weights` *B*.
///
/// # Errors
/// Those of [`transducer_loss`]; a weight that is not finite.
///
/// # Cost
/// That of [`LossSession::sum`].
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

/// Returns the tensors of a joint network with one head.
fn joint<'a>(
    encoded: &'a Tensor,
    predicted: &'a Tensor,
    weight: &'a Tensor,
    bias: &'a Tensor,
) -> JointTensors<'a> {
    let head = HeadTensors { weight, bias: Some(bias) };
    JointTensors { encoded, predicted, head, durations: None, dropout: None }
}

/// Computes the loss *B* (`f64`) of scores (logits), differentiable.
///
/// # Shapes
/// `scores` *B x T x (U+1) x C*, `f32` or `f64`, on the CPU; for [`Loss::Tdt`] C classes, then D
/// durations. Padding is never read and has zero gradients.
///
/// # Errors
/// Those of [`LossSession::forward`].
///
/// # Cost
/// O(N C) time; a copy of the scores in the backward pass.
pub fn scores_loss(scores: &Tensor, targets: &Targets, options: &Options) -> Result<Tensor> {
    LossSession::new(options)?.forward(ScoreTensors { scores }, targets)
}

/// Computes the CTC loss *B* (`f64`) of scores (logits), differentiable.
///
/// Graves et al. 2006. For large vocabularies, [`LossSession::sum`] of
/// [`HiddenTensors`](super::HiddenTensors) with [`Loss::Ctc`] needs no tensor of scores.
/// [`Options::loss`] is ignored.
///
/// # Shapes
/// `scores` *B x T x C*, `f32` or `f64`, on the CPU. Rows beyond an utterance's own are never read
/// and get zero gradients.
///
/// # Errors
/// Those of [`LossSession::forward`]. Labels that do not fit into their frames give +inf and zero
/// gradient.
///
/// # Cost
/// O(B T (C + U)) time and memory.
pub fn ctc_loss(scores: &Tensor, targets: &Targets, options: &Options) -> Result<Tensor> {
    let options = Options { loss: Loss::Ctc, ..options.clone() };
    LossSession::new(&options)?.forward(ScoreTensors { scores }, targets)
}
