//! Buffers that a workspace counts, and lets go where they are too large.
use kernels::AlignedVec;

/// Memory that is kept.
pub(crate) trait Buffer {
    /// Bytes held.
    fn bytes(&self) -> usize;
    /// Holds nothing from now on.
    fn let_go(&mut self);
}

impl<T> Buffer for Vec<T> {
    fn bytes(&self) -> usize {
        self.capacity() * size_of::<T>()
    }
    fn let_go(&mut self) {
        *self = Vec::new();
    }
}

impl<T: Clone> Buffer for AlignedVec<T> {
    fn bytes(&self) -> usize {
        size_of_val(&**self)
    }
    fn let_go(&mut self) {
        *self = Self::default();
    }
}
