//! The LAMB optimizer: Adam with a learning rate adapted to each layer.
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

use kernels::{LambFactors, Real, items_mut, lamb_moments, lamb_update, par_for, parts, parts_mut};

use super::moments::{ELEMENTS_PER_TASK, Moments};
use super::{Clip, Optimizer, OptimizerConfig, RateFactors, gradient_norm};
use crate::{Error, Result};
use model::checkpoint::Values;
use model::{Gradients, Parameters};

/// LAMB over all parameters; [`LambStep`] has the formula.
///
/// All tensors decay, including biases. The rate of a parameter includes its factor of
/// `optimizer.rates`.
#[derive(Debug, Clone)]
pub struct Lamb {
    config: LambConfig,
    clip: Clip,
    factors: RateFactors,
    moments: Moments,
    steps: u64,
}

impl Lamb {
    /// Creates the optimizer with zero moments.
    pub fn new(parameters: &Parameters, config: LambConfig, clip: Clip) -> Self {
        Lamb { config, clip, factors: RateFactors::default(), moments: Moments::new(parameters), steps: 0 }
    }

    /// Sets factors on the learning rate of parameters or modules.
    fn with_rates(mut self, rates: &BTreeMap<String, f64>) -> Self {
        self.factors = RateFactors::new(rates);
        self
    }
}

/// Checks nothing: LAMB supports all keys of `[optimizer]`.
pub(super) fn check(_: &OptimizerConfig) -> model::Result<()> {
    Ok(())
}

/// Creates the optimizer of a recipe.
pub(super) fn build(config: &OptimizerConfig, parameters: &Parameters) -> Lamb {
    let OptimizerConfig { betas, eps, weight_decay, bias_correction, .. } = *config;
    let lamb_config = LambConfig { betas, eps, weight_decay, bias_correction };
    Lamb::new(parameters, lamb_config, config.clip()).with_rates(&config.rates)
}

impl Optimizer for Lamb {
    fn step(&mut self, parameters: &Parameters, gradients: &Gradients, rate: f64) -> Result<f64> {
        let norm = gradient_norm(gradients)?;
        if !norm.is_finite() {
            return Ok(norm);
        }
        self.steps += 1;
        let step = LambStep::new(&self.config, self.steps, rate, self.clip.divisor(norm));
        for (name, variable) in parameters.iter_trained() {
            let Some(gradient) = gradients.get(name) else { continue };
            let (m, v) = self.moments.get_mut(name, variable.elem_count())?;
            let step = LambStep { rate: self.factors.rate_of(name, rate), ..step };
            super::update_in_place(variable, gradient, |w, g| step.update_tensor(true, w, g, m, v))??;
        }
        Ok(norm)
    }

    fn state(&self) -> BTreeMap<String, Cow<'_, Values>> {
        self.moments.state()
    }

    fn restore(&mut self, state: &BTreeMap<String, Values>, steps: u64) -> Result<()> {
        self.moments.restore(state)?;
        self.steps = steps;
        Ok(())
    }
}

/// The options of LAMB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LambConfig {
    /// Decay rates β₁, β₂ of the moments.
    pub betas: [f64; 2],
    /// ε, added to the root of the second moment.
    pub eps: f64,
    /// λ, the decoupled weight decay.
    pub weight_decay: f64,
    /// True if moments are divided by `1 - βˢ`, which corrects their start at 0.
    pub bias_correction: bool,
}

/// One step of LAMB: the factors that all tensors share.
///
/// ```text
/// g ← g / divisor      m ← β₁m + (1-β₁)g      v ← β₂v + (1-β₂)g²
/// u = (m / (1-β₁ˢ)) / (√(v / (1-β₂ˢ)) + ε) + λw      r = ‖w‖ / ‖u‖      w ← w - rate · r · u
/// ```
/// g: gradient; m, v: first and second moment; w: weights; s: step from 1; r: trust ratio. The
/// norms are those of one tensor; r is 1 if a norm or λ is 0, and is not clipped.
///
/// You, Li, Reddi and others: "Large batch optimization for deep learning", arXiv 1904.00962, in
/// the form of MLPerf's RNN-T.
///
/// ```
/// use training::optimizer::{LambConfig, LambStep};
///
/// let (betas, weight_decay) = ([0.9, 0.999], 1e-3);
/// let config = LambConfig { betas, eps: 1e-9, weight_decay, bias_correction: true };
/// let (mut w, mut m, mut v) = ([3.0f64, 4.0], [0.0; 2], [0.0; 2]);
/// let step = LambStep::new(&config, 1, 0.1, 1.0);
/// let trust = step.update_tensor(true, &mut w, &[1.0, -2.0], &mut m, &mut v)?;
/// // In the first step m / √v is the sign of the gradient: ‖w‖ = 5, ‖u‖ = ‖(1.003, -0.996)‖.
/// assert!((trust - 5.0 / 1.003f64.hypot(0.996)).abs() < 1e-7);
/// # Ok::<(), training::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct LambStep {
    config: LambConfig,
    /// Factor of gradients, 1 / divisor.
    scale: f64,
    /// Factors of the moments: 1 / (1 - βˢ), or 1 without correction.
    corrections: [f64; 2],
    rate: f64,
}

