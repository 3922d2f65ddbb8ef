//! Upper bounds of a layer's memory in training: forward and backward pass.
//!
//! Recipes with a memory budget plan batches with them. Bounds depend on shapes only. Layers have a
//! method `footprint`; the footprint of an LSTM layer is here, as encoder and predictor share it.
use kernels::ScratchReq;

/// Bytes of an `f32` value.
const VALUE_BYTES: usize = size_of::<f32>();

/// Gates of an LSTM unit: i, f, g, o.
const GATES: usize = 4;

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
pub struct Footprint {
    /// Saved for the backward pass; all layers save at the same time.
    saved: ScratchReq,
    /// Temporary; one layer at a time needs it.
    scratch: ScratchReq,
}

/// Returns the footprint of a layer from counts of `f32` values.
pub fn from_values(saved: usize, scratch: usize) -> Footprint {
    Footprint { saved: ScratchReq::new::<f32>(saved), scratch: ScratchReq::new::<f32>(scratch) }
}

/// Returns the footprint of two layers, one after the other.
pub fn chain(first: Footprint, second: Footprint) -> Footprint {
    Footprint { saved: first.saved.and(second.saved), scratch: first.scratch.or(second.scratch) }
}

/// Returns the footprint of a layer that saves only its input; see
/// [`recompute`](super::recompute::recompute).
///
/// `values` is the number of values of the layer's input and of its output.
pub fn recomputed(layer: Footprint, values: usize) -> Footprint {
    // Copies of the input and the output, and the gradients of both.
    let copies = ScratchReq::new::<f32>(4 * values);
    Footprint { saved: ScratchReq::new::<f32>(values), scratch: layer.saved.and(layer.scratch).and(copies) }
}

/// Returns the peak in bytes.
pub fn peak_bytes(footprint: Footprint) -> usize {
    footprint.saved.and(footprint.scratch).bytes()
}

/// Returns the footprint of an LSTM layer.
///
/// `rows` are those of the padded batch. The layer has `directions` directions, each with states of
/// width `hidden`.
pub fn lstm_layer(
    rows: usize,
    input_width: usize,
    hidden: usize,
    directions: usize,
    has_dropout: bool,
) -> Footprint {
    let out = hidden * directions;
    // Saved: the output, and the tape of gates and cell states.
    let tape = (GATES + 1) * out;
    // The output after dropout, and a byte of mask for each value.
    let dropout_bytes = if has_dropout { (VALUE_BYTES + 1) * rows * out } else { 0 };
    let saved = VALUE_BYTES * rows * (out + tape) + dropout_bytes;
    // Temporary values of a row. Packed rows and gradients of the output:
    let output_values = 4 * out;
    // Packed gates and their gradients:
    let gate_values = 2 * GATES * out;
    // Packed inputs and gradients of each direction, and the gradients' sum over the directions:
    let input_values = 3 * directions * input_width + 2 * input_width;
    // Packed operands of the products with input and recurrent weight, for all rows:
    let packed_weights = 3 * directions * GATES * hidden * (input_width + hidden);
    let values_per_row = output_values + gate_values + input_values;
    let scratch = VALUE_BYTES * (rows * values_per_row + packed_weights);
    Footprint { saved: ScratchReq::from_bytes(saved), scratch: ScratchReq::from_bytes(scratch) }
}
