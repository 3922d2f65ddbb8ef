//! Recomputation of activations: a layer that saves only its input for the backward pass.
//!
//! The graph contains the layer as one operation. Its backward pass computes the layer again, with
//! the same dropout masks, and then the gradients of input and parameters (Chen et al., arXiv
//! 1604.06174). An operation of candle has at most three arguments; therefore, the parameters are
//! those of a chain of operations on a scalar, the token:
//!
//! ```text
//! token ← parameter_gradient(token, p)    for each parameter p; its backward pass returns dp
//! y     = recomputed_layer(x, token)      its backward pass computes dx and all dp
//! ```
//! Candle runs the backward pass of an operation after those of the operations that use its result,
//! so that all dp are known when a link of the chain returns its own.
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp1, CustomOp2, DType, Device, Layout, Shape, Tensor, Var};

use crate::tensors::to_vec;
use crate::training_pass::TrainingPass;
use crate::{Error, Result};

/// A layer as a function of its input rows.
type LayerFn = dyn Fn(&Tensor, Option<&mut TrainingPass>) -> Result<Tensor> + Send + Sync;

/// The gradients of the parameters between the backward passes of two operations.
type ParameterGradients = Arc<Mutex<Vec<Option<Tensor>>>>;

/// Applies a layer that saves only its input.
///
/// `layer` computes `y` from `x`, the `parameters` and the dropout of a pass; values and gradients
/// have the same bits as without recomputation, apart from the sign of zeros.
///
/// # Errors
/// Those of the layer; [`Error::Shape`] for a dtype other than `f32` and `f64`.
///
/// Cost: the layer's forward pass in the backward pass. While either runs, the activations of this
/// layer are in memory.
pub fn recompute(
    x: &Tensor,
    parameters: &[&Tensor],
    pass: Option<&mut TrainingPass>,
    layer: impl Fn(&Tensor, Option<&mut TrainingPass>) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let parameters: Vec<Tensor> = parameters
        .iter()
        .filter(|parameter| parameter.track_op())
        .map(|&parameter| parameter.clone())
        .collect();
    if parameters.is_empty() && !x.track_op() {
        return layer(x, pass);
    }
    // The masks of the backward pass are those of the pass before the layer.
    let initial_pass = pass.as_deref().map(|pass| pass.clone().with_gradient_hooks(None));
    let out = layer(&x.detach(), pass)?;
    let shape = out.shape().clone();
    let values = to_storage(&out)?;
    drop(out);

    let gradients = ParameterGradients::default();
    let mut token = Tensor::zeros((), x.dtype(), &Device::Cpu)?;
    for (index, parameter) in parameters.iter().enumerate() {
        token = token.apply_op2(parameter, ParameterGradient { gradients: gradients.clone(), index })?;
    }
    let operation = RecomputedLayer {
        layer: Arc::new(layer),
        parameters,
        initial_pass,
        out: Mutex::new(Some(values)),
        shape,
        gradients,
    };
    Ok(x.apply_op2(&token, operation)?)
}

/// Copies the values of a tensor.
fn to_storage(x: &Tensor) -> Result<CpuStorage> {
    let x = x.contiguous()?;
    Ok(match x.dtype() {
        DType::F32 => CpuStorage::F32(to_vec(&x)?),
        DType::F64 => CpuStorage::F64(to_vec(&x)?),
        other => return Err(Error::shape("x", "f32 or f64", format!("{other:?}"))),
    })
}

/// Returns a scalar zero of the dtype of a storage.
fn zero_like(storage: &CpuStorage) -> candle_core::Result<(CpuStorage, Shape)> {
    let zero = match storage {
        CpuStorage::F32(_) => CpuStorage::F32(vec![0.0]),
        CpuStorage::F64(_) => CpuStorage::F64(vec![0.0]),
        _ => candle_core::bail!("recompute: expected f32 or f64"),
    };
    Ok((zero, Shape::from(())))
}

/// A link of the chain: returns the gradient of a parameter.
struct ParameterGradient {
    gradients: ParameterGradients,
    index: usize,
}

impl CustomOp2 for ParameterGradient {
    fn name(&self) -> &'static str {
        "parameter gradient"
    }

    fn cpu_fwd(
        &self,
        token: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        zero_like(token)
    }

    fn bwd(
        &self,
        token: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let mut gradients = self.gradients.lock().unwrap_or_else(PoisonError::into_inner);
        let gradient = gradients.get_mut(self.index).and_then(Option::take);
        Ok((token.track_op().then(|| token.zeros_like()).transpose()?, gradient))
    }
}

/// The layer as an operation of its input and the token.
struct RecomputedLayer {
    layer: Arc<LayerFn>,
    /// The parameters with gradients.
    parameters: Vec<Tensor>,
    /// The pass before the layer.
    initial_pass: Option<TrainingPass>,
    /// The result, until the operation returns it.
    out: Mutex<Option<CpuStorage>>,
    shape: Shape,
    gradients: ParameterGradients,
}

