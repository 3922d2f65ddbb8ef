//! Pool of scratch buffers that training and decoding steps reuse by role.
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use crate::{AlignedVec, Real, lock};

/// Unused buffers with their roles.
type UnusedBuffers<F> = Mutex<Vec<(&'static str, AlignedVec<F>)>>;

/// A pool of buffers that steps share; clones refer to the same pool.
///
/// A buffer is acquired for a role and reuses the smallest sufficient buffer of that role. If all
/// are too small, the largest is freed and replaced. A pool therefore holds as many buffers of a
/// role as were in use at once, none larger than requested, and steps with known sizes allocate
/// nothing. The size of a buffer is [`ScratchReq::aligned`](crate::ScratchReq::aligned).
///
/// ```
/// let pool = kernels::BufferPool::new();
/// let mut gates = pool.acquire("gates", 1000);
/// gates.fill(1.0f32);
/// drop(gates);
/// let bytes = pool.bytes();
/// assert_eq!(pool.acquire("gates", 600).len(), 600); // the same buffer, with old contents
/// assert_eq!(pool.acquire("cells", 10).len(), 10); // another
/// assert!(pool.bytes() > bytes);
/// ```
#[derive(Debug)]
pub struct BufferPool<F>(Arc<UnusedBuffers<F>>);

impl<F> Clone for BufferPool<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F> Default for BufferPool<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F> BufferPool<F> {
    /// Creates an empty pool.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Returns the bytes of the unused buffers.
    pub fn bytes(&self) -> usize {
        lock(&self.0).iter().map(|(_, buffer)| buffer.bytes()).sum()
    }
}

impl<F: Real> BufferPool<F> {
    /// Acquires a buffer of `len` elements with unspecified contents; dropping returns it.
    pub fn acquire(&self, role: &'static str, len: usize) -> PooledBuffer<F> {
        let mut buffer = self.take_best_fit(role, len).unwrap_or_default();
        buffer.ensure_len(len, F::ZERO);
        PooledBuffer { buffer, len, pool: Some((role, self.clone())) }
    }

    /// Removes the unused buffer of a role that fits best.
    fn take_best_fit(&self, role: &'static str, len: usize) -> Option<AlignedVec<F>> {
        let mut unused = lock(&self.0);
        // Sufficient buffers first, in ascending size; then the others, in descending size.
        let fit_order = |(_, (_, buffer)): &(usize, &(_, AlignedVec<F>))| match buffer.fits(len) {
            true => (false, buffer.bytes()),
            false => (true, usize::MAX - buffer.bytes()),
        };
        let candidates = unused.iter().enumerate().filter(|(_, (unused_role, _))| *unused_role == role);
        let (best, _) = candidates.min_by_key(fit_order)?;
        Some(unused.swap_remove(best).1)
    }
}

/// Acquires a buffer from a pool, or allocates it without a pool.
pub fn acquire<F: Real>(pool: Option<&BufferPool<F>>, role: &'static str, len: usize) -> PooledBuffer<F> {
    match pool {
        Some(pool) => pool.acquire(role, len),
        None => {
            let mut buffer = PooledBuffer::default();
            buffer.resize(len);
            buffer
        }
    }
}

/// A cache-aligned buffer that returns to its pool, if any, when dropped.
#[derive(Debug)]
pub struct PooledBuffer<F> {
    buffer: AlignedVec<F>,
    len: usize,
    pool: Option<(&'static str, BufferPool<F>)>,
}

impl<F> Default for PooledBuffer<F> {
    /// Creates an empty buffer without a pool.
    fn default() -> Self {
        Self { buffer: AlignedVec::default(), len: 0, pool: None }
    }
}

impl<F: Real> PooledBuffer<F> {
    /// Changes the length to `len`; contents are unspecified.
    pub fn resize(&mut self, len: usize) -> &mut [F] {
        self.len = len;
        self.buffer.ensure_len(len, F::ZERO)
    }

    /// Removes all elements but keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

impl<F> Deref for PooledBuffer<F> {
    type Target = [F];
    fn deref(&self) -> &[F] {
        &self.buffer[..self.len]
    }
}

impl<F> DerefMut for PooledBuffer<F> {
    fn deref_mut(&mut self) -> &mut [F] {
        &mut self.buffer[..self.len]
    }
}

impl<F> Drop for PooledBuffer<F> {
    fn drop(&mut self) {
        if let Some((role, BufferPool(unused))) = self.pool.take() {
            lock(&unused).push((role, std::mem::take(&mut self.buffer)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_sufficient_buffer_is_acquired() {
        let pool = BufferPool::<f32>::new();
        drop([30, 100, 50].map(|len| pool.acquire("row", 10 * len)));
        let bytes = pool.bytes();
        let (first, second) = (pool.acquire("row", 400), pool.acquire("row", 400));
        assert!(first.as_ptr() != second.as_ptr());
        assert_eq!(pool.bytes(), 4 * (300 + 16), "the buffer of 300 is unused");
        drop((first, second));
        assert_eq!(pool.bytes(), bytes);
    }

    #[test]
    fn the_largest_buffer_is_replaced_if_all_are_too_small() {
        let pool = BufferPool::<f64>::new();
        drop([10, 20].map(|len| pool.acquire("row", len)));
        drop(pool.acquire("other", 5));
        drop(pool.acquire("row", 40));
        assert_eq!(pool.bytes(), 8 * (10 + 40 + 5 + 3 * 8));
    }

    #[test]
    fn buffers_outlive_their_pool_and_have_the_requested_length() {
        let mut row = acquire(Some(&BufferPool::<f32>::new()), "row", 7);
        row.fill(3.0);
        assert_eq!(*row, [3.0; 7]);
        row.clear();
        assert!(row.is_empty());
        assert_eq!(row.resize(9).len(), 9);
        assert_eq!(acquire::<f32>(None, "row", 4).len(), 4);
        assert!(acquire::<f32>(Some(&BufferPool::new()), "row", 0).is_empty());
    }
}
