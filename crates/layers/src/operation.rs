//! `SliceOperation`: a layer as one custom candle operation, written over slices.
//!
//! Each operation has a hand-written backward pass and runs in `f32` and `f64`. A layer implements
//! the trait; [`apply1`] and [`apply3`] add it to the graph.
use std::marker::PhantomData;

use candle_core::{CpuStorage, CustomOp1, CustomOp3, DType, Layout, Shape, Tensor, WithDType};
use kernels::Real;

use crate::tensors;
use crate::tensors::with_slice;
use crate::{Error, Result};

/// A function of N slices with a hand-written backward pass.
pub(crate) trait SliceOperation<const N: usize>: Send + Sync + 'static {
    /// The name of the operation in candle's messages.
    const NAME: &'static str;

    /// Returns the shape of the result.
    fn shape(&self) -> Shape;

    /// Computes the elements of the result.
    fn forward<F: Real>(&self, arguments: [&[F]; N]) -> Vec<F>;

    /// Computes the gradients of the arguments from the result and its gradient.
    ///
    /// `d_out` is the gradient of the result `out`. The gradient of the first argument may be empty
    /// unless `is_input_needed`.
    fn backward<F: Real>(
        &self,
        arguments: [&[F]; N],
        out: &[F],
        d_out: &[F],
        is_input_needed: bool,
    ) -> [Vec<F>; N];
}

/// Applies an operation with one argument.
pub(crate) fn apply1(operation: impl SliceOperation<1>, x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    Ok(match x.dtype() {
        DType::F32 => x.apply_op1(OperationNode::<_, f32>(operation, PhantomData))?,
        DType::F64 => x.apply_op1(OperationNode::<_, f64>(operation, PhantomData))?,
        other => return Err(Error::shape("x", "f32 or f64", format!("{other:?}"))),
    })
}

/// Applies an operation with three arguments: rows, a weight and a bias.
pub(crate) fn apply3(
    operation: impl SliceOperation<3>,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<Tensor> {
    let (x, weight, bias) = (x.contiguous()?, weight.contiguous()?, bias.contiguous()?);
    Ok(match [x.dtype(), weight.dtype(), bias.dtype()] {
        [DType::F32, DType::F32, DType::F32] => {
            x.apply_op3(&weight, &bias, OperationNode::<_, f32>(operation, PhantomData))?
        }
        [DType::F64, DType::F64, DType::F64] => {
            x.apply_op3(&weight, &bias, OperationNode::<_, f64>(operation, PhantomData))?
        }
        other => {
            return Err(Error::shape(
                "x, weight, bias",
                "f32 or f64, the same for all",
                format!("{other:?}"),
            ));
        }
    })
}

/// The node of an operation in candle's graph.
struct OperationNode<Op, F>(Op, PhantomData<F>);

impl<Op: SliceOperation<1>, F: Real + WithDType> CustomOp1 for OperationNode<Op, F> {
    fn name(&self) -> &'static str {
        Op::NAME
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let out = self.0.forward::<F>([tensors::storage_slice(x, layout)?]);
        Ok((F::to_cpu_storage_owned(out), self.0.shape()))
    }

    fn bwd(&self, x: &Tensor, out: &Tensor, d_out: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let d_out = d_out.contiguous()?;
        let [dx] = with_slice(x, |values: &[F]| {
            with_slice(out, |out| with_slice(&d_out, |d_out| Ok(self.0.backward([values], out, d_out, true))))
        })?;
        Ok(Some(tensors::from_vec(dx, x.shape().clone())?))
    }
}

impl<Op: SliceOperation<3>, F: Real + WithDType> CustomOp3 for OperationNode<Op, F> {
    fn name(&self) -> &'static str {
        Op::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (x, weight) =
            (tensors::storage_slice(x, x_layout)?, tensors::storage_slice(weight, weight_layout)?);
        let out = self.0.forward::<F>([x, weight, tensors::storage_slice(bias, bias_layout)?]);
        Ok((F::to_cpu_storage_owned(out), self.0.shape()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        out: &Tensor,
        d_out: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (d_out, is_input_needed) = (d_out.contiguous()?, x.track_op());
        let [dx, dw, db] = tensors::with_slices(&[weight, bias], |parameters: &[&[F]]| {
            with_slice(x, |x| {
                with_slice(out, |out| {
                    with_slice(&d_out, |d_out| {
                        Ok(self.0.backward([x, parameters[0], parameters[1]], out, d_out, is_input_needed))
                    })
                })
            })
        })?;
        // Candle would keep the gradients of frozen arguments until the end of the pass.
        let gradient = |argument: &Tensor, values: Vec<F>| {
            argument.track_op().then(|| tensors::from_vec(values, argument.shape().clone())).transpose()
        };
        Ok((gradient(x, dx)?, gradient(weight, dw)?, gradient(bias, db)?))
    }
}

/// Adds partial sums of `width` values each, in their order: the bits do not depend on threads.
pub(crate) fn sum_partials<F: Real>(partials: &[F], width: usize) -> Vec<F> {
    let mut total = vec![F::ZERO; width];
    partials.chunks_exact(width.max(1)).for_each(|partial| kernels::add(&mut total, partial));
    total
}

#[cfg(test)]
pub(crate) mod tests {
    use candle_core::{Device, Var};

    use super::*;

    /// Returns a variable with deterministic, irregular values within ±1.
    pub(crate) fn test_values(shape: &[usize], frequency: f64) -> Var {
        let value = |i: usize| (frequency * (1 + i) as f64 + 0.3 * ((i * i) as f64).sin()).sin();
        let values: Vec<f64> = (0..shape.iter().product()).map(value).collect();
        Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu).unwrap()).unwrap()
    }

    /// Copies all elements as `f64`.
    pub(crate) fn values(x: &Tensor) -> Vec<f64> {
        x.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Compares all gradients of `f` with central differences.
    pub(crate) fn check_gradients(f: impl Fn(&[Var]) -> Tensor, arguments: &[Var]) {
        let weights = test_values(f(arguments).dims(), 2.3);
        let loss = |arguments: &[Var]| (f(arguments) * weights.as_tensor()).unwrap().sum_all().unwrap();
        let gradients = loss(arguments).backward().unwrap();
        let step = 1e-5;
        for (index, argument) in arguments.iter().enumerate() {
            let gradient = values(gradients.get(argument).unwrap());
            let original = values(argument);
            for (i, gradient) in gradient.iter().enumerate() {
                let shifted_loss = |shift: f64| {
                    let mut values = original.clone();
                    values[i] += shift;
                    let mut arguments = arguments.to_vec();
                    let tensor = Tensor::from_vec(values, argument.shape(), &Device::Cpu).unwrap();
                    arguments[index] = Var::from_tensor(&tensor).unwrap();
                    loss(&arguments).to_scalar::<f64>().unwrap()
                };
                let expected = (shifted_loss(step) - shifted_loss(-step)) / (2.0 * step);
                let is_close = (gradient - expected).abs() <= 1e-8 * (1.0 + expected.abs());
                assert!(is_close, "argument {index}, element {i}: {gradient}, by differences {expected}");
            }
        }
    }
}
