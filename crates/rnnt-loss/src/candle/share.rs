//! A value as a function of any number of tensors.
//!
//! An operation of candle has at most three differentiable arguments. So the value is a sum of shares, one for each tensor,
//! of which the first is the value and the others are 0; a share knows the gradient for its own tensor.
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};

/// Gradients of a value for some tensors.
pub(super) trait Slopes: Send + Sync {
    /// That for one of them, given the derivative of whatever follows by the value.
    fn slope(&self, tensor: usize, upstream: &Tensor) -> Result<Tensor>;
}

struct Share<S> {
    values: Vec<f64>,
    shape: Shape,
    tensor: usize,
    slopes: Arc<S>,
}

impl<S: Slopes> CustomOp1 for Share<S> {
    fn name(&self) -> &'static str {
        "transducer-loss"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F64(self.values.clone()), self.shape.clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        self.slopes.slope(self.tensor, upstream).map(Some)
    }
}

/// `values` of a shape as a function of all tensors that a graph leads to.
pub(super) fn of<S: Slopes + 'static>(
    values: Vec<f64>,
    shape: impl Into<Shape>,
    tensors: &[Tensor],
    slopes: S,
) -> Result<Tensor> {
    let (shape, slopes) = (shape.into(), Arc::new(slopes));
    let mut sum: Option<Tensor> = None;
    for (tensor, argument) in tensors.iter().enumerate().filter(|(_, tensor)| tensor.track_op()) {
        let values = if sum.is_none() { values.clone() } else { vec![0.0; values.len()] };
        let share = Share { values, shape: shape.clone(), tensor, slopes: Arc::clone(&slopes) };
        let share = argument.apply_op1_arc(Arc::new(Box::new(share)))?;
        sum = Some(match sum {
            None => share,
            Some(sum) => (sum + share)?,
        });
    }
    sum.map_or_else(|| Tensor::from_vec(values, shape, &Device::Cpu), Ok)
}
