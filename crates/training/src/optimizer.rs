//! The `Optimizer` trait, and the optimizers that a recipe can select.
//!
//! A new optimizer is a file next to `adamw.rs` with its [`Optimizer`], `check` and `build`, and
//! two lines here: its `mod`, and its entry in [`OptimizerKind`].
mod adamw;
mod clip;
mod config;
mod lamb;
mod moments;
mod rates;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;

use candle_core::{CpuStorage, InplaceOp2, Layout, Storage, Tensor, Var};
use kernels::{items_mut, par_for, parts, sum_of_squares};
use serde::{Deserialize, Serialize};

pub use clip::Clip;
pub(crate) use config::MIN_RATE;
pub use config::{ClipKind, Decay, OptimizerConfig};
pub use lamb::{LambConfig, LambStep};
pub(crate) use rates::RateFactors;

use crate::Result;
use model::checkpoint::Values;
use model::{Gradients, Parameters};

/// An optimizer, whose state a checkpoint can store.
pub trait Optimizer: Send {
    /// Makes one step; returns the norm of the gradient before clipping.
    ///
    /// Parameters without a gradient keep their weights. If the norm is not finite, nothing is
    /// changed.
    ///
    /// # Errors
    /// Errors of candle; [`crate::Error::Shape`](model::Error::Shape) for a parameter that the
    /// optimizer does not have.
    fn step(&mut self, parameters: &Parameters, gradients: &Gradients, rate: f64) -> Result<f64>;

    /// Returns the state of all parameters by kind, such as `first`.
    fn state(&self) -> BTreeMap<String, Cow<'_, Values>>;

    /// Restores the state after `steps` steps.
    ///
    /// # Errors
    /// [`crate::Error::Shape`](model::Error::Shape) if a kind of state is missing.
    fn restore(&mut self, state: &BTreeMap<String, Values>, steps: u64) -> Result<()>;
}

/// Defines [`OptimizerKind`] and `build`.
///
/// Each module has functions `check` and `build` for its keys of `[optimizer]`.
macro_rules! optimizer_kinds {
    ($($(#[$default:ident])? $module:ident::$kind:ident,)+) => {
        $(pub use $module::$kind;)+

        /// The optimizers that a recipe can select with `optimizer.kind`.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum OptimizerKind {
            $(#[doc = concat!("See [`struct@", stringify!($kind), "`].")] $(#[$default])? $kind,)+
        }

        impl OptimizerKind {
            /// Checks the keys whose values depend on the optimizer.
            fn check(self, config: &OptimizerConfig) -> model::Result<()> {
                match self {
                    $(OptimizerKind::$kind => $module::check(config),)+
                }
            }
        }

        /// Creates the optimizer that a recipe selects.
        pub(crate) fn build(config: &OptimizerConfig, parameters: &Parameters) -> Box<dyn Optimizer> {
            match config.kind {
                $(OptimizerKind::$kind => Box::new($module::build(config, parameters)),)+
            }
        }
    };
}

optimizer_kinds! {
    #[default] adamw::AdamW,
    lamb::Lamb,
}

/// Returns the norm ‖g‖ of all gradients together, with sums in `f64`.
///
/// Each gradient is one task; their sums are added in the order of the names.
///
/// # Errors
/// Errors of candle.
pub fn gradient_norm(gradients: &Gradients) -> Result<f64> {
    let tensors: Vec<&Tensor> = gradients.values().collect();
    let mut sums_of_squares: Vec<candle_core::Result<f64>> = tensors.iter().map(|_| Ok(0.0)).collect();
    par_for((items_mut(&mut sums_of_squares), parts(&tensors, 1)), |_, (sum, gradient)| {
        let (storage, layout) = gradient[0].storage_and_layout();
        *sum = match &*storage {
            Storage::Cpu(storage) => contiguous_values(storage, layout).map(sum_of_squares),
            _ => Err(tensor_not_on_cpu()),
        };
    });
    Ok(sums_of_squares.into_iter().sum::<candle_core::Result<f64>>()?.sqrt())
}

/// Updates the values of a variable in place.
///
/// `update` receives the values of the variable and of the gradient.
///
/// # Errors
/// Values that are not contiguous `f32` on the CPU; a gradient that is the variable itself.
fn update_in_place<R>(
    variable: &Var,
    gradient: &Tensor,
    update: impl FnOnce(&mut [f32], &[f32]) -> R,
) -> candle_core::Result<R> {
    let operation = UpdateOperation { update: Cell::new(Some(update)), result: Cell::new(None) };
    variable.inplace_op2(gradient, &operation)?;
    operation.result.into_inner().ok_or_else(tensor_not_on_cpu)
}

/// A closure as a candle operation, as candle takes operations by reference.
struct UpdateOperation<U, R> {
    /// The closure, until it is called.
    update: Cell<Option<U>>,
    /// Its result, after the call.
    result: Cell<Option<R>>,
}

impl<R, U: FnOnce(&mut [f32], &[f32]) -> R> InplaceOp2 for UpdateOperation<U, R> {
    fn name(&self) -> &'static str {
        "update"
    }

    fn cpu_fwd(
        &self,
        weights: &mut CpuStorage,
        weights_layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> candle_core::Result<()> {
        let (CpuStorage::F32(weights), Some((start, end))) = (weights, weights_layout.contiguous_offsets())
        else {
            candle_core::bail!("optimizer: expected contiguous weights of f32");
        };
        let gradient = contiguous_values(gradient, gradient_layout)?;
        if let Some(update) = self.update.take() {
            self.result.set(Some(update(&mut weights[start..end], gradient)));
        }
        Ok(())
    }
}

/// Returns the values of a gradient.
fn contiguous_values<'a>(gradient: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [f32]> {
    match (gradient, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((start, end))) => Ok(&values[start..end]),
        _ => candle_core::bail!("optimizer: expected a contiguous gradient of f32"),
    }
}

fn tensor_not_on_cpu() -> candle_core::Error {
    candle_core::Error::msg("optimizer: expected tensors on the CPU")
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn weights_are_updated_in_place() {
        let device = Device::Cpu;
        let w = Var::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], (2, 2), &device).unwrap();
        let shared = w.as_tensor().clone();
        let g = Tensor::from_vec(vec![1.0f32, 0.0, 0.5, 0.25], (2, 2), &device).unwrap();
        let add = |w: &mut [f32], g: &[f32]| {
            w.iter_mut().zip(g).for_each(|(w, g)| *w += g);
            w.len()
        };
        assert_eq!(update_in_place(&w, &g, add).unwrap(), 4);
        assert_eq!(shared.to_vec2::<f32>().unwrap(), [[2.0, 2.0], [3.5, 4.25]]);
        // Rejected are a transposed gradient, whose order is not that of the weights; a gradient
        // that is the variable itself; and integers.
        assert!(update_in_place(&w, &g.t().unwrap(), add).is_err());
        assert!(update_in_place(&w, w.as_tensor(), add).is_err());
        assert!(update_in_place(&w, &g.to_dtype(candle_core::DType::U32).unwrap(), add).is_err());
        assert_eq!(shared.to_vec2::<f32>().unwrap(), [[2.0, 2.0], [3.5, 4.25]]);
    }
}
