//! Slices in and out of candle tensors; the only place that touches storages.
use std::cell::Cell;

use candle_core::{CpuStorage, Device, InplaceOp2, Layout, Shape, Storage, Tensor, Var, WithDType};

/// The elements of a contiguous tensor inside an operation.
///
/// # Errors
/// Tensors that are not contiguous, or of another type.
pub fn slice<'a, F: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [F]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&F::cpu_storage_as_slice(storage)?[start..end]),
        None => Err(candle_core::Error::RequiresContiguous { op: "model" }.bt()),
    }
}

/// Calls `use_it` with the elements of a contiguous tensor on the CPU.
///
/// # Errors
/// Tensors that are not contiguous, or of another type; those of `use_it`.
pub fn with_slice<F: WithDType, R>(
    tensor: &Tensor,
    use_it: impl FnOnce(&[F]) -> candle_core::Result<R>,
) -> candle_core::Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => use_it(slice(storage, layout)?),
        _ => candle_core::bail!("model: expected a tensor on the CPU"),
    }
}

/// A copy of the elements of a contiguous tensor on the CPU.
///
/// # Errors
/// As [`with_slice`].
pub fn to_vec<F: WithDType>(tensor: &Tensor) -> candle_core::Result<Vec<F>> {
    with_slice(tensor, |values: &[F]| Ok(values.to_vec()))
}

/// [`with_slice`] for several tensors at once.
///
/// # Errors
/// As [`with_slice`].
pub fn with_slices<F: WithDType, R>(
    tensors: &[&Tensor],
    use_them: impl FnOnce(&[&[F]]) -> candle_core::Result<R>,
) -> candle_core::Result<R> {
    let guards: Vec<_> = tensors.iter().map(|tensor| tensor.storage_and_layout()).collect();
    let slices = guards.iter().map(|(storage, layout)| match &**storage {
        Storage::Cpu(storage) => slice(storage, layout),
        _ => candle_core::bail!("model: expected tensors on the CPU"),
    });
    use_them(&slices.collect::<candle_core::Result<Vec<_>>>()?)
}

/// A CPU tensor that takes over `values`.
///
/// # Errors
/// Candle's own errors.
pub fn from_vec<F: WithDType>(values: Vec<F>, shape: impl Into<Shape>) -> candle_core::Result<Tensor> {
    Tensor::from_vec(values, shape.into(), &Device::Cpu)
}

/// Lengths or counts as a tensor of `i64`.
///
/// # Errors
/// Candle's own errors.
pub fn counts(lengths: &[usize]) -> candle_core::Result<Tensor> {
    Tensor::from_iter(lengths.iter().map(|&length| length as i64), &Device::Cpu)
}

/// Lends the values of a variable, to be written where they are, together with those of its contiguous gradient.
///
/// # Errors
/// Values that are not contiguous `f32` on the CPU; a gradient that is the variable itself.
pub fn update<R>(
    variable: &Var,
    gradient: &Tensor,
    write: impl FnOnce(&mut [f32], &[f32]) -> R,
) -> candle_core::Result<R> {
    let operation = UpdateOperation { write: Cell::new(Some(write)), result: Cell::new(None) };
    variable.inplace_op2(gradient, &operation)?;
    match operation.result.into_inner() {
        Some(result) => Ok(result),
        None => candle_core::bail!("model: expected a tensor on the CPU"),
    }
}

/// A closure as an operation of candle's, which takes operations by reference.
struct UpdateOperation<W, R> {
    write: Cell<Option<W>>,
    result: Cell<Option<R>>,
}

impl<R, W: FnOnce(&mut [f32], &[f32]) -> R> InplaceOp2 for UpdateOperation<W, R> {
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
            candle_core::bail!("model: expected contiguous weights of f32");
        };
        let gradient = slice(gradient, gradient_layout)?;
        if let Some(write) = self.write.take() {
            self.result.set(Some(write(&mut weights[start..end], gradient)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_written_where_they_are() {
        let device = Device::Cpu;
        let w = Var::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], (2, 2), &device).unwrap();
        let seen_by_the_model = w.as_tensor().clone();
        let g = Tensor::from_vec(vec![1.0f32, 0.0, 0.5, 0.25], (2, 2), &device).unwrap();
        let add = |w: &mut [f32], g: &[f32]| {
            w.iter_mut().zip(g).for_each(|(w, g)| *w += g);
            w.len()
        };
        assert_eq!(update(&w, &g, add).unwrap(), 4);
        assert_eq!(seen_by_the_model.to_vec2::<f32>().unwrap(), [[2.0, 2.0], [3.5, 4.25]]);
        // A transposed gradient has no slice in the weights' order, one that is the variable cannot be lent beside it, and whole
        // numbers are no gradient.
        assert!(update(&w, &g.t().unwrap(), add).is_err());
        assert!(update(&w, w.as_tensor(), add).is_err());
        assert!(update(&w, &g.to_dtype(candle_core::DType::U32).unwrap(), add).is_err());
        assert_eq!(seen_by_the_model.to_vec2::<f32>().unwrap(), [[2.0, 2.0], [3.5, 4.25]]);
    }
}
