//! Frame stacking of sound that is still arriving.

use serde::{Deserialize, Serialize};

/// [`Features::stack`](crate::Features::stack) of frames that come one by one: a row as soon as its last frame is there.
///
/// ```
/// use speech::{Features, StackStream};
///
/// let plane = Features { frames: 5, dim: 1, data: vec![1.0, 2.0, 3.0, 4.0, 5.0] };
/// let (mut stream, mut rows) = (StackStream::new(3, 2, 1), Vec::new());
/// stream.push(&plane.data[..4], &mut rows);
/// assert_eq!(rows, [1.0, 2.0, 3.0]);
/// stream.push(&plane.data[4..], &mut rows);
/// stream.finish(&mut rows);
/// assert_eq!(rows, plane.stack(3, 2).data);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackStream {
    stack: usize,
    stride: usize,
    dim: usize,
    /// Fewest values of a row.
    #[serde(default, skip_serializing_if = "is_zero")]
    channels: usize,
    /// Frames that no row needs, before the next one that one does.
    skip: usize,
    /// Frames of the next row.
    kept: Vec<f32>,
}

impl StackStream {
    /// For frames of `dim` values. A `stack` or `stride` of 0 is taken as 1.
    pub fn new(stack: usize, stride: usize, dim: usize) -> Self {
        Self { stack: stack.max(1), stride: stride.max(1), dim, channels: 0, skip: 0, kept: Vec::new() }
    }

    /// [`Features::stack_into`](crate::Features::stack_into): rows of so many values at least, zeros behind those of the frames.
    pub fn with_channels(self, channels: usize) -> Self {
        Self { channels, ..self }
    }

    /// Whether it can be what a stream with these settings has become.
    pub fn is_compatible(&self, other: &StackStream) -> bool {
        let settings = |s: &StackStream| (s.stack, s.stride, s.dim, s.channels);
        let (kept, width) = (self.kept.len(), self.stack.saturating_mul(self.dim));
        settings(self) == settings(other)
            && self.skip <= self.stride.saturating_sub(self.stack)
            && (kept < width || width == 0)
            && (self.dim == 0 || kept.is_multiple_of(self.dim))
            && self.kept.iter().all(|x| x.is_finite())
    }

    /// Takes `[n, dim]` frames and appends the rows `[.., stack dim]`, or with more channels, that are complete.
    ///
    /// Cost: O(values of frames and rows) time; fewer than `stack` frames stay here.
    pub fn push(&mut self, frames: &[f32], rows: &mut Vec<f32>) {
        for frame in frames.chunks_exact(self.dim.max(1)) {
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.kept.extend_from_slice(frame);
            if self.kept.len() == self.stack * self.dim {
                self.row(rows);
                self.skip = self.stride.saturating_sub(self.stack);
            }
        }
    }

    /// Appends the rows that begin before the end, zeros after it, and begins anew.
    pub fn finish(&mut self, rows: &mut Vec<f32>) {
        while !self.kept.is_empty() {
            self.row(rows);
        }
        self.skip = 0;
    }

    fn row(&mut self, rows: &mut Vec<f32>) {
        let end = rows.len() + (self.stack * self.dim).max(self.channels);
        rows.extend_from_slice(&self.kept);
        rows.resize(end, 0.0);
        self.kept.drain(..self.kept.len().min(self.stride * self.dim));
    }
}

fn is_zero(channels: &usize) -> bool {
    *channels == 0
}
