//! Optimizers: from gradients to new weights.
//!
//! A new one is a file beside `adamw.rs` with its [`Optimizer`], and a line in `build`.
mod adamw;
mod clip;
mod config;
mod lamb;
mod moments;

use std::borrow::Cow;
use std::collections::BTreeMap;

pub use adamw::AdamW;
pub use clip::Clip;
pub(crate) use config::MIN_RATE;
pub use config::{ClipKind, Decay, OptimizerConfig, OptimizerKind};
pub use lamb::{Lamb, LambConfig, LambStep, Number};

use crate::Result;
use model::checkpoint::Values;
use model::{Gradients, Parameters};

/// Steps along gradients, with a memory that a checkpoint can hold.
pub trait Optimizer: Send {
    /// One step; returns the norm of the gradient, before any clipping.
    ///
    /// Parameters without a gradient keep their weights. If the norm is not finite, nothing is changed.
    ///
    /// # Errors
    /// Candle's own errors; [`crate::Error::Shape`](model::Error::Shape) for a parameter that the optimizer does not know.
    fn step(&mut self, parameters: &Parameters, gradients: &Gradients, rate: f64) -> Result<f64>;

    /// What it remembers of each parameter, by the names `first` and `second`.
    fn memory(&self) -> BTreeMap<String, Cow<'_, Values>>;

    /// Goes on with the memory of a run of so many steps.
    ///
    /// # Errors
    /// [`crate::Error::Shape`](model::Error::Shape) if a memory is missing.
    fn restore(&mut self, memory: &BTreeMap<String, Values>, steps: u64) -> Result<()>;
}

/// The optimizer that a recipe asks for.
pub(crate) fn build(config: &OptimizerConfig, parameters: &Parameters) -> Box<dyn Optimizer> {
    match config.kind {
        OptimizerKind::AdamW => Box::new(AdamW::new(parameters, config)),
        OptimizerKind::Lamb => Box::new(Lamb::new(parameters, config.lamb(), config.clip())),
    }
}
