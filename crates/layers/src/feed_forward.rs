//! The Conformer's feed-forward module with residual connection, as one operation.
//!
//! A graph of single operations saves three buffers of the inner width for each gradient. Here a
//! task computes all layers for some rows, so that inner rows stay in its cache, and the backward
//! pass computes them again. N: rows; W: width of a row; F: inner width.
use candle_core::{Shape, Tensor};
use kernels::{
    Accumulate, Affine, PackedRight, Real, View, ViewMut, alloc, par_for, parts, parts_mut, product_packed,
};

use crate::Result;
use crate::activations::{silu_backward, silu_in_place};
use crate::layer_norm;
use crate::layer_norm::LayerNorm;
use crate::linear::Linear;
use crate::operation::{SliceOperation, apply3, sum_partials};
use crate::training_pass::DropoutMask;

/// Rows that one task processes.
///
/// A multiple of a micro-kernel's rows; inner rows fit into the L2 cache.
const ROWS_PER_TASK: usize = 56;

/// Adds half a feed-forward module with dropout masks m to its input.
///
/// `y = x + ½ m₂ ∘ (W₂ (m₁ ∘ silu(W₁ n + b₁)) + b₂)`, `n = layer_norm(x)`.
///
/// # Shapes
/// `x [N, W]`, the layers `[F, W]` and `[W, F]`; masks of `N·F` and `N·W` elements. Returns
/// `[N, W]`.
///
/// # Errors
/// [`crate::Error::Shape`] for dtypes that differ.
///
/// Cost: `O(N · W · F)` time, a seventh of it for recomputation in the backward pass; only `x` and
/// the masks are saved, and the backward pass needs `2N·F` numbers of temporary memory.
pub fn feed_forward(
    x: &Tensor,
    norm: &LayerNorm,
    inner_layer: &Linear,
    outer_layer: &Linear,
    masks: [Option<DropoutMask>; 2],
) -> Result<Tensor> {
    let (inner_width, width) = inner_layer.weight().dims2()?;
    let flat_weight = |layer: &Linear| Ok::<_, crate::Error>(layer.updated_weight()?.flatten_all()?);
    let weights = Tensor::cat(&[flat_weight(inner_layer)?, flat_weight(outer_layer)?], 0)?;
    let biases = Tensor::cat(&[inner_layer.bias(), outer_layer.bias(), &norm.weight, &norm.bias], 0)?;
    apply3(FeedForwardOperation { rows: x.dim(0)?, width, inner_width, masks }, x, &weights, &biases)
}

/// The operation of [`feed_forward`].
struct FeedForwardOperation {
    rows: usize,
    width: usize,
    inner_width: usize,
    masks: [Option<DropoutMask>; 2],
}

