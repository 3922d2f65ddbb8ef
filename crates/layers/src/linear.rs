//! The linear layer of all networks, `y = x Wᵀ + b`, as one candle operation.
//!
//! It replaces `candle_nn::Linear`: its bits do not depend on the number of threads. D: inputs; O:
//! outputs.
use candle_core::{Shape, Tensor};
use candle_nn::{Init, Module, VarBuilder};
use kernels::packed::NumberFormat;
use kernels::{Accumulate, Affine, Real, View, par_for, parts, parts_mut};

use crate::low_rank::{LowRank, LowRankConfig};
use crate::operation::{SliceOperation, apply3};
use crate::{Error, Result, random, tensors};

/// Elements that one task of the ReLU processes.
const ELEMENTS_PER_TASK: usize = 1 << 14;

/// A linear layer with candle's names and layout: `weight [O, D]` and `bias [O]`.
///
/// As [`candle_nn::Linear`], with [`linear()`] for its products.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Tensor,
    bias: Tensor,
    /// The update of an adapter; boxed, as few layers have one.
    low_rank: Option<Box<LowRank>>,
}

impl Linear {
    /// Creates a layer: weights uniform within ±1/√D, biases 0.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn new(inputs: usize, outputs: usize, vb: &VarBuilder) -> Result<Self> {
        Self::with_init(inputs, outputs, random::uniform(inputs), vb)
    }

    /// Creates a layer: weights from a distribution, biases 0.
    ///
    /// # Errors
    /// Errors of the builder `vb`.
    pub fn with_init(inputs: usize, outputs: usize, init: Init, vb: &VarBuilder) -> Result<Self> {
        let weight = vb.get_with_hints((outputs, inputs), "weight", init)?;
        let bias = vb.get_with_hints(outputs, "bias", Init::Const(0.0))?;
        Ok(Linear { weight, bias, low_rank: None })
    }

    /// Creates a layer without the parameter `bias`, which is a constant 0.
    pub fn without_bias(inputs: usize, outputs: usize, vb: &VarBuilder) -> Result<Self> {
        let weight = vb.get_with_hints((outputs, inputs), "weight", random::uniform(inputs))?;
        let bias = Tensor::zeros(outputs, vb.dtype(), vb.device())?;
        Ok(Linear { weight, bias, low_rank: None })
    }

    /// Creates a layer as [`Self::new`] or, unless `has_bias`, [`Self::without_bias`].
    pub fn with_optional_bias(
        inputs: usize,
        outputs: usize,
        has_bias: bool,
        vb: &VarBuilder,
    ) -> Result<Self> {
        if has_bias { Self::new(inputs, outputs, vb) } else { Self::without_bias(inputs, outputs, vb) }
    }

    /// Adds the low-rank update of an adapter, if there is one.
    pub fn with_low_rank(mut self, config: Option<LowRankConfig>, vb: &VarBuilder) -> Result<Self> {
        let (outputs, inputs) = self.weight.dims2()?;
        let low_rank = config.map(|config| LowRank::new(inputs, outputs, config, vb)).transpose()?;
        self.low_rank = low_rank.map(Box::new);
        Ok(self)
    }

    #[cfg(test)]
    pub(crate) fn from_parts(weight: Tensor, bias: Tensor) -> Self {
        Linear { weight, bias, low_rank: None }
    }

    /// Returns the weight without the update of an adapter, `[O, D]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Returns the bias, `[O]`.
    pub fn bias(&self) -> &Tensor {
        &self.bias
    }

    /// Returns weight and bias, and the factors of an adapter's update.
    pub fn parameters(&self) -> Vec<&Tensor> {
        let factors = self.low_rank.iter().flat_map(|low_rank| low_rank.factors());
        [&self.weight, &self.bias].into_iter().chain(factors).collect()
    }

    /// Returns the weight with the update of an adapter, `[O, D]`.
    pub fn updated_weight(&self) -> Result<Tensor> {
        self.low_rank.as_ref().map_or(Ok(self.weight.clone()), |low_rank| low_rank.update(&self.weight))
    }

    /// Returns the number of values of the updated weight; 0 without an adapter.
    pub fn updated_values(&self) -> usize {
        if self.low_rank.is_some() { self.weight.elem_count() } else { 0 }
    }

    /// Packs a copy of the layer for inference, with the same bits.
    pub fn pack(&self, name: &str) -> Result<decoding::AffineLayer> {
        pack(name, &self.updated_weight()?, &self.bias)
    }

    /// Packs a copy of the layer in a number format of [`AffineLayer`](decoding::AffineLayer).
    pub fn pack_as(&self, format: NumberFormat, name: &str) -> Result<decoding::AffineLayer> {
        pack_as(format, name, &self.updated_weight()?, &self.bias)
    }

    /// Computes `y = x Wᵀ + b` over the last axis.
    ///
    /// # Errors
    /// Those of [`linear()`].
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        linear(x, &self.updated_weight()?, &self.bias)
    }

    /// Computes `y = max(0, x Wᵀ + b)` over the last axis.
    ///
    /// # Errors
    /// Those of [`linear()`].
    pub fn apply_relu(&self, x: &Tensor) -> Result<Tensor> {
        linear_with_relu(x, &self.updated_weight()?, &self.bias, true)
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.apply(x).map_err(candle_core::Error::wrap)
    }
}

