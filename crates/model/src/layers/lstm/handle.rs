//! The weights of a direction as one argument of the operation.
//!
//! A candle operation has at most three arguments, and a layer has up to seven. Laid one after
//! another in one tensor, weights would be copied at every step, and their gradients three times
//! more. Here the argument is a tensor of one number that stands for them: the operation reads the
//! weights themselves, leaves their gradients with the node of that tensor, and this node, whose
//! turn comes later in the same backward pass, hands them on.
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use candle_core::{CpuStorage, CustomOp3, Layout, Shape, Tensor, TensorId};

use super::LstmWeights;
use crate::gradients::GradientHooks;
use crate::tensors;

/// Gradients that have been left, by the thread whose backward pass it is.
type Left = Arc<Mutex<Vec<(ThreadId, [Tensor; 3])>>>;

/// Weights, and the tensor that stands for them in the graph.
pub(super) struct Handle {
    pub weights: LstmWeights,
    left: Left,
}

impl Handle {
    /// A handle on weights, and the argument for the operation.
    pub fn new(weights: &LstmWeights, hooks: Option<&GradientHooks>) -> candle_core::Result<(Self, Tensor)> {
        let LstmWeights { input, recurrent, bias } = weights;
        let [input, recurrent, bias] = [input.contiguous()?, recurrent.contiguous()?, bias.contiguous()?];
        let left = Left::default();
        let node = WeightsNode {
            left: left.clone(),
            weights: [input.id(), recurrent.id(), bias.id()],
            hooks: hooks.cloned(),
        };
        let argument = input.apply_op3(&recurrent, &bias, node)?;
        Ok((Handle { weights: LstmWeights { input, recurrent, bias }, left }, argument))
    }

    /// Leaves gradients of W_ih, W_hh and b; returns the one for the argument, which says nothing.
    pub fn leave(&self, gradients: [Tensor; 3]) -> candle_core::Result<Tensor> {
        let (me, mut left) = (thread::current().id(), self.left.lock().expect("no panic while locked"));
        left.retain(|(thread, _)| *thread != me);
        left.push((me, gradients));
        tensors::from_vec(vec![0f32], 1)
    }
}

/// The graph node between the weights and the argument.
struct WeightsNode {
    left: Left,
    weights: [TensorId; 3],
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
        let mut left = self.left.lock().expect("no panic while locked");
        let mine = left.iter().position(|(thread, _)| *thread == thread::current().id());
        let Some(at) = mine else { candle_core::bail!("lstm weights: a gradient that no layer has left") };
        let (_, [input, recurrent, bias]) = left.swap_remove(at);
        if let Some(hooks) = &self.hooks {
            hooks.send(self.weights, [&input, &recurrent, &bias]);
        }
        Ok((Some(input), Some(recurrent), Some(bias)))
    }
}
