//! Slices and vectors of candle tensors, for the operations of the model.
//!
//! No other module of the crate accesses candle's storages.
use candle_core::{CpuStorage, Device, Layout, Shape, Storage, Tensor, WithDType};

/// Returns the elements of a contiguous tensor inside an operation.
///
/// # Errors
/// Tensors that are not contiguous, or of another dtype.
pub fn storage_slice<'a, F: WithDType>(
    storage: &'a CpuStorage,
    layout: &Layout,
) -> candle_core::Result<&'a [F]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&F::cpu_storage_as_slice(storage)?[start..end]),
        None => Err(candle_core::Error::RequiresContiguous { op: "model" }.bt()),
    }
}

/// Calls `read` with the elements of a contiguous tensor on the CPU.
///
/// # Errors
/// Tensors that are not contiguous, or of another dtype; those of `read`.
pub fn with_slice<F: WithDType, R>(
    tensor: &Tensor,
    read: impl FnOnce(&[F]) -> candle_core::Result<R>,
) -> candle_core::Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => read(storage_slice(storage, layout)?),
        _ => candle_core::bail!("model: expected a tensor on the CPU"),
    }
}

/// Copies the elements of a contiguous tensor on the CPU.
///
/// # Errors
/// As [`with_slice`].
pub fn to_vec<F: WithDType>(tensor: &Tensor) -> candle_core::Result<Vec<F>> {
    with_slice(tensor, |values: &[F]| Ok(values.to_vec()))
}

/// Calls `read` with the elements of several tensors.
///
/// # Errors
/// As [`with_slice`].
pub fn with_slices<F: WithDType, R>(
    tensors: &[&Tensor],
    read: impl FnOnce(&[&[F]]) -> candle_core::Result<R>,
) -> candle_core::Result<R> {
    let guards: Vec<_> = tensors.iter().map(|tensor| tensor.storage_and_layout()).collect();
    let slices = guards.iter().map(|(storage, layout)| match &**storage {
        Storage::Cpu(storage) => storage_slice(storage, layout),
        _ => candle_core::bail!("model: expected tensors on the CPU"),
    });
    read(&slices.collect::<candle_core::Result<Vec<_>>>()?)
}

/// Creates a CPU tensor from values.
///
/// # Errors
/// Errors of candle.
pub fn from_vec<F: WithDType>(values: Vec<F>, shape: impl Into<Shape>) -> candle_core::Result<Tensor> {
    Tensor::from_vec(values, shape.into(), &Device::Cpu)
}

/// Creates a tensor of `i64` from lengths or counts.
///
/// # Errors
/// Errors of candle.
pub fn counts_tensor(lengths: &[usize]) -> candle_core::Result<Tensor> {
    Tensor::from_iter(lengths.iter().map(|&length| length as i64), &Device::Cpu)
}