/// Packs a weight `[O, D]` and a bias `[O]` for inference.
pub fn pack(name: &str, weight: &Tensor, bias: &Tensor) -> Result<decoding::AffineLayer> {
    pack_as(NumberFormat::F32, name, weight, bias)
}

/// Packs a weight and a bias in a number format.
///
/// The formats are those of [`AffineLayer`](decoding::AffineLayer).
pub fn pack_as(
    format: NumberFormat,
    name: &str,
    weight: &Tensor,
    bias: &Tensor,
) -> Result<decoding::AffineLayer> {
    let (values, bias) = (tensors::to_vec(weight)?, tensors::to_vec::<f32>(bias)?);
    Ok(decoding::AffineLayer::with_format(format, name, &values, weight.dim(1)?, Some(&bias))?)
}

/// Computes `y = x Wᵀ + b` over the last axis.
///
/// # Shapes
/// `x [..., D]`, `weight [O, D]`, `bias [O]`; returns `[..., O]`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not match, or D or O is 0.
///
/// Cost: `O(rows · D · O)` time, no memory except the results.
pub fn linear(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    linear_with_relu(x, weight, bias, false)
}

/// Computes [`linear()`] and, if `has_relu`, replaces negative results by 0.
fn linear_with_relu(x: &Tensor, weight: &Tensor, bias: &Tensor, has_relu: bool) -> Result<Tensor> {
    let width = x.dims().last().copied().unwrap_or(0);
    let is_valid = width > 0 && matches!(weight.dims(), &[o, d] if o > 0 && d == width && bias.dims() == [o]);
    if !is_valid {
        let shapes = format!("{:?} and bias {:?}", weight.dims(), bias.dims());
        return Err(Error::shape("weight", format!("[O, {width}] and bias [O]"), shapes));
    }
    let mut shape = x.dims().to_vec();
    shape.pop();
    shape.push(bias.elem_count());
    apply3(LinearOperation { shape: Shape::from(shape), has_relu }, x, weight, bias)
}

/// The operation of [`linear_with_relu`], with the shape of its result.
struct LinearOperation {
    shape: Shape,
    has_relu: bool,
}

/// Borrows a weight `[O, D]` and a bias `[O]` as an affine map.
fn affine<'a, F: Real>(weight: &'a [F], bias: &'a [F]) -> Affine<'a, F> {
    let (outputs, inputs) = (bias.len(), weight.len() / bias.len());
    Affine::new(View::new(weight, outputs, inputs).transposed(), Some(bias))
}

impl SliceOperation<3> for LinearOperation {
    const NAME: &'static str = "linear";

    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn forward<F: Real>(&self, [x, weight, bias]: [&[F]; 3]) -> Vec<F> {
        let mut y = kernels::alloc(self.shape.elem_count(), F::ZERO);
        affine(weight, bias).forward(x, &mut y);
        if self.has_relu {
            // NaN is preserved.
            par_for(parts_mut(&mut y, ELEMENTS_PER_TASK), |_, y| {
                y.iter_mut().for_each(|y| *y = if *y < F::ZERO { F::ZERO } else { *y });
            });
        }
        y
    }

