//! Room for what a step of a network needs in between, kept from step to step.
use kernels::AlignedVec;

/// Buffers that only grow: after the first steps nothing is allocated.
#[derive(Debug, Default)]
pub struct Scratch {
    lines: [AlignedVec<f32>; 3],
}

impl Scratch {
    /// Three buffers of at least so many numbers each, on whole cache lines, whatever an earlier step left in them.
    pub fn rooms(&mut self, sizes: [usize; 3]) -> [&mut [f32]; 3] {
        let mut sizes = sizes.into_iter();
        self.lines.each_mut().map(|lines| lines.ensure_len(sizes.next().unwrap_or(0), 0.0))
    }
}

/// A buffer of exactly so many numbers, which keeps its memory.
pub(crate) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    // Not `resize` alone: what is there already need not be written again.
    buffer.truncate(len);
    buffer.resize(len, 0.0);
    buffer
}
