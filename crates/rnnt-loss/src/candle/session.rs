//! Sessions over tensors, and sessions of one call.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Tensor};
use panda_core::candle::{Element as CandleElement, function_of};

use super::inputs::{HeadTensors, JointTensors, NamedTensors, ScoreTensors, TensorInputs};
use crate::{
    Loss, LossOutput, Options, PassScales, PruningOutput, Result, SkippedSites, Targets,
    budget::SessionBuffers, engine::ForwardState,
};

/// A [`Session`](crate::Session) over candle tensors, `f32` or `f64`; its buffers stay from step to step, and clones share them.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use rnnt_loss::{Options, Targets, candle::{HeadTensors, JointTensors, LossSession}};
/// let (device, dtype) = (Device::Cpu, DType::F32);
/// let encoded = Var::ones((1, 2, 4), dtype, &device)?; // B = 1, T = 2, H = 4
/// let predicted = Tensor::ones((1, 2, 4), dtype, &device)?; // U = 1
/// let weight = Var::ones((3, 4), dtype, &device)?; // C = 3
/// let head = HeadTensors { weight: &weight, bias: None };
/// let joint = JointTensors { encoded: &encoded, predicted: &predicted, head, durations: None, dropout: None };
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
    single: Arc<Mutex<SessionBuffers<f32>>>,
    double: Arc<Mutex<SessionBuffers<f64>>>,
}

/// A weighted sum of losses.
#[derive(Debug, Clone)]
pub struct LossSum {
    /// `Σ_b weights[b] loss[b]` over the utterances that have a path (with pruning, of both losses in their scales), a
    /// scalar (`f64`), differentiable.
    pub sum: Tensor,
    /// Loss of each utterance, *B*; +inf for those that were left out of the sum.
    pub losses: Vec<f64>,
    /// What the trivial joiner found, with pruning alone.
    pub first_pass: Option<PruningOutput>,
    /// What [`Options::skip`] left out of the gradients.
    pub skipped: SkippedSites,
}

/// What candle calls the operation.
const NAME: &str = "transducer-loss";

/// A type of numbers and its buffers in a session.
trait SessionDtype: CandleElement + crate::Element {
    fn buffers(session: &LossSession) -> &Arc<Mutex<SessionBuffers<Self>>>;
}

impl SessionDtype for f32 {
    fn buffers(session: &LossSession) -> &Arc<Mutex<SessionBuffers<f32>>> {
        &session.single
    }
}

impl SessionDtype for f64 {
    fn buffers(session: &LossSession) -> &Arc<Mutex<SessionBuffers<f64>>> {
        &session.double
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // SessionBuffers that a panic left behind mean nothing to the next call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LossSession {
    /// A session without buffers yet.
    ///
    /// # Errors
    /// Those of [`Session::new`](crate::Session::new).
    pub fn new(options: &Options) -> Result<Self> {
        options.check()?;
        Ok(Self { options: options.clone(), single: Arc::default(), double: Arc::default() })
    }

    /// A session of another loss that shares the buffers of this one, and so its budget.
    ///
    /// For losses of one step that are computed one after the other with [`sum`](Self::sum), such as a transducer loss and
    /// an auxiliary CTC loss: together they hold no more than the budget. Of `options`, `budget`, `keep_scores`, `precision`
    /// and `plan` are replaced by those of `self`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_shared_buffers(&self, options: &Options) -> Result<Self> {
        let Options { budget, keep_scores, precision, plan, .. } = self.options;
        let options = Options { budget, keep_scores, precision, plan, ..options.clone() };
        options.check()?;
        Ok(Self { options, single: Arc::clone(&self.single), double: Arc::clone(&self.double) })
    }

