//! Low-rank updates of weights (LoRA), as one candle operation.
//!
//! ```text
//! W' = W + s B A        W [O, D], B [O, r], A [r, D]
//! ```
//! Hu et al., arXiv 2106.09685, equation 3, where s = alpha / r. Layers compute W' and use it like
//! any weight: results have the bits of a layer with the merged weight. D: inputs; O: outputs; r:
//! rank.
use candle_core::{Shape, Tensor};
use candle_nn::{Init, VarBuilder};
use kernels::{Accumulate, Real, View, ViewMut, par_for, parts, parts_mut, product};

use crate::operation::{SliceOperation, apply3, sum_partials};
use crate::{Result, random};

/// Rows of a weight that one task updates.
const ROWS_PER_TASK: usize = 128;

/// Rank and factor of low-rank updates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LowRankConfig {
    /// The rank r.
    pub rank: usize,
    /// The factor s.
    pub scale: f64,
}

/// The parameters `lora_a [r, D]` and `lora_b [O, r]` of a layer.
#[derive(Debug, Clone)]
pub(crate) struct LowRank {
    a: Tensor,
    b: Tensor,
    config: LowRankConfig,
}

impl LowRank {
    /// Returns A and B.
    pub(crate) fn factors(&self) -> [&Tensor; 2] {
        [&self.a, &self.b]
    }

    /// Creates the parameters: A uniform within ±1/√D, B zero.
    ///
    /// This is the distribution of A in the authors' program, Kaiming's with a = √5.
    pub(crate) fn new(inputs: usize, outputs: usize, config: LowRankConfig, vb: &VarBuilder) -> Result<Self> {
        let a = vb.get_with_hints((config.rank, inputs), "lora_a", random::uniform(inputs))?;
        let b = vb.get_with_hints((outputs, config.rank), "lora_b", Init::Const(0.0))?;
        Ok(LowRank { a, b, config })
    }

    /// Computes `W + s B A`.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for dtypes that differ.
    ///
    /// Cost: `O(O · D · r)` time, three times that in the backward pass; the result is saved.
    pub(crate) fn update(&self, weight: &Tensor) -> Result<Tensor> {
        let (outputs, inputs) = weight.dims2()?;
        let operation = LowRankUpdate { outputs, inputs, config: self.config };
        apply3(operation, weight, &self.a, &self.b)
    }
}

/// Adds `s B A` to a weight `[O, D]`, in a fixed order.
///
/// # Shapes
/// `a [r, D]`, `b [O, r]`
pub fn add_low_rank<F: Real>(weight: &mut [F], a: &[F], b: &[F], config: LowRankConfig) {
    let LowRankConfig { rank, scale } = config;
    let inputs = a.len() / rank.max(1);
    if weight.is_empty() {
        return;
    }
    let task_parts = (parts_mut(weight, ROWS_PER_TASK * inputs), parts(b, ROWS_PER_TASK * rank));
    par_for(task_parts, |_, (weight, b)| {
        let rows = weight.len() / inputs;
        let (left, right) = (View::new(b, rows, rank), View::new(a, rank, inputs));
        product(ViewMut::new(weight, rows, inputs), left, right, F::from_f64(scale), Accumulate::Add);
    });
}

/// The operation of [`LowRank::update`].
struct LowRankUpdate {
    outputs: usize,
    inputs: usize,
    config: LowRankConfig,
}

impl SliceOperation<3> for LowRankUpdate {
    const NAME: &'static str = "low-rank update";

    fn shape(&self) -> Shape {
        Shape::from((self.outputs, self.inputs))
    }

    fn forward<F: Real>(&self, [weight, a, b]: [&[F]; 3]) -> Vec<F> {
        let mut updated = weight.to_vec();
        add_low_rank(&mut updated, a, b, self.config);
        updated
    }

    /// Computes `dA = s Bᵀ dW'`, `dB = s dW' Aᵀ`, and `dW = dW'` unless the weight is frozen.
    fn backward<F: Real>(
        &self,
        [_, a, b]: [&[F]; 3],
        _: &[F],
        d_updated: &[F],
        is_weight_needed: bool,
    ) -> [Vec<F>; 3] {
        let LowRankUpdate { outputs, inputs, config: LowRankConfig { rank, scale } } = *self;
        let scale = F::from_f64(scale);
        let mut db = kernels::alloc(b.len(), F::ZERO);
        let mut da_partials = kernels::alloc(outputs.div_ceil(ROWS_PER_TASK) * a.len(), F::ZERO);
        let task_parts = (
            parts_mut(&mut db, ROWS_PER_TASK * rank),
            parts_mut(&mut da_partials, a.len()),
            parts(b, ROWS_PER_TASK * rank),
            parts(d_updated, ROWS_PER_TASK * inputs),
        );
        par_for(task_parts, |_, (db, da, b, d_updated)| {
            let rows = b.len() / rank;
            let d_updated = View::new(d_updated, rows, inputs);
            let a = View::new(a, rank, inputs).transposed();
            product(ViewMut::new(db, rows, rank), d_updated, a, scale, Accumulate::Replace);
            let b = View::new(b, rows, rank).transposed();
            product(ViewMut::new(da, rank, inputs), b, d_updated, scale, Accumulate::Replace);
        });
        let dw = if is_weight_needed { d_updated.to_vec() } else { Vec::new() };
        [dw, sum_partials(&da_partials, a.len()), db]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::operation::tests::{check_gradients, test_values, values};

    const CONFIG: LowRankConfig = LowRankConfig { rank: 3, scale: 0.75 };

    fn update([weight, a, b]: [&Tensor; 3]) -> Tensor {
        LowRank { a: a.clone(), b: b.clone(), config: CONFIG }.update(weight).unwrap()
    }

    /// The number of rows needs several tasks.
    fn arguments(outputs: usize) -> [Var; 3] {
        [
            test_values(&[outputs, 4], 0.7),
            test_values(&[CONFIG.rank, 4], 1.1),
            test_values(&[outputs, CONFIG.rank], 0.9),
        ]
    }

    #[test]
    fn the_update_is_the_sum_of_its_definition() {
        let arguments = arguments(300);
        let [weight, a, b] = arguments.each_ref().map(|x| values(x));
        let updated = values(&update(arguments.each_ref().map(|x| x.as_tensor())));
        assert_eq!(updated.len(), 300 * 4);
        for (index, updated) in updated.into_iter().enumerate() {
            let (row, column) = (index / 4, index % 4);
            let product: f64 = (0..3).map(|k| b[row * 3 + k] * a[k * 4 + column]).sum();
            assert!((updated - (weight[index] + 0.75 * product)).abs() < 1e-14, "{index}");
        }
    }

    #[test]
    fn gradients_equal_finite_differences() {
        let run = |a: &[Var]| update([a[0].as_tensor(), a[1].as_tensor(), a[2].as_tensor()]);
        check_gradients(run, &arguments(5));
        check_gradients(run, &arguments(150));
    }

    #[test]
    fn a_frozen_weight_has_no_gradient() {
        let [weight, a, b] = arguments(5);
        let loss = update([&weight.as_tensor().detach(), &a, &b]).sqr().unwrap().sum_all().unwrap();
        let gradients = loss.backward().unwrap();
        assert!(gradients.get(&weight).is_none());
        assert!(gradients.get(&a).is_some() && gradients.get(&b).is_some());
    }
}
