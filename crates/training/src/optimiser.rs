//! Optimisers: from gradients to new weights.
//!
//! A new one is a file beside `adamw.rs` with its [`Optimiser`], and a line in `build`.
mod adamw;
mod clip;
mod lamb;
mod moments;

use std::collections::BTreeMap;

use candle_core::Tensor;
use candle_core::backprop::GradStore;
use kernels::{items_mut, par_for, parts};

pub use adamw::AdamW;
pub use clip::Clip;
pub use lamb::{Lamb, LambConfig, LambStep, Number};

use crate::checkpoint::Values;
use crate::recipe::{OptimiserConfig, OptimiserKind};
use crate::tensors::with_slice;
use crate::{Parameters, Result};

/// Steps along gradients, with a memory that a checkpoint can hold.
pub trait Optimiser {
    /// One step; returns the norm of the gradient, before any clipping.
    ///
    /// Parameters without a gradient keep their weights. If the norm is not finite, nothing is changed.
    ///
    /// # Errors
    /// Candle's own errors; [`crate::Error::Shape`] for a parameter that the optimiser does not know.
    fn step(&mut self, parameters: &Parameters, gradients: &GradStore, rate: f64) -> Result<f64>;

    /// What it remembers of each parameter, by the names `first` and `second`.
    fn memory(&self) -> BTreeMap<String, Values>;

    /// Goes on with the memory of a run of so many steps.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if a memory is missing.
    fn restore(&mut self, memory: &BTreeMap<String, Values>, steps: u64) -> Result<()>;
}

/// The optimiser that a recipe asks for.
pub(crate) fn build(config: &OptimiserConfig, parameters: &Parameters) -> Box<dyn Optimiser> {
    match config.kind {
        OptimiserKind::AdamW => Box::new(AdamW::new(parameters, config)),
        OptimiserKind::Lamb => Box::new(Lamb::new(parameters, config.lamb(), config.clip())),
    }
}

/// ‖g‖ over all parameters: a task for each of them, and their sums in the order of the names.
fn norm(parameters: &Parameters, gradients: &GradStore) -> Result<f64> {
    let present = parameters.iter().filter_map(|(_, variable)| gradients.get(variable));
    let present: Vec<Tensor> = present.map(Tensor::contiguous).collect::<candle_core::Result<_>>()?;
    let mut sums: Vec<candle_core::Result<f64>> = present.iter().map(|_| Ok(0.0)).collect();
    par_for((items_mut(&mut sums), parts(&present, 1)), |_, (sum, gradient)| {
        *sum = with_slice(&gradient[0], |g: &[f32]| Ok(sum_of_squares(g)));
    });
    Ok(sums.into_iter().sum::<candle_core::Result<f64>>()?.sqrt())
}

/// Σ x² in f64 with eight interleaved sums: fast and always in the same order.
fn sum_of_squares(values: &[f32]) -> f64 {
    let mut sums = [0.0; 8];
    let chunks = values.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    for chunk in chunks {
        for k in 0..8 {
            sums[k] += f64::from(chunk[k]) * f64::from(chunk[k]);
        }
    }
    rest + sums.iter().sum::<f64>()
}
