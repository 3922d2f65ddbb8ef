//! A linear layer as one candle operation whose bits do not depend on the number of threads.
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Shape, Tensor, WithDType};
use kernels::{Accumulate, Affine, View};
use panda_core::Real;

use crate::tensors::{self, with_slice};
use crate::{Error, Result};

/// `y = x W + b` over the last axis.
///
/// # Shapes
/// `x [..., D]`, `weight [D, O]`, `bias [O]`; returns `[..., O]`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not fit, or D or O is 0.
///
/// Cost: `O(rows · D · O)` time, no memory beside the results.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let input = x.dims().last().copied().unwrap_or(0);
    let fits = input > 0 && matches!(weight.dims(), &[d, o] if o > 0 && d == input && bias.dims() == [o]);
    if !fits {
        let found = format!("{:?} and bias {:?}", weight.dims(), bias.dims());
        return Err(Error::shape("weight", format!("[{input}, O] and bias [O]"), found));
    }
    let (x, weight, bias) = (x.contiguous()?, weight.contiguous()?, bias.contiguous()?);
    Ok(match (x.dtype(), weight.dtype()) {
        (DType::F32, DType::F32) => x.apply_op3(&weight, &bias, Linear::<f32>::default())?,
        (DType::F64, DType::F64) => x.apply_op3(&weight, &bias, Linear::<f64>::default())?,
        other => return Err(Error::shape("x, weight", "f32 or f64, both alike", format!("{other:?}"))),
    })
}

#[derive(Default)]
struct Linear<F>(std::marker::PhantomData<F>);

fn forward<F: Real>(x: &[F], weight: &[F], bias: &[F]) -> Vec<F> {
    let (inputs, outputs) = (weight.len() / bias.len(), bias.len());
    let mut out = vec![F::ZERO; x.len() / inputs * outputs];
    Affine::new(View::new(weight, inputs, outputs), Some(bias)).forward(x, &mut out);
    out
}

/// dx = dy Wᵀ, dW = xᵀ dy, db = Σ dy.
fn backward<F: Real>(x: &[F], weight: &[F], above: &[F], inputs: usize, outputs: usize) -> [Vec<F>; 3] {
    let layer = Affine::new(View::new(weight, inputs, outputs), None);
    let mut d_input = vec![F::ZERO; x.len()];
    let (mut d_weight, mut d_bias) = (vec![F::ZERO; inputs * outputs], vec![F::ZERO; outputs]);
    layer.backward_rows(above, &mut d_input, Accumulate::Replace);
    layer.backward_parameters(&[(x, above)], &mut d_weight, &mut d_bias);
    [d_input, d_weight, d_bias]
}

impl<F: Real + WithDType> CustomOp3 for Linear<F> {
    fn name(&self) -> &'static str {
        "linear"
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
        let mut shape = x_layout.dims().to_vec();
        shape.pop();
        let x: &[F] = tensors::slice(x, x_layout)?;
        let bias = tensors::slice(bias, bias_layout)?;
        let out = forward(x, tensors::slice(weight, weight_layout)?, bias);
        shape.push(bias.len());
        Ok((F::to_cpu_storage_owned(out), Shape::from(shape)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        above: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let above = above.contiguous()?;
        let (inputs, outputs) = weight.dims2()?;
        let [dx, dw, db] = with_slice(x, |x: &[F]| {
            with_slice(weight, |weight| {
                with_slice(&above, |above| Ok(backward(x, weight, above, inputs, outputs)))
            })
        })?;
        let dx = tensors::from_vec(dx, x.shape().clone())?;
        Ok((
            Some(dx),
            Some(tensors::from_vec(dw, (inputs, outputs))?),
            Some(tensors::from_vec(db, bias.dims())?),
        ))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn values_and_gradients_agree_with_plain_operations() {
        let wave = |shape: &[usize], k: f64| {
            let values: Vec<f64> = (0..shape.iter().product()).map(|i: usize| (k * i as f64).sin()).collect();
            Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu).unwrap()).unwrap()
        };
        let (x, w, b) = (wave(&[3, 101, 50], 1.3), wave(&[50, 7], 0.7), wave(&[7], 2.1));
        let ours = linear(&x, &w, &b).unwrap();
        let plain = x.broadcast_matmul(&w).unwrap().broadcast_add(&b).unwrap();
        let close = |a: &Tensor, b: &Tensor| {
            let worst = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
            assert!(worst.to_scalar::<f64>().unwrap() < 1e-10);
        };
        close(&ours, &plain);
        let ours = ours.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let plain = plain.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for v in [&x, &w, &b] {
            close(ours.get(v).unwrap(), plain.get(v).unwrap());
        }
    }

    #[test]
    fn misfitting_shapes_are_named() {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        let error = linear(&zeros(&[2, 3]), &zeros(&[4, 5]), &zeros(&[5])).unwrap_err();
        assert!(error.to_string().starts_with("weight: expected [3, O]"), "{error}");
        assert!(linear(&zeros(&[2, 0]), &zeros(&[0, 5]), &zeros(&[5])).is_err());
        assert_eq!(linear(&zeros(&[0, 3]), &zeros(&[3, 5]), &zeros(&[5])).unwrap().dims(), [0, 5]);
    }
}
