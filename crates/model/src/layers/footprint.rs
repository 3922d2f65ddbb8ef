//! Bytes that layers hold during the forward and backward passes.
use kernels::ScratchReq;

/// Bytes of a number.
const F: usize = size_of::<f32>();

/// Threads that have something of their own in hand, at most: 64, so that plans are the same
/// everywhere, or as many as there are.
pub(crate) fn threads() -> usize {
    rayon::current_num_threads().max(64)
}

/// What layers that follow each other need: the bytes that all of them save for the backward pass,
/// and the scratch memory that one of them needs at a time, forward or backward.
pub(crate) type Footprint = [ScratchReq; 2];

/// The footprint of a layer with so many numbers.
pub(crate) fn numbers(saved: usize, scratch: usize) -> Footprint {
    [saved, scratch].map(ScratchReq::new::<f32>)
}

/// The footprint of layers and of another one behind them.
pub(crate) fn then([saved, scratch]: Footprint, [more, other]: Footprint) -> Footprint {
    [saved.and(more), scratch.or(other)]
}

/// Most bytes at any time.
pub(crate) fn peak([saved, scratch]: Footprint) -> usize {
    saved.and(scratch).bytes()
}

/// An LSTM layer over some rows, from rows of width `input` to `directions` states of `hidden`.
pub(crate) fn lstm(rows: usize, input: usize, hidden: usize, directions: usize, dropout: bool) -> Footprint {
    let out = hidden * directions;
    // The output, the tape, and what dropout makes of the output with a byte of mask.
    let kept = F * rows * (out + 5 * out) + if dropout { (F + 1) * rows * out } else { 0 };
    // Packed rows and gradients: above, of gates, of inputs by direction and added up; packed
    // operands of the products.
    let by_row = 4 * out + 8 * out + 3 * directions * input + 2 * input;
    let packed = 3 * directions * 4 * hidden * (input + hidden);
    [kept, F * (rows * by_row + packed)].map(ScratchReq::from_bytes)
}