/// The parameters of one module.
struct FeedForwardWeights<'a, F> {
    /// `[F, W]` and `[W, F]`
    weights: [&'a [F]; 2],
    biases: [&'a [F]; 2],
    /// Weight and bias of the layer norm.
    norm: [&'a [F]; 2],
}

/// Multiplies `values` with a dropout mask, from its index `mask_offset` on.
fn apply_mask<F: Real>(mask: &Option<DropoutMask>, mask_offset: usize, values: &mut [F]) {
    if let Some(mask) = mask {
        mask.multiply(mask_offset, values);
    }
}

/// Computes `out = rows · matrix + bias`.
fn multiply<F: Real>(rows: &[F], matrix: &PackedRight<F>, bias: Option<&[F]>, out: &mut [F]) {
    let (inputs, outputs) = matrix.shape();
    let row_count = rows.len() / inputs;
    let target = ViewMut::new(&mut *out, row_count, outputs);
    product_packed(target, View::new(rows, row_count, inputs), matrix, Accumulate::Replace);
    if let Some(bias) = bias {
        out.chunks_exact_mut(outputs).for_each(|row| kernels::add(row, bias));
    }
}

impl FeedForwardOperation {
    /// Divides the arguments of the operation into the parameters.
    fn parameters<'a, F>(&self, weights: &'a [F], biases: &'a [F]) -> FeedForwardWeights<'a, F> {
        let (inner_weight, outer_weight) = weights.split_at(self.inner_width * self.width);
        let (inner_bias, rest) = biases.split_at(self.inner_width);
        let (outer_bias, norm) = rest.split_at(self.width);
        FeedForwardWeights {
            weights: [inner_weight, outer_weight],
            biases: [inner_bias, outer_bias],
            norm: norm.split_at(self.width).into(),
        }
    }

    /// Returns views of both weights, `[O, D]`.
    fn weight_views<'a, F: Real>(&self, parameters: &FeedForwardWeights<'a, F>) -> [View<'a, F>; 2] {
        let [inner, outer] = parameters.weights;
        [View::new(inner, self.inner_width, self.width), View::new(outer, self.width, self.inner_width)]
    }
}

impl SliceOperation<3> for FeedForwardOperation {
    const NAME: &'static str = "feed forward";

    fn shape(&self) -> Shape {
        Shape::from((self.rows, self.width))
    }

    fn forward<F: Real>(&self, [x, weights, biases]: [&[F]; 3]) -> Vec<F> {
        let (width, inner_width) = (self.width, self.inner_width);
        let parameters = self.parameters(weights, biases);
        let [inner_weight, outer_weight] =
            self.weight_views(&parameters).map(|weight| PackedRight::new(weight.transposed()));
        let FeedForwardWeights { biases: [inner_bias, outer_bias], norm: [norm_weight, norm_bias], .. } =
            parameters;
        let mut out = alloc(x.len(), F::ZERO);
        let task_parts = (parts_mut(&mut out, ROWS_PER_TASK * width), parts(x, ROWS_PER_TASK * width));
        par_for(task_parts, |task, (out, x)| {
            let rows = x.len() / width;
            let (mut n, mut h) = (vec![F::ZERO; x.len()], vec![F::ZERO; rows * inner_width]);
            layer_norm::forward_rows(x, norm_weight, norm_bias, &mut n);
            multiply(&n, &inner_weight, Some(inner_bias), &mut h);
            silu_in_place(&mut h);
            apply_mask(&self.masks[0], task * ROWS_PER_TASK * inner_width, &mut h);
            // The result of the second layer replaces n.
            let y = &mut n;
            multiply(&h, &outer_weight, Some(outer_bias), y);
            apply_mask(&self.masks[1], task * ROWS_PER_TASK * width, y);
            out.copy_from_slice(x);
            kernels::add_scaled(out, F::from_f64(0.5), y);
        });
        out
    }

    /// Computes the gradients; u is the result of the second layer.
    ///
    /// ```text
    /// tasks of rows      h = W₁ n + b₁     a = m₁ ∘ silu(h)     du = ½ m₂ ∘ dy
    ///                    dh = silu'(h) ∘ m₁ ∘ (du W₂)
    ///                    dx = dy + that of the layer norm from dh W₁
    /// all rows at once   dW₂ = duᵀ a     db₂ = Σ du     dW₁ = dhᵀ n     db₁ = Σ dh
    /// ```
    fn backward<F: Real>(
        &self,
        [x, weights, biases]: [&[F]; 3],
        _: &[F],
        d_out: &[F],
        _: bool,
    ) -> [Vec<F>; 3] {
        let (width, inner_width) = (self.width, self.inner_width);
        let parameters = self.parameters(weights, biases);
        let [inner_view, outer_view] = self.weight_views(&parameters);
        let inner_weight = PackedRight::new(inner_view.transposed());
        let [inner_transposed, outer_transposed] = [inner_view, outer_view].map(PackedRight::new);
        let FeedForwardWeights { biases: [inner_bias, _], norm: [norm_weight, norm_bias], .. } = parameters;

        // Buffers, and their parts for each task.
        let [mut dx, mut n, mut du] = [0; 3].map(|_| alloc(x.len(), F::ZERO));
        let [mut a, mut dh] = [0; 2].map(|_| alloc(self.rows * inner_width, F::ZERO));
        let mut norm_partials = vec![F::ZERO; self.rows.div_ceil(ROWS_PER_TASK) * 2 * width];
        let row_parts = (
            parts_mut(&mut dx, ROWS_PER_TASK * width),
            parts_mut(&mut n, ROWS_PER_TASK * width),
            parts_mut(&mut du, ROWS_PER_TASK * width),
        );
        let inner_row_parts =
            (parts_mut(&mut a, ROWS_PER_TASK * inner_width), parts_mut(&mut dh, ROWS_PER_TASK * inner_width));
        let input_parts = (parts(x, ROWS_PER_TASK * width), parts(d_out, ROWS_PER_TASK * width));
        let task_parts = (row_parts, inner_row_parts, input_parts, parts_mut(&mut norm_partials, 2 * width));
        par_for(task_parts, |task, ((dx, n, du), (a, dh), (x, d_out), norm_gradients)| {
            // Forward pass of the first layer: h (in dh), a.
            layer_norm::forward_rows(x, norm_weight, norm_bias, n);
            multiply(n, &inner_weight, Some(inner_bias), dh);
            a.copy_from_slice(dh);
            silu_in_place(a);
            apply_mask(&self.masks[0], task * ROWS_PER_TASK * inner_width, a);
            // Backward pass of the second layer: du, da, dh.
            du.copy_from_slice(d_out);
            du.iter_mut().for_each(|du| *du *= F::from_f64(0.5));
            apply_mask(&self.masks[1], task * ROWS_PER_TASK * width, du);
            let mut da = vec![F::ZERO; dh.len()];
            multiply(du, &outer_transposed, None, &mut da);
            apply_mask(&self.masks[0], task * ROWS_PER_TASK * inner_width, &mut da);
            silu_backward(dh, &da);
            // Backward pass of the first layer and of the layer norm: dn, dx.
            let mut dn = vec![F::ZERO; dx.len()];
            multiply(dh, &inner_transposed, None, &mut dn);
            layer_norm::backward_rows(x, norm_weight, &dn, dx, norm_gradients);
            kernels::add(dx, d_out);
        });

        // Gradients of both layers and of the layer norm.
        let mut dw = vec![F::ZERO; weights.len()];
        let mut db = vec![F::ZERO; inner_width + width];
        let ((dw1, dw2), (db1, db2)) = (dw.split_at_mut(inner_width * width), db.split_at_mut(inner_width));
        for (view, inputs, d_outputs, dw, db) in
            [(inner_view, &n, &dh, dw1, db1), (outer_view, &a, &du, dw2, db2)]
        {
            Affine::new(view.transposed(), None).backward_parameters(&[(inputs, d_outputs)], dw, db);
        }
        db.extend(sum_partials(&norm_partials, 2 * width));
        [dx, dw, db]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::activations::silu;
    use crate::linear::linear;
    use crate::operation::tests::{check_gradients, test_values, values};
    use crate::training_pass::TrainingPass;

    /// Creates masks, equal ones for the same number of rows.
    fn masks(rows: usize, rate: f32) -> [Option<DropoutMask>; 2] {
        let mut pass = TrainingPass::new(1, 2, &[3]);
        [pass.mask(&[rows * 5], rate), pass.mask(&[rows * 3], rate)]
    }

    /// Applies the fused module to the variables of [`arguments`].
    fn fused_module(arguments: &[Var], rate: f32) -> Tensor {
        let [x, w1, b1, w2, b2, norm_weight, norm_bias] = arguments else { panic!("seven arguments") };
        let layer = |w: &Var, b: &Var| Linear::from_parts(w.as_tensor().clone(), b.as_tensor().clone());
        let norm = LayerNorm { weight: norm_weight.as_tensor().clone(), bias: norm_bias.as_tensor().clone() };
        feed_forward(x, &norm, &layer(w1, b1), &layer(w2, b2), masks(x.dims()[0], rate)).unwrap()
    }

    /// Computes the same from separate operations.
    fn plain_module(arguments: &[Var], rate: f32) -> Tensor {
        let [x, w1, b1, w2, b2, norm_weight, norm_bias] = arguments else { panic!("seven arguments") };
        let rows = x.dims()[0];
        let factors = |index: usize, width: usize| {
            let mut factors = vec![1.0; rows * width];
            apply_mask(&masks(rows, rate)[index], 0, &mut factors);
            Tensor::from_vec(factors, (rows, width), &candle_core::Device::Cpu).unwrap()
        };
        let n = layer_norm::layer_norm(x, norm_weight, norm_bias).unwrap();
        let inner = (silu(&linear(&n, w1, b1).unwrap()).unwrap() * factors(0, 5)).unwrap();
        let y = (linear(&inner, w2, b2).unwrap() * factors(1, 3)).unwrap();
        (x.as_tensor() + (y * 0.5).unwrap()).unwrap()
    }

    /// Returns x, then the parameters of both layers and the layer norm.
    fn arguments(rows: usize) -> Vec<Var> {
        let shapes: [&[usize]; 7] = [&[rows, 3], &[5, 3], &[5], &[3, 5], &[3], &[3], &[3]];
        shapes.iter().enumerate().map(|(k, shape)| test_values(shape, 0.7 + 0.2 * k as f64)).collect()
    }

    #[test]
    fn gradients_equal_finite_differences() {
        for rate in [0.0, 0.4] {
            check_gradients(|arguments| fused_module(arguments, rate), &arguments(4));
        }
    }

    /// The number of rows needs several tasks.
    #[test]
    fn values_and_gradients_equal_those_of_separate_operations() {
        for rate in [0.0, 0.4] {
            let arguments = arguments(150);
            let assert_close = |a: &Tensor, b: &Tensor| {
                let pairs = values(a).into_iter().zip(values(b));
                pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-11 * (1.0 + b.abs()), "{a} {b}"));
            };
            let (fused, plain) = (fused_module(&arguments, rate), plain_module(&arguments, rate));
            assert_close(&fused, &plain);
            let gradients = |y: Tensor| y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let (fused, plain) = (gradients(fused), gradients(plain));
            arguments.iter().for_each(|v| assert_close(fused.get(v).unwrap(), plain.get(v).unwrap()));
        }
    }
}
