//! Upper bounds of a layer's memory in training: forward and backward pass.
//!
//! Recipes with a memory budget plan batches with them. Bounds depend on shapes only.
use kernels::ScratchReq;

/// Bytes of an `f32` value.
const VALUE_BYTES: usize = size_of::<f32>();

/// Smallest number of threads that a plan assumes.
const MIN_PLANNED_THREADS: usize = 64;

/// Returns the number of threads with separate buffers that a plan assumes.
///
/// It has a minimum, so that plans are the same on most machines.
pub(crate) fn planned_threads() -> usize {
    rayon::current_num_threads().max(MIN_PLANNED_THREADS)
}

/// The memory of one or more layers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Footprint {
    /// Saved for the backward pass; all layers save at the same time.
    saved: ScratchReq,
    /// Temporary; one layer at a time needs it.
    scratch: ScratchReq,
}

/// Returns the footprint of a layer from counts of `f32` values.
pub(crate) fn from_values(saved: usize, scratch: usize) -> Footprint {
    Footprint { saved: ScratchReq::new::<f32>(saved), scratch: ScratchReq::new::<f32>(scratch) }
}

/// Returns the footprint of two layers, one after the other.
pub(crate) fn chain(first: Footprint, second: Footprint) -> Footprint {
    Footprint { saved: first.saved.and(second.saved), scratch: first.scratch.or(second.scratch) }
}

/// Returns the peak in bytes.
pub(crate) fn peak_bytes(footprint: Footprint) -> usize {
    footprint.saved.and(footprint.scratch).bytes()
}

/// Returns the footprint of an LSTM layer.
///
/// It has `directions` directions with states of width `hidden`.
pub(crate) fn lstm_layer(
    rows: usize,
    input_width: usize,
    hidden: usize,
    directions: usize,
    has_dropout: bool,
) -> Footprint {
    let out = hidden * directions;
    // The output; the tape (4H gates and H cell states for a direction); the output after dropout,
    // and a byte of mask for each value.
    let saved =
        VALUE_BYTES * rows * (out + 5 * out) + if has_dropout { (VALUE_BYTES + 1) * rows * out } else { 0 };
    // Packed rows and gradients: of the output, of gates, of inputs by direction and added.
    let values_per_row = 4 * out + 8 * out + 3 * directions * input_width + 2 * input_width;
    // Packed operands of the products.
    let packed_weights = 3 * directions * 4 * hidden * (input_width + hidden);
    let scratch = VALUE_BYTES * (rows * values_per_row + packed_weights);
    Footprint { saved: ScratchReq::from_bytes(saved), scratch: ScratchReq::from_bytes(scratch) }
}
