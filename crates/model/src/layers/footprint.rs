//! Upper bounds of a layer's memory in the forward and backward pass.
//!
//! Recipes with a memory budget plan batches with them. Bounds depend on shapes only.
use kernels::ScratchReq;

/// Bytes of a value.
const F: usize = size_of::<f32>();

/// Returns the number of threads with separate buffers that a plan assumes.
///
/// At least 64, so that plans are the same on most machines.
pub(crate) fn threads() -> usize {
    rayon::current_num_threads().max(64)
}

/// The memory of layers: `[saved for the backward pass, temporary]`.
///
/// All layers save at the same time; one layer at a time needs temporary memory.
pub(crate) type Footprint = [ScratchReq; 2];

/// Returns the footprint of a layer from counts of `f32` values.
pub(crate) fn numbers(saved: usize, scratch: usize) -> Footprint {
    [saved, scratch].map(ScratchReq::new::<f32>)
}

/// Returns the footprint of two layers, one after the other.
pub(crate) fn chain([saved, scratch]: Footprint, [next_saved, next_scratch]: Footprint) -> Footprint {
    [saved.and(next_saved), scratch.or(next_scratch)]
}

/// Returns the peak in bytes.
pub(crate) fn peak([saved, scratch]: Footprint) -> usize {
    saved.and(scratch).bytes()
}

/// Returns the footprint of an LSTM layer.
///
/// It has `directions` directions with states of width `hidden`.
pub(crate) fn lstm(rows: usize, input: usize, hidden: usize, directions: usize, dropout: bool) -> Footprint {
    let out = hidden * directions;
    // The output; the tape (4H gates and H cell states for a direction); the output after dropout,
    // and a byte of mask for each value.
    let saved = F * rows * (out + 5 * out) + if dropout { (F + 1) * rows * out } else { 0 };
    // Packed rows and gradients: of the output, of gates, of inputs by direction and added; packed
    // operands of the products.
    let by_row = 4 * out + 8 * out + 3 * directions * input + 2 * input;
    let packed = 3 * directions * 4 * hidden * (input + hidden);
    [saved, F * (rows * by_row + packed)].map(ScratchReq::from_bytes)
}
