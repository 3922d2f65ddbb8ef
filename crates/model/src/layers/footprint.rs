//! Bytes that layers hold during the forward and backward passes.

/// Bytes of a number.
const F: usize = size_of::<f32>();

/// Threads that have something of their own in hand, at most: 64, so that plans are the same everywhere, or as many as there are.
pub(crate) fn threads() -> usize {
    rayon::current_num_threads().max(64)
}

/// Bytes of parts that follow each other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Footprint {
    /// What all of them keep for the backward pass.
    pub kept: usize,
    /// The most that one of them takes on its way, forward or backward.
    pub passing: usize,
}

impl Footprint {
    /// That of a part with so many numbers.
    pub fn numbers(kept: usize, passing: usize) -> Self {
        Footprint { kept: kept.saturating_mul(F), passing: passing.saturating_mul(F) }
    }

    /// With another part behind it.
    pub fn then(self, other: Footprint) -> Self {
        Footprint { kept: self.kept.saturating_add(other.kept), passing: self.passing.max(other.passing) }
    }

    /// Most bytes at any time.
    pub fn peak(self) -> usize {
        self.kept.saturating_add(self.passing)
    }
}

/// An LSTM layer over some rows, from rows of width `input` to `directions` states of `hidden`.
pub(crate) fn lstm(rows: usize, input: usize, hidden: usize, directions: usize, dropout: bool) -> Footprint {
    let out = hidden * directions;
    // The output, the tape, and what dropout makes of the output with a byte of mask.
    let kept = F * rows * (out + 5 * out) + if dropout { (F + 1) * rows * out } else { 0 };
    // Packed rows and gradients: above, of gates, of inputs by direction and added up; packed operands of the products.
    let by_row = 4 * out + 8 * out + 3 * directions * input + 2 * input;
    let packed = 3 * directions * 4 * hidden * (input + hidden);
    Footprint { kept, passing: F * (rows * by_row + packed) }
}
