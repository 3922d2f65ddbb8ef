//! Losses and best paths of recognition lattices over candle tensors, with autograd.
//!
//! A [`Gnat`] (globally normalized autoregressive transducer) is a lattice over the last labels
//! with the weights of a [`JointWeightFn`](crate::JointWeightFn), and a session with its buffers.
//! [`Gnat::losses`] returns losses *B..* (`f64`), differentiable in frames and all parameters.
//! [`Gnat::loss_sum`] runs forward and backward at once, for training with known utterance weights.
//! Gradients have the dtype of their tensors. Only tensors that are not contiguous are copied.
//!
//! Parameters have the names of LAST (Wu et al., arXiv 2304.13134), with dots in place of slashes.
//! [`JointWeights::save`] and [`load`] write and read files with slashes.
mod batch;
mod weights;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Storage, Tensor};
use panda_core::candle::{Element, values, with_custom_grad};

pub use batch::BatchTensors;
use batch::{FrameBatch, LabelBatch};
pub use weights::{EmbeddingConfig, JointConfig, JointWeights, load};

use crate::plan::{LatticeOperation, UtteranceLength};
use crate::{
    AlignmentLattice, BeamOptions, Context, Error, Frames, Labels, LatticeOutput, LatticePath,
    LatticeSession, LocallyNormalized, Merge, Options, PathSum, Plan, RecognitionLattice, Result, WeightFn,
};

/// Name of the candle operation.
const OPERATION_NAME: &str = "recognition-lattice-loss";

/// A globally or locally normalized transducer with a finite context.
///
/// The globally normalized transducer is GNAT; the local one uses the same lattice. A transducer
/// has a context, an alignment, and the parameters of a joint network. Its buffers are kept from
/// step to step, and shared by clones.
///
/// ```
/// use std::sync::Arc;
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use lattice::{AlignmentLattice, Context, FullNGram, Options};
/// use lattice::candle::{BatchTensors, EmbeddingConfig, Gnat, JointConfig, JointWeights};
/// let variables = VarMap::new();
/// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
/// let context = FullNGram::new(3, 1)?;
/// let embeddings = EmbeddingConfig::Table { width: 4 };
/// let states = context.states();
/// let normalize = None;
/// let sizes = JointConfig { states, vocabulary: 3, frame: 2, hidden: 5, embeddings, normalize };
/// let weights = JointWeights::new(sizes, &vb)?;
/// let alignment = AlignmentLattice::FrameDependent;
/// let gnat = Gnat::new(Arc::new(context), alignment, weights, Options::default())?;
/// let integers = |values: &[u32]| Tensor::new(values, &Device::Cpu);
/// let frames = Tensor::ones((2, 4, 2), DType::F32, &Device::Cpu)?; // B = 2, T = 4, F = 2
/// let (num_frames, num_labels) = (integers(&[4, 3])?, integers(&[2, 1])?);
/// let labels = integers(&[1, 3, 2, 0])?.reshape((2, 2))?;
/// let batch = BatchTensors {
///     frames: &frames,
///     num_frames: &num_frames,
///     labels: &labels,
///     num_labels: &num_labels,
/// };
/// let gradients = gnat.losses(batch)?.mean_all()?.backward()?;
/// assert_eq!(gradients.get_ids().count() > 0, true);
/// assert_eq!(gnat.best_paths(&frames, &num_frames)?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Gnat {
    context: Arc<dyn Context>,
    alignment: AlignmentLattice,
    weights: JointWeights,
    /// Session for tensors of `f32`.
    session_f32: Arc<Mutex<LatticeSession<f32>>>,
    /// Session for tensors of `f64`.
    session_f64: Arc<Mutex<LatticeSession<f64>>>,
}

/// A weighted sum of losses.
#[derive(Debug, Clone)]
pub struct GnatLossSum {
    /// `Σ_b weights[b] loss[b]` over utterances with a path, a scalar (`f64`), differentiable.
    pub sum: Tensor,
    /// Loss of each utterance; +inf for those excluded from the sum.
    pub losses: Vec<f64>,
}

/// Selects the session of a dtype.
trait GnatDtype: Element + panda_core::Real {
    fn session(gnat: &Gnat) -> &Arc<Mutex<LatticeSession<Self>>>;
}

impl GnatDtype for f32 {
    fn session(gnat: &Gnat) -> &Arc<Mutex<LatticeSession<f32>>> {
        &gnat.session_f32
    }
}

impl GnatDtype for f64 {
    fn session(gnat: &Gnat) -> &Arc<Mutex<LatticeSession<f64>>> {
        &gnat.session_f64
    }
}

