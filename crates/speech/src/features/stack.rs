//! `StackStream`: stacks adjacent feature frames into encoder input rows, streaming.

use serde::{Deserialize, Serialize};

/// Streaming [`Features::stack`](crate::Features::stack).
///
/// A row is emitted as soon as its last frame arrives.
///
/// ```
/// use speech::{Features, StackStream};
///
/// let features = Features { frames: 5, dim: 1, data: vec![1.0, 2.0, 3.0, 4.0, 5.0] };
/// let (mut stream, mut rows) = (StackStream::new(3, 2, 1), Vec::new());
/// stream.push(&features.data[..4], &mut rows);
/// assert_eq!(rows, [1.0, 2.0, 3.0]);
/// stream.push(&features.data[4..], &mut rows);
/// stream.finish(&mut rows);
/// assert_eq!(rows, features.stack(3, 2).data);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackStream {
    stack: usize,
    stride: usize,
    dim: usize,
    /// Smallest row width; shorter rows are padded with zeros.
    #[serde(rename = "channels", default, skip_serializing_if = "is_zero")]
    min_dim: usize,
    /// Frames to skip before the next row.
    skip: usize,
    /// Frames of the next row.
    #[serde(rename = "kept")]
    pending: Vec<f32>,
}

impl StackStream {
    /// A stream of frames of `dim` values; a `stack` or `stride` of 0 counts as 1.
    pub fn new(stack: usize, stride: usize, dim: usize) -> Self {
        Self { stack: stack.max(1), stride: stride.max(1), dim, min_dim: 0, skip: 0, pending: Vec::new() }
    }

    /// Pads rows with zeros to `min_dim` values.
    ///
    /// The rows are those of [`Features::stack_padded`](crate::Features::stack_padded).
    pub fn with_min_dim(self, min_dim: usize) -> Self {
        Self { min_dim, ..self }
    }

    /// Returns whether this state is valid for the settings of `other`.
    pub fn is_compatible(&self, other: &StackStream) -> bool {
        let settings = |s: &StackStream| (s.stack, s.stride, s.dim, s.min_dim);
        let (num_pending, width) = (self.pending.len(), self.stack.saturating_mul(self.dim));
        settings(self) == settings(other)
            && self.skip <= self.stride.saturating_sub(self.stack)
            && (num_pending < width || width == 0)
            && (self.dim == 0 || num_pending.is_multiple_of(self.dim))
            && self.pending.iter().all(|x| x.is_finite())
    }

    /// Consumes `[n, dim]` frames and appends the complete rows.
    ///
    /// Rows have `stack dim` values, or more with [`StackStream::with_min_dim`].
    ///
    /// Cost: O(values of frames and rows) time; the stream keeps fewer than `stack` frames.
    pub fn push(&mut self, frames: &[f32], rows: &mut Vec<f32>) {
        for frame in frames.chunks_exact(self.dim.max(1)) {
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.pending.extend_from_slice(frame);
            if self.pending.len() == self.stack * self.dim {
                self.emit_row(rows);
                self.skip = self.stride.saturating_sub(self.stack);
            }
        }
    }

    /// Appends the remaining rows, zero-padded, and resets the stream.
    pub fn finish(&mut self, rows: &mut Vec<f32>) {
        while !self.pending.is_empty() {
            self.emit_row(rows);
        }
        self.skip = 0;
    }

    fn emit_row(&mut self, rows: &mut Vec<f32>) {
        let end = rows.len() + (self.stack * self.dim).max(self.min_dim);
        rows.extend_from_slice(&self.pending);
        rows.resize(end, 0.0);
        self.pending.drain(..self.pending.len().min(self.stride * self.dim));
    }
}

fn is_zero(min_dim: &usize) -> bool {
    *min_dim == 0
}