    /// Computes `dx = dz W`, `dW = dzᵀ x`, `db = Σ dz`; dz is dy, with ReLU 0 where y is 0.
    fn backward<F: Real>(
        &self,
        [x, weight, bias]: [&[F]; 3],
        out: &[F],
        d_out: &[F],
        is_input_needed: bool,
    ) -> [Vec<F>; 3] {
        let mut masked;
        let d_out = if self.has_relu {
            masked = kernels::alloc(d_out.len(), F::ZERO);
            let task_parts = (
                parts_mut(&mut masked, ELEMENTS_PER_TASK),
                parts(out, ELEMENTS_PER_TASK),
                parts(d_out, ELEMENTS_PER_TASK),
            );
            par_for(task_parts, |_, (dz, y, dy)| {
                for (dz, (&y, &dy)) in dz.iter_mut().zip(y.iter().zip(dy)) {
                    *dz = if y > F::ZERO { dy } else { F::ZERO };
                }
            });
            &masked[..]
        } else {
            d_out
        };
        let zeros = |count: usize| kernels::alloc(count, F::ZERO);
        let (mut dx, mut dw, mut db) =
            (zeros(if is_input_needed { x.len() } else { 0 }), zeros(weight.len()), zeros(bias.len()));
        let affine = affine(weight, bias);
        if is_input_needed {
            affine.backward_rows(d_out, &mut dx, Accumulate::Replace);
        }
        affine.backward_parameters(&[(x, d_out)], &mut dw, &mut db);
        [dx, dw, db]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;

    #[test]
    fn values_and_gradients_equal_those_of_plain_operations() {
        let test_values = |shape: &[usize], frequency: f64| {
            let values: Vec<f64> =
                (0..shape.iter().product()).map(|i: usize| (frequency * i as f64).sin()).collect();
            Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu).unwrap()).unwrap()
        };
        let (x, w, b) = (test_values(&[3, 101, 50], 1.3), test_values(&[7, 50], 0.7), test_values(&[7], 2.1));
        let fused = linear(&x, &w, &b).unwrap();
        // candle's own layer has the same layout.
        let layer = candle_nn::Linear::new(w.as_tensor().clone(), Some(b.as_tensor().clone()));
        let plain = layer.forward(&x).unwrap();
        let assert_close = |a: &Tensor, b: &Tensor| {
            let largest_error = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
            assert!(largest_error.to_scalar::<f64>().unwrap() < 1e-10);
        };
        assert_close(&fused, &plain);
        let fused = fused.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let plain = plain.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for v in [&x, &w, &b] {
            assert_close(fused.get(v).unwrap(), plain.get(v).unwrap());
        }
    }

    #[test]
    fn relu_replaces_negative_results_and_their_gradients() {
        use crate::operation::tests::{check_gradients, test_values, values};

        let arguments = [test_values(&[6, 4], 0.7), test_values(&[5, 4], 1.1), test_values(&[5], 0.9)];
        let run = |a: &[Var]| {
            Linear::from_parts(a[1].as_tensor().clone(), a[2].as_tensor().clone()).apply_relu(&a[0]).unwrap()
        };
        let [x, w, b] = &arguments;
        let (plain, relu) = (values(&linear(x, w, b).unwrap()), values(&run(&arguments)));
        assert!(plain.iter().any(|&y| y < 0.0) && plain.iter().any(|&y| y > 0.0));
        assert!(plain.iter().zip(&relu).all(|(plain, relu)| plain.max(0.0) == *relu));
        check_gradients(run, &arguments);
        let nan = Tensor::full(f64::NAN, (1, 4), &Device::Cpu).unwrap();
        let layer = Linear::from_parts(w.as_tensor().clone(), b.as_tensor().clone());
        assert!(values(&layer.apply_relu(&nan).unwrap()).iter().all(|y| y.is_nan()));
    }

    #[test]
    fn errors_of_shapes_name_the_argument() {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        let error = linear(&zeros(&[2, 3]), &zeros(&[5, 4]), &zeros(&[5])).unwrap_err();
        assert!(error.to_string().starts_with("weight: expected [O, 3]"), "{error}");
        assert!(linear(&zeros(&[2, 0]), &zeros(&[5, 0]), &zeros(&[5])).is_err());
        assert_eq!(linear(&zeros(&[0, 3]), &zeros(&[5, 3]), &zeros(&[5])).unwrap().dims(), [0, 5]);
    }
}