/// Locks a mutex.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // After a panic the buffers have arbitrary contents, which the next call overwrites.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gnat {
    /// Creates a lattice with empty buffers.
    ///
    /// # Errors
    /// Weights whose number of states or labels differs from the context.
    pub fn new(
        context: Arc<dyn Context>,
        alignment: AlignmentLattice,
        weights: JointWeights,
        options: Options,
    ) -> Result<Self> {
        let config = weights.config();
        let sizes = [
            ("weights.states", context.states(), config.states),
            ("weights.vocabulary", context.vocabulary(), config.vocabulary),
        ];
        for (argument, expected, found) in sizes {
            if expected != found {
                return Err(Error::shape(argument, format!("{expected}, as in the context"), found));
            }
        }
        let session_f32 = Arc::new(Mutex::new(LatticeSession::new(options)));
        Ok(Self {
            context,
            alignment,
            weights,
            session_f32,
            session_f64: Arc::new(Mutex::new(LatticeSession::new(options))),
        })
    }

    /// The context.
    pub fn context(&self) -> &dyn Context {
        &*self.context
    }

    /// The alignment lattice.
    pub fn alignment(&self) -> AlignmentLattice {
        self.alignment
    }

    /// The parameters.
    pub fn weights(&self) -> &JointWeights {
        &self.weights
    }

    /// Returns losses *B..* (`f64`) as in [`LatticeSession::sum`], differentiable.
    ///
    /// They have gradients for frames and all parameters.
    ///
    /// A string without a path has the loss +inf and only the gradient of `log D`, as in LAST;
    /// [`Self::loss_sum`] excludes it.
    ///
    /// # Errors
    /// As [`LatticeSession::sum`]; tensors with different leading axes, of another dtype or device;
    /// labels out of range.
    ///
    /// # Cost
    /// Sums over paths in the forward pass. The backward pass, where the utterance weights are
    /// known, computes them again with all gradients.
    pub fn losses(&self, batch: BatchTensors) -> Result<Tensor> {
        let call = self.check_batch(batch)?;
        match call.frames.dtype() {
            DType::F32 => call.losses::<f32>(),
            _ => call.losses::<f64>(),
        }
    }

    /// Returns the sum of losses with known weights; computes all gradients at once.
    ///
    /// Later operations may only scale the sum.
    ///
    /// # Shapes
    /// `weights` *B..*, in the order of memory.
    ///
    /// # Errors
    /// As [`Self::losses`].
    ///
    /// # Cost
    /// As [`LatticeSession::sum`].
    pub fn loss_sum(&self, batch: BatchTensors, weights: &[f64]) -> Result<GnatLossSum> {
        let call = self.check_batch(batch)?;
        match call.frames.dtype() {
            DType::F32 => call.sum::<f32>(weights),
            _ => call.sum::<f64>(weights),
        }
    }

    /// Plans a training step in `f32` from shapes, without parameters.
    ///
    /// # Shapes
    /// `[B, T, U]`: number of utterances, frames and labels.
    ///
    /// # Errors
    /// As [`LatticeSession::plan`].
    pub fn plan_for_shape(&self, [batch, frames, labels]: [usize; 3]) -> Result<Plan> {
        let config = self.weights.config();
        let sizes = config.sizes::<f32>();
        let local = config.normalize.map(|normalize| LocallyNormalized::new(sizes, normalize));
        let weight_fn: &dyn WeightFn<f32> = match &local {
            None => &sizes,
            Some(local) => local,
        };
        let lattice = RecognitionLattice::new(&*self.context, self.alignment, weight_fn)?;
        let length = UtteranceLength { frames, positions: labels.saturating_add(1) };
        let lengths = vec![length; batch];
        let operation = LatticeOperation::sum(!weight_fn.is_locally_normalized()).with_gradients();
        let options = lock(f32::session(self)).options();
        Plan::for_lengths(&lattice, lengths, config.frame, operation, options)
    }

    /// Returns the best path of each utterance.
    ///
    /// # Shapes
    /// `frames` *B.. x T x F*, `num_frames` *B..*.
    ///
    /// # Errors
    /// As [`LatticeSession::best_paths`]; tensors that do not fit together.
    pub fn best_paths(&self, frames: &Tensor, num_frames: &Tensor) -> Result<Vec<LatticePath>> {
        let frames = FrameBatch::new(frames, num_frames)?;
        match frames.dtype() {
            DType::F32 => self.with_session::<f32, _>(&frames, |session, lattice, frames| {
                session.best_paths(lattice, frames)
            }),
            _ => self.with_session::<f64, _>(&frames, |session, lattice, frames| {
                session.best_paths(lattice, frames)
            }),
        }
    }

    /// Returns the best string of each utterance by beam search.
    ///
    /// The result is the best alignment of the string. The weight of a string is the sum over its
    /// alignments in a beam of `width`.
    ///
    /// # Shapes
    /// As [`Self::best_paths`].
    ///
    /// # Errors
    /// As [`LatticeSession::beam_search`]; tensors that do not fit together.
    pub fn best_strings(
        &self,
        frames: &Tensor,
        num_frames: &Tensor,
        width: usize,
    ) -> Result<Vec<LatticePath>> {
        let frames = FrameBatch::new(frames, num_frames)?;
        match frames.dtype() {
            DType::F32 => self.with_session::<f32, _>(&frames, |session, lattice, frames| {
                best_strings(session, lattice, frames, width)
            }),
            _ => self.with_session::<f64, _>(&frames, |session, lattice, frames| {
                best_strings(session, lattice, frames, width)
            }),
        }
    }

    /// Checks the tensors of a batch.
    fn check_batch(&self, batch: BatchTensors) -> Result<TensorCall> {
        let frames = FrameBatch::new(batch.frames, batch.num_frames)?;
        let vocabulary = self.context.vocabulary();
        let labels = LabelBatch::new(batch.labels, batch.num_labels, frames.batch(), vocabulary)?;
        Ok(TensorCall { gnat: self.clone(), frames, labels })
    }

    /// Runs a session on the values of frames and parameters.
    fn with_session<F: GnatDtype, T>(
        &self,
        batch: &FrameBatch,
        run: impl FnOnce(&mut LatticeSession<F>, &RecognitionLattice<F>, &Frames<F>) -> Result<T>,
    ) -> Result<T> {
        if !matches!(batch.dtype(), DType::F32 | DType::F64) {
            return Err(Error::shape("frames", "f32 or f64", batch.dtype().as_str()));
        }
        let mut tensors = self.weights.contiguous(batch.dtype())?;
        tensors.push(batch.values.clone());
        let guards: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
        let mut slices = Vec::with_capacity(guards.len());
        for (storage, layout) in &guards {
            let Storage::Cpu(storage) = &**storage else {
                return Err(Error::shape("tensors", "tensors on the CPU", "a tensor on another device"));
            };
            slices.push(values::<F>(storage, layout)?);
        }
        let (frame_values, weight_values) = slices.split_last().expect("the frames are in the list");
        let joint = self.weights.config().joint(weight_values);
        let local = self.weights.config().normalize.map(|normalize| LocallyNormalized::new(joint, normalize));
        let weight_fn: &dyn WeightFn<F> = match &local {
            None => &joint,
            Some(local) => local,
        };
        let lattice = RecognitionLattice::new(&*self.context, self.alignment, weight_fn)?;
        let frames = Frames::new(frame_values, batch.values.dims(), &batch.lengths)?;
        // No lock is held during the call: the thread pool could run a task on this thread that
        // needs it. Concurrent calls use separate buffers.
        let options = lock(F::session(self)).options();
        let mut session = std::mem::replace(&mut *lock(F::session(self)), LatticeSession::new(options));
        let result = run(&mut session, &lattice, &frames);
        *lock(F::session(self)) = session;
        result
    }
}

