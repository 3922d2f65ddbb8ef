//! Reserves memory for decoded audio samples, if it is available.

use crate::memory;

/// Signals of fewer bytes are read without checking the available memory.
const UNCHECKED_BYTES: usize = 64 << 20;

/// Memory that a signal needs and cannot have.
#[derive(Clone, Copy)]
pub(super) struct MemoryShortage {
    /// Bytes required.
    pub required: usize,
    /// Bytes available; 0 if unknown.
    pub available: usize,
}

/// Reserves memory for `additional` samples.
pub(super) fn reserve(samples: &mut Vec<f32>, additional: usize) -> Result<(), MemoryShortage> {
    if samples.capacity() - samples.len() >= additional {
        return Ok(());
    }
    let required = (samples.len() + additional).saturating_mul(size_of::<f32>());
    // Reading the available memory takes longer than decoding a block.
    if required > UNCHECKED_BYTES
        && let Some(available) = memory::available_bytes().filter(|&available| available < required)
    {
        return Err(MemoryShortage { required, available });
    }
    samples.try_reserve_exact(additional).map_err(|_| MemoryShortage { required, available: 0 })
}

/// Reserves memory for `additional` samples; a reallocation at least doubles the length.
pub(super) fn grow(samples: &mut Vec<f32>, additional: usize) -> Result<(), MemoryShortage> {
    let length = samples.len();
    if samples.capacity() - length < additional { reserve(samples, length.max(additional)) } else { Ok(()) }
}