impl CustomOp2 for RecomputedLayer {
    fn name(&self) -> &'static str {
        "recomputed layer"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        match self.out.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(out) => Ok((out, self.shape.clone())),
            None => candle_core::bail!("recompute: expected one forward pass, found another"),
        }
    }

    fn bwd(
        &self,
        x: &Tensor,
        token: &Tensor,
        _: &Tensor,
        d_out: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let input = x.track_op().then(|| Var::from_tensor(&x.detach())).transpose()?;
        let rows = input.as_ref().map_or_else(|| x.detach(), |input| input.as_tensor().clone());
        let mut pass = self.initial_pass.clone();
        let out = (self.layer)(&rows, pass.as_mut()).map_err(candle_core::Error::wrap)?;
        let mut gradients = out.apply_op1(OutputGradient(d_out.contiguous()?))?.backward()?;
        let parameter_gradients =
            self.parameters.iter().map(|parameter| gradients.remove(parameter)).collect();
        *self.gradients.lock().unwrap_or_else(PoisonError::into_inner) = parameter_gradients;
        let dx = input.and_then(|input| gradients.remove(&input));
        Ok((dx, token.track_op().then(|| token.zeros_like()).transpose()?))
    }
}

/// A scalar function with a given gradient.
struct OutputGradient(Tensor);

impl CustomOp1 for OutputGradient {
    fn name(&self) -> &'static str {
        "output gradient"
    }

    fn cpu_fwd(&self, x: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        zero_like(x)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(self.0.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::operation::tests::{check_gradients, test_values, values};

    /// A layer with a matrix and a bias.
    fn layer(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let y = x.matmul(weight)?.tanh()?.broadcast_add(bias)?;
        Ok((y.sqr()? * x)?)
    }

    fn recomputed(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
        let (w, b) = (weight.clone(), bias.clone());
        recompute(x, &[weight, bias], None, move |x, _| layer(x, &w, &b)).unwrap()
    }

    #[test]
    fn gradients_equal_finite_differences_and_those_without_recomputation() {
        let arguments = [test_values(&[4, 3], 0.7), test_values(&[3, 3], 1.9), test_values(&[3], 0.4)];
        check_gradients(|a| recomputed(&a[0], &a[1], &a[2]), &arguments);
        // Two layers with shared parameters, and a frozen input.
        let [x, weight, bias] = &arguments;
        let frozen = x.detach();
        let once = |x: &Tensor| [recomputed(x, weight, bias), layer(x, weight, bias).unwrap()];
        let [first, expected_first] = once(&frozen);
        let second = recomputed(&first, weight, bias);
        let expected = layer(&expected_first, weight, bias).unwrap();
        assert_eq!(values(&second), values(&expected));
        let [found, expected] = [second, expected].map(|y| y.sum_all().unwrap().backward().unwrap());
        for parameter in [weight, bias] {
            assert_eq!(values(found.get(parameter).unwrap()), values(expected.get(parameter).unwrap()));
        }
        assert!(found.get(x).is_none());
    }

    #[test]
    fn the_layer_runs_once_in_each_pass_with_the_same_masks() {
        let (x, weight) = (test_values(&[2, 50], 0.7), test_values(&[2, 50], 1.1));
        let (x, weight) = (x.to_dtype(DType::F32).unwrap(), weight.to_dtype(DType::F32).unwrap());
        let [x, weight] = [x, weight].map(|tensor| Var::from_tensor(&tensor).unwrap());
        let calls = Arc::new(AtomicUsize::new(0));
        let mut pass = TrainingPass::new(7, 1, &[3, 5]);
        let (counter, factor) = (calls.clone(), weight.as_tensor().clone());
        let apply = move |x: &Tensor, pass: Option<&mut TrainingPass>| {
            counter.fetch_add(1, Ordering::Relaxed);
            pass.unwrap().apply(&(x * &factor)?, 0.5)
        };
        let y = recompute(&x, &[&weight], Some(&mut pass), apply).unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        // The next use of dropout has other masks.
        let next = pass.apply(&weight, 0.5).unwrap();
        let mut expected_pass = TrainingPass::new(7, 1, &[3, 5]);
        let expected = expected_pass.apply(&(&*x * &*weight).unwrap(), 0.5).unwrap();
        assert_eq!(values(&y), values(&expected));
        assert_eq!(values(&next), values(&expected_pass.apply(&weight, 0.5).unwrap()));
        let [found, expected] = [&y, &expected].map(|y| y.sum_all().unwrap().backward().unwrap());
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        for variable in [&x, &weight] {
            assert_eq!(values(found.get(variable).unwrap()), values(expected.get(variable).unwrap()));
        }
    }

    #[test]
    fn errors_of_the_layer_are_returned_and_constants_have_no_operation() {
        let x = test_values(&[2, 3], 0.7);
        let fail = |_: &Tensor, _: Option<&mut TrainingPass>| Err(Error::shape("x", "rows", "none"));
        let error = recompute(&x, &[], None, fail).unwrap_err().to_string();
        assert_eq!(error, "x: expected rows, found none");
        let weight = test_values(&[3, 3], 1.9).detach();
        let bias = test_values(&[3], 0.4).detach();
        assert!(!recomputed(&x.detach(), &weight, &bias).track_op());
    }
}
