//! Passes an LSTM direction's weights to its candle operation without copies.
//!
//! W_ih, W_hh and b are the weights of input and state, and the bias (`LstmWeights`).
//!
//! A candle operation has at most three arguments, and a layer has up to seven. In one concatenated
//! tensor, weights would be copied at every step, and their gradients three times more. Here the
//! argument is a tensor of one number that represents them: the operation reads the weights
//! themselves and stores their gradients with the node of that tensor. This node, which runs later
//! in the same backward pass, returns them.
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor, TensorId};

use super::LstmWeights;
use crate::gradient_hooks::GradientHooks;
use crate::tensors;

/// Gradients of W_ih, W_hh and b, by thread of the backward pass.
///
/// Several threads may run backward passes of the same graph at the same time. In each, the
/// operation and the node of the weights run on the same thread.
type StoredGradients = Arc<Mutex<Vec<(ThreadId, [Tensor; 3])>>>;

/// Weights, and the gradients that the operation has computed for them.
pub(super) struct WeightsHandle {
    pub weights: LstmWeights,
    stored: StoredGradients,
}

impl WeightsHandle {
    /// Creates a handle of weights, and the argument for the operation.
    pub(super) fn new(
        weights: &LstmWeights,
        hooks: Option<&GradientHooks>,
    ) -> candle_core::Result<(Self, Tensor)> {
        let LstmWeights { input, recurrent, bias } = weights;
        let [input, recurrent, bias] = [input.contiguous()?, recurrent.contiguous()?, bias.contiguous()?];
        let stored = StoredGradients::default();
        let node = WeightsNode {
            stored: stored.clone(),
            weights: [input.id(), recurrent.id(), bias.id()],
            hooks: hooks.cloned(),
        };
        let argument = input.apply_op3(&recurrent, &bias, node)?;
        Ok((WeightsHandle { weights: LstmWeights { input, recurrent, bias }, stored }, argument))
    }

    /// Stores gradients of W_ih, W_hh and b; returns a gradient of 0 for the argument.
    pub(super) fn store(&self, gradients: [Tensor; 3]) -> candle_core::Result<Tensor> {
        let this_thread = thread::current().id();
        let mut stored = self.stored.lock().expect("no panic while locked");
        // Remove those of an earlier pass of this thread that failed before it reached the node of
        // the weights. Other threads may still need theirs.
        stored.retain(|(thread, _)| *thread != this_thread);
        stored.push((this_thread, gradients));
        tensors::from_vec(vec![0f32], 1)
    }
}

/// The graph node between the weights and the argument.
///
/// Its backward pass returns the gradients that [`WeightsHandle::store`] has stored.
struct WeightsNode {
    stored: StoredGradients,
    /// The tensors W_ih, W_hh and b.
    weights: [TensorId; 3],
    /// Receive the gradients as soon as they are known.
    hooks: Option<GradientHooks>,
}

impl CustomOp3 for WeightsNode {
    fn name(&self) -> &'static str {
        "lstm weights"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(1)))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut stored = self.stored.lock().expect("no panic while locked");
        let index = stored.iter().position(|(thread, _)| *thread == thread::current().id());
        let Some(index) = index else {
            candle_core::bail!("lstm weights: expected stored gradients, found none")
        };
        let (_, [input, recurrent, bias]) = stored.swap_remove(index);
        if let Some(hooks) = &self.hooks {
            hooks.send(self.weights, [&input, &recurrent, &bias]);
        }
        Ok((Some(input), Some(recurrent), Some(bias)))
    }
}