impl LambStep {
    /// Creates step `step` of a run, counted from 1; gradients are divided by `divisor`.
    pub fn new(config: &LambConfig, step: u64, rate: f64, divisor: f64) -> Self {
        let steps = i32::try_from(step.max(1)).unwrap_or(i32::MAX);
        let correction =
            |beta: f64| if config.bias_correction { 1.0 / (1.0 - beta.powi(steps)) } else { 1.0 };
        let corrections = config.betas.map(correction);
        LambStep { config: *config, scale: 1.0 / divisor, corrections, rate }
    }

    /// Updates weights and moments of a tensor in place; returns its trust ratio r.
    ///
    /// Without `decays`, λ is 0.
    ///
    /// Cost: two passes, of 24 and 16 bytes per weight in `f32`, in parallel over blocks of fixed
    /// size. Sums of squares are in `f64` and are added in the order of the blocks, so that the
    /// result does not depend on the number of threads.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) if the slices have different lengths.
    pub fn update_tensor<F: Real>(
        &self,
        decays: bool,
        weights: &mut [F],
        gradient: &[F],
        first: &mut [F],
        second: &mut [F],
    ) -> Result<f64> {
        let lengths = [gradient.len(), first.len(), second.len()];
        if lengths.iter().any(|&length| length != weights.len()) {
            let lengths = format!("{lengths:?}");
            let expected = format!("{} numbers in each, as in the weights", weights.len());
            return Err(Error::shape("gradient and moments", expected, lengths));
        }
        let factors = self.factors::<F>(if decays { self.config.weight_decay } else { 0.0 });
        // First pass: moments, and the squares of weights and updates.
        let mut squares = vec![[0.0; 2]; weights.len().div_ceil(ELEMENTS_PER_TASK)];
        let blocks = (
            items_mut(&mut squares),
            parts(weights, ELEMENTS_PER_TASK),
            parts(gradient, ELEMENTS_PER_TASK),
            parts_mut(first, ELEMENTS_PER_TASK),
            parts_mut(second, ELEMENTS_PER_TASK),
        );
        par_for(blocks, |_, (squares, w, g, m, v)| *squares = lamb_moments(w, g, m, v, &factors));
        // ‖w‖² and ‖u‖² of the tensor.
        let [w_squared, u_squared] =
            squares.iter().fold([0.0; 2], |sum, block| [sum[0] + block[0], sum[1] + block[1]]);
        let trust = if w_squared > 0.0 && u_squared > 0.0 && factors.decay > F::ZERO {
            (w_squared / u_squared).sqrt()
        } else {
            1.0
        };
        // Second pass: weights.
        let rate = F::from_f64(self.rate * trust);
        par_for(
            (
                parts_mut(weights, ELEMENTS_PER_TASK),
                parts(first, ELEMENTS_PER_TASK),
                parts(second, ELEMENTS_PER_TASK),
            ),
            |_, (w, m, v)| {
                lamb_update(w, m, v, rate, &factors);
            },
        );
        Ok(trust)
    }

    /// Returns the factors of the updates in the precision `F`.
    fn factors<F: Real>(&self, decay: f64) -> LambFactors<F> {
        let LambConfig { betas: [beta1, beta2], eps, .. } = self.config;
        LambFactors {
            scale: F::from_f64(self.scale),
            beta1: [beta1, 1.0 - beta1].map(F::from_f64),
            beta2: [beta2, 1.0 - beta2].map(F::from_f64),
            corrections: self.corrections.map(F::from_f64),
            eps: F::from_f64(eps),
            decay: F::from_f64(decay),
        }
    }
}