/// Inputs of a loss, kept until its gradients are computed.
struct TensorCall {
    gnat: Gnat,
    frames: FrameBatch,
    labels: LabelBatch,
}

/// Gradients for some utterance weights, kept until candle has fetched them.
#[derive(Default)]
struct CallGradients {
    weights: Vec<f64>,
    /// Gradient of each tensor; none after it was fetched.
    tensors: Vec<Option<Tensor>>,
}

impl TensorCall {
    /// Frames and parameters, in the order of [`Self::gradients`].
    fn tensors(&self) -> Result<Vec<Tensor>> {
        let mut tensors = vec![self.frames.values.clone()];
        tensors.extend(self.gnat.weights.contiguous(self.frames.dtype())?);
        Ok(tensors)
    }

    /// Runs a session on the values of frames, labels and parameters.
    fn with_session<F: GnatDtype, T>(
        &self,
        run: impl FnOnce(&mut LatticeSession<F>, &RecognitionLattice<F>, &Frames<F>, &Labels) -> Result<T>,
    ) -> Result<T> {
        let labels = Labels::new(&self.labels.ids, &self.labels.shape, &self.labels.lengths)?;
        self.gnat
            .with_session(&self.frames, |session, lattice, frames| run(session, lattice, frames, &labels))
    }

