//! Sessions over tensors.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Tensor};
use panda_core::candle::{Element as CandleElement, function_of};

use super::inputs::{Arguments, TensorInputs};
use crate::{Found, Loss, Options, Output, Result, Scales, Session, Skipped, Targets, held::Held};

/// A [`Session`] over candle tensors, `f32` or `f64`; its buffers stay from step to step, and clones share them.
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
    single: Arc<Mutex<Session<f32>>>,
    double: Arc<Mutex<Session<f64>>>,
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
    pub first_pass: Option<Found>,
    /// What [`Options::skip`] left out of the gradients.
    pub skipped: Skipped,
}

/// What candle calls the operation.
const NAME: &str = "transducer-loss";

/// The session for a type.
trait Pick: CandleElement + crate::Element {
    fn pick(session: &LossSession) -> &Arc<Mutex<Session<Self>>>;
}

impl Pick for f32 {
    fn pick(session: &LossSession) -> &Arc<Mutex<Session<f32>>> {
        &session.single
    }
}

impl Pick for f64 {
    fn pick(session: &LossSession) -> &Arc<Mutex<Session<f64>>> {
        &session.double
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Buffers that a panic left behind mean nothing to the next call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LossSession {
    /// A session without buffers yet.
    ///
    /// # Errors
    /// Those of [`Session::new`].
    pub fn new(options: &Options) -> Result<Self> {
        let single = Arc::new(Mutex::new(Session::new(options)?));
        Ok(Self { options: options.clone(), single, double: Arc::new(Mutex::new(Session::new(options)?)) })
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
    /// As [`Session::forward`]; a tensor of another rank, type or device.
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
    /// As [`Session::sum`]; a tensor of another rank, type or device.
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

    fn arguments(&self, inputs: TensorInputs, targets: &Targets) -> Result<Arguments> {
        if let (TensorInputs::Scores(scores), Loss::Ctc) = (inputs, &self.options.loss) {
            super::expect_rank("scores", scores.scores, "[B, T, C]", 3)?;
        } else if let TensorInputs::Scores(scores) = inputs {
            super::expect_rank("scores", scores.scores, "[B, T, U+1, C]", 4)?;
        }
        Arguments::new(&inputs, targets, self.options.loss.durations())
    }

    fn forward_of<F: Pick>(&self, arguments: Arguments, targets: &Targets) -> Result<Tensor> {
        let session = Arc::clone(F::pick(self));
        let held = arguments.lend(|inputs| Held::new(&mut lock(&session), inputs, targets))?;
        let losses = match (held.found(), arguments.scales()) {
            (Some(found), Some(scales)) => both(&found.losses, held.losses(), scales),
            _ => held.losses().to_vec(),
        };
        let possible = losses.iter().map(|loss| loss.is_finite()).collect();
        let tensors = arguments.tensors.clone();
        let state = Mutex::new(State::Held(Box::new(held)));
        let gradients = Deferred { session, arguments, targets: targets.clone(), possible, state };
        let slope = move |tensor, upstream: &Tensor| gradients.slope(tensor, upstream);
        Ok(function_of(NAME, &tensors, losses, targets.batch(), slope)?)
    }

    fn sum_of<F: Pick>(&self, arguments: &Arguments, targets: &Targets, weights: &[f64]) -> Result<LossSum> {
        let session = F::pick(self);
        let out = arguments.lend::<F, _>(|inputs| lock(session).sum(*inputs, targets, weights))?;
        let Output { losses, first_pass, gradients, skipped } = out;
        let value = match (&first_pass, arguments.scales()) {
            (Some(first), Some(Scales { simple, pruned })) => {
                simple * possible_sum(&first.losses, weights) + pruned * possible_sum(&losses, weights)
            }
            _ => possible_sum(&losses, weights),
        };
        let gradients = arguments.order(gradients)?;
        let slope = move |tensor: usize, upstream: &Tensor| match upstream.to_scalar::<f64>()? {
            1.0 => Ok(gradients[tensor].clone()),
            factor => gradients[tensor].affine(factor, 0.0),
        };
        let sum = function_of(NAME, &arguments.tensors, vec![value], (), slope)?;
        Ok(LossSum { sum, losses, first_pass, skipped })
    }
}

/// `Σ_b weights[b] losses[b]` over the utterances that have a path.
fn possible_sum(losses: &[f64], weights: &[f64]) -> f64 {
    losses.iter().zip(weights).filter(|(loss, _)| loss.is_finite()).map(|(loss, weight)| loss * weight).sum()
}

/// Losses of two passes in their scales, +inf where either has no path.
fn both(simple: &[f64], pruned: &[f64], scales: Scales) -> Vec<f64> {
    let sum = |(simple, pruned): (&f64, &f64)| match simple.is_finite() && pruned.is_finite() {
        true => scales.simple * simple + scales.pruned * pruned,
        false => f64::INFINITY,
    };
    simple.iter().zip(pruned).map(sum).collect()
}

/// Gradients of losses whose weights come with the backward pass.
struct Deferred<F: CandleElement> {
    session: Arc<Mutex<Session<F>>>,
    arguments: Arguments,
    targets: Targets,
    /// Which losses are finite.
    possible: Vec<bool>,
    state: Mutex<State<F>>,
}

enum State<F> {
    Held(Box<Held<F>>),
    /// Gradients under some weights, each until it is fetched.
    Done(Vec<f64>, Vec<Option<Tensor>>),
}

impl<F: CandleElement> Deferred<F> {
    /// Gradients for all tensors.
    fn run(&self, held: Option<Held<F>>, weights: &[f64]) -> Result<Vec<Tensor>> {
        let session = &mut lock(&self.session);
        let out = self.arguments.lend(|inputs| {
            let held = match held {
                Some(held) => held,
                None => Held::new(session, inputs, &self.targets)?,
            };
            held.backward(session, inputs, &self.targets, weights)
        })?;
        self.arguments.order(out.gradients)
    }

    /// That for one of them.
    fn slope(&self, tensor: usize, upstream: &Tensor) -> candle_core::Result<Tensor> {
        let mut weights = upstream.to_vec1::<f64>()?;
        // Whatever an infinite loss has become above, it has no gradient in either pass.
        let pairs = weights.iter_mut().zip(&self.possible);
        pairs.filter(|(_, possible)| !**possible).for_each(|(weight, _)| *weight = 0.0);
        let mut state = lock(&self.state);
        if let State::Done(of, gradients) = &mut *state
            && same(of, &weights)
            && let Some(gradient) = gradients[tensor].take()
        {
            return Ok(gradient);
        }
        let before = std::mem::replace(&mut *state, State::Done(Vec::new(), Vec::new()));
        let held = if let State::Held(held) = before { Some(*held) } else { None };
        let gradients = self.run(held, &weights).map_err(candle_core::Error::wrap)?;
        let tracked = |(gradient, tensor): (Tensor, &Tensor)| tensor.track_op().then_some(gradient);
        let mut gradients: Vec<_> = gradients.into_iter().zip(&self.arguments.tensors).map(tracked).collect();
        let gradient = gradients[tensor].take();
        *state = State::Done(weights, gradients);
        gradient
            .ok_or_else(|| candle_core::Error::msg("a gradient was asked for a tensor outside of the graph"))
    }
}

/// The same bits.
fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