    /// What the session was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Losses *B* (`f64`), differentiable in all tensors. Rows beyond an utterance's own are never read and get zero gradients.
    ///
    /// With pruning the losses are those of both passes in their scales, +inf where either has no path.
    ///
    /// # Shapes
    /// Those of the inputs.
    ///
    /// # Errors
    /// As [`Session::forward`](crate::Session::forward); a tensor of another rank, type or device.
    ///
    /// # Cost
    /// As there; a second backward pass over the same graph runs the forward pass again.
    pub fn forward<'a>(&self, inputs: impl Into<TensorInputs<'a>>, targets: &Targets) -> Result<Tensor> {
        self.forward_tensors(inputs.into(), targets)
    }

    fn forward_tensors(&self, inputs: TensorInputs, targets: &Targets) -> Result<Tensor> {
        let arguments = self.arguments(inputs, targets)?;
        match arguments.dtype {
            DType::F32 => self.forward_of::<f32>(arguments, targets),
            _ => self.forward_of::<f64>(arguments, targets),
        }
    }

    /// Losses summed with weights that are known beforehand, in memory that does not grow with the batch.
    ///
    /// The gradients are computed even if nobody asks for them; whatever follows can only scale the sum.
    ///
    /// # Shapes
    /// Those of the inputs; `weights` *B*.
    ///
    /// # Errors
    /// As [`Session::sum`](crate::Session::sum); a tensor of another rank, type or device.
    ///
    /// # Cost
    /// As there.
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
            DType::F32 => self.sum_of::<f32>(&arguments, targets, weights),
            _ => self.sum_of::<f64>(&arguments, targets, weights),
        }
    }

    fn arguments(&self, inputs: TensorInputs, targets: &Targets) -> Result<NamedTensors> {
        if let (TensorInputs::Scores(scores), Loss::Ctc) = (inputs, &self.options.loss) {
            super::expect_rank("scores", scores.scores, "[B, T, C]", 3)?;
        } else if let TensorInputs::Scores(scores) = inputs {
            super::expect_rank("scores", scores.scores, "[B, T, U+1, C]", 4)?;
        }
        NamedTensors::new(&inputs, targets, self.options.loss.durations())
    }

    fn forward_of<F: SessionDtype>(&self, arguments: NamedTensors, targets: &Targets) -> Result<Tensor> {
        let (buffers, options) = (Arc::clone(F::buffers(self)), self.options.clone());
        let state = arguments
            .with_inputs(|inputs| ForwardState::new(inputs, targets, &options, &mut lock(&buffers)))?;
        let losses = match (state.first_pass(), arguments.scales()) {
            (Some(first), Some(scales)) => both(&first.losses, state.losses(), scales),
            _ => state.losses().to_vec(),
        };
        let possible = losses.iter().map(|loss| loss.is_finite()).collect();
        let tensors: Vec<Tensor> = arguments.tensors.iter().map(|(_, tensor)| tensor.clone()).collect();
        let progress = Mutex::new(BackwardProgress::Forward(Box::new(state)));
        let targets = targets.clone();
        let batch = targets.batch();
        let gradients = Deferred { buffers, options, arguments, targets, possible, progress };
        let grad_fn = move |tensor, upstream: &Tensor| gradients.gradient(tensor, upstream);
        Ok(function_of(NAME, &tensors, losses, batch, grad_fn)?)
    }

    fn sum_of<F: SessionDtype>(
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
                simple * possible_sum(&first.losses, weights) + pruned * possible_sum(&losses, weights)
            }
            _ => possible_sum(&losses, weights),
        };
        let gradients = arguments.gradients(gradients)?;
        let tensors: Vec<Tensor> = arguments.tensors.iter().map(|(_, tensor)| tensor.clone()).collect();
        let grad_fn = move |tensor: usize, upstream: &Tensor| match upstream.to_scalar::<f64>()? {
            1.0 => Ok(gradients[tensor].clone()),
            factor => gradients[tensor].affine(factor, 0.0),
        };
        let sum = function_of(NAME, &tensors, vec![value], (), grad_fn)?;
        Ok(LossSum { sum, losses, first_pass, skipped })
    }
}

/// `Σ_b weights[b] losses[b]` over the utterances that have a path.
fn possible_sum(losses: &[f64], weights: &[f64]) -> f64 {
    losses.iter().zip(weights).filter(|(loss, _)| loss.is_finite()).map(|(loss, weight)| loss * weight).sum()
}

/// Losses of two passes in their scales, +inf where either has no path.
fn both(simple: &[f64], pruned: &[f64], scales: PassScales) -> Vec<f64> {
    let sum = |(simple, pruned): (&f64, &f64)| match simple.is_finite() && pruned.is_finite() {
        true => scales.simple * simple + scales.pruned * pruned,
        false => f64::INFINITY,
    };
    simple.iter().zip(pruned).map(sum).collect()
}

/// Gradients of losses whose weights come with the backward pass.
struct Deferred<F> {
    buffers: Arc<Mutex<SessionBuffers<F>>>,
    options: Options,
    arguments: NamedTensors,
    targets: Targets,
    /// Which losses are finite.
    possible: Vec<bool>,
    progress: Mutex<BackwardProgress<F>>,
}

enum BackwardProgress<F> {
    Forward(Box<ForwardState<F>>),
    /// Gradients under some weights, each until it is fetched.
    Backward(Vec<f64>, Vec<Option<Tensor>>),
}

impl<F: CandleElement> Deferred<F> {
    /// Gradients of all tensors; the forward pass runs again where its state was used before.
    fn backward(&self, state: Option<ForwardState<F>>, weights: &[f64]) -> Result<Vec<Tensor>> {
        let (Self { options, targets, arguments, .. }, buffers) = (self, &mut lock(&self.buffers));
        let out = arguments.with_inputs(|inputs| {
            let state = state.map_or_else(|| ForwardState::new(inputs, targets, options, buffers), Ok)?;
            state.backward(&inputs.values(), weights, options, buffers)
        })?;
        arguments.gradients(out.gradients)
    }

    /// That of one of them.
    fn gradient(&self, tensor: usize, upstream: &Tensor) -> candle_core::Result<Tensor> {
        let mut weights = upstream.to_vec1::<f64>()?;
        // Whatever an infinite loss has become above, it has no gradient in either pass.
        let pairs = weights.iter_mut().zip(&self.possible);
        pairs.filter(|(_, possible)| !**possible).for_each(|(weight, _)| *weight = 0.0);
        let mut progress = lock(&self.progress);
        if let BackwardProgress::Backward(of, gradients) = &mut *progress
            && same(of, &weights)
            && let Some(gradient) = gradients[tensor].take()
        {
            return Ok(gradient);
        }
        let before = std::mem::replace(&mut *progress, BackwardProgress::Backward(Vec::new(), Vec::new()));
        let state = if let BackwardProgress::Forward(state) = before { Some(*state) } else { None };
        let gradients = self.backward(state, &weights).map_err(candle_core::Error::wrap)?;
        let tensors = &self.arguments.tensors;
        let tracked = |(gradient, (_, tensor)): (Tensor, &(_, Tensor))| tensor.track_op().then_some(gradient);
        let mut gradients: Vec<_> = gradients.into_iter().zip(tensors).map(tracked).collect();
        let gradient = gradients[tensor].take();
        *progress = BackwardProgress::Backward(weights, gradients);
        gradient
            .ok_or_else(|| candle_core::Error::msg("a gradient was asked for a tensor outside of the graph"))
    }
}

/// The same bits.
fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

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
/// Where scores would be large, [`LossSession::sum`] of [`HiddenTensors`](super::RowTensors) under [`Loss::Ctc`] does without them.
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