    /// Returns differentiable losses; gradients are computed when candle needs them.
    fn losses<F: GnatDtype>(self) -> Result<Tensor> {
        let losses = self.with_session::<F, _>(|session, lattice, frames, labels| {
            session.distances(PathSum::Loss, lattice, frames, Some(labels))
        })?;
        let (tensors, shape) = (self.tensors()?, self.frames.batch().to_vec());
        let cache = Mutex::new(CallGradients::default());
        let gradient_of = move |tensor: usize, upstream: &Tensor| {
            let weights = upstream.flatten_all()?.to_vec1::<f64>()?;
            let cached = |cache: &mut CallGradients| match has_same_bits(&cache.weights, &weights) {
                true => cache.tensors.get_mut(tensor).and_then(Option::take),
                false => None,
            };
            if let Some(gradient) = cached(&mut lock(&cache)) {
                return Ok(gradient);
            }
            let (gradients, _) = self.gradients::<F>(&weights).map_err(candle_core::Error::wrap)?;
            let mut tensors: Vec<_> = gradients.into_iter().map(Some).collect();
            let gradient = tensors[tensor].take().expect("each tensor has a gradient");
            *lock(&cache) = CallGradients { weights, tensors };
            Ok(gradient)
        };
        Ok(with_custom_grad(OPERATION_NAME, &tensors, losses, shape, gradient_of)?)
    }

    /// Returns the weighted sum of losses, with its gradients.
    fn sum<F: GnatDtype>(self, weights: &[f64]) -> Result<GnatLossSum> {
        let mut path_weights = weights.to_vec();
        let lengths = self.frames.lengths.iter().zip(&self.labels.lengths);
        let (padded, max_labels) = (self.padded(), self.labels.shape.last().copied().unwrap_or(0));
        // Utterances without a path are excluded.
        for (weight, (&frames, &labels)) in path_weights.iter_mut().zip(lengths) {
            if labels > max_labels || !self.gnat.alignment.has_path(frames.min(padded), labels) {
                *weight = 0.0;
            }
        }
        let (gradients, losses) = self.gradients::<F>(&path_weights)?;
        let finite_losses = losses.iter().zip(weights).filter(|(loss, _)| loss.is_finite());
        let value = finite_losses.map(|(loss, weight)| loss * weight).sum();
        let gradient_of = move |tensor: usize, upstream: &Tensor| match upstream.to_scalar::<f64>()? {
            1.0 => Ok(gradients[tensor].clone()),
            factor => gradients[tensor].affine(factor, 0.0),
        };
        let sum = with_custom_grad(OPERATION_NAME, &self.tensors()?, vec![value], (), gradient_of)?;
        Ok(GnatLossSum { sum, losses })
    }

    /// T, the padded number of frames.
    fn padded(&self) -> usize {
        let dims = self.frames.values.dims();
        dims[dims.len() - 2]
    }

    /// Gradients of frames and parameters of `Σ_b weights[b] loss[b]`, and the losses.
    fn gradients<F: GnatDtype>(&self, weights: &[f64]) -> Result<(Vec<Tensor>, Vec<f64>)> {
        let LatticeOutput { sums, frames, mut parameters } =
            self.with_session::<F, _>(|session, lattice, frames, labels| {
                session.sum(lattice, frames, labels, weights)
            })?;
        let tensor = |values, like: &Tensor| Tensor::from_vec(values, like.shape(), like.device());
        let mut gradients = vec![tensor(frames, &self.frames.values)?];
        for (name, parameter) in self.gnat.weights.iter() {
            let values = parameters.remove(name);
            let values = values.ok_or_else(|| Error::shape(name, "a gradient", "none"))?;
            gradients.push(tensor(values, parameter)?);
        }
        Ok((gradients, sums))
    }
}

/// Returns true if two slices have the same bits.
fn has_same_bits(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Aligns the best string of each utterance, which beam search finds.
fn best_strings<F: crate::Real>(
    session: &mut LatticeSession<F>,
    lattice: &RecognitionLattice<F>,
    frames: &Frames<F>,
    width: usize,
) -> Result<Vec<LatticePath>> {
    let strings = session.beam_search(lattice, frames, BeamOptions { width, merge: Merge::Sum }, &())?;
    let best: Vec<&[u32]> =
        strings.iter().map(|strings| strings.first().map_or(&[][..], |s| &s.labels)).collect();
    let longest = best.iter().map(|labels| labels.len()).max().unwrap_or(0);
    let mut ids = vec![0; best.len() * longest];
    for (ids, labels) in ids.chunks_exact_mut(longest.max(1)).zip(&best) {
        ids[..labels.len()].copy_from_slice(labels);
    }
    let shape = [frames.batch(), &[longest]].concat();
    let counts: Vec<usize> = best.iter().map(|labels| labels.len()).collect();
    session.best_alignments(lattice, frames, &Labels::new(&ids, &shape, &counts)?)
}
