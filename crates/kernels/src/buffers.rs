//! Reusable memory: cache-aligned vectors, large pages, and freeing of excess.
//!
//! The first touch of each fresh page takes 0.2 to 1 µs, which adds up to tens of milliseconds for
//! the scores of a whole batch. Large buffers therefore request 2 MiB pages (`MADV_HUGEPAGE`).
#![allow(unsafe_code)]

use crate::{Real, ScratchReq, par_for, parts_mut};

/// Smallest buffer, in bytes, for which large pages are requested.
const LARGE_PAGE_BYTES: usize = 4 << 20;
/// Elements that a task of [`zeros`] writes.
const ELEMENTS_PER_TASK: usize = 1 << 18;
/// Bytes in a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// Allocates `len` copies of `value`; zeros are not touched yet.
pub fn alloc<T: Clone>(len: usize, value: T) -> Vec<T> {
    let buffer = vec![value; len];
    if size_of_val(&*buffer) >= LARGE_PAGE_BYTES {
        request_large_pages(&buffer);
    }
    buffer
}

/// Allocates `len` zeros and writes them at once, in parallel.
///
/// Use it for results of known size that are read before they are written, such as sums. The
/// system maps a fresh page that is read first to the shared zero page, and the later remapping
/// interrupts all threads.
pub fn zeros<F: Real>(len: usize) -> Vec<F> {
    let mut buffer = alloc(len, F::ZERO);
    par_for(parts_mut(&mut buffer, ELEMENTS_PER_TASK), |_, part| part.fill(F::ZERO));
    buffer
}

/// Makes a buffer at least `len` elements long.
///
/// `value` fills new memory. Growing discards the old elements; a buffer that is long enough keeps
/// its length and its contents.
pub fn ensure_len<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.len() < len {
        *buffer = Vec::new();
        *buffer = alloc(len, value);
    }
}

/// Reserves capacity for `count` elements; growing discards the old elements.
///
/// The old memory is freed first, so that both never exist at the same time.
pub fn ensure_capacity<T>(buffer: &mut Vec<T>, count: usize) {
    if buffer.capacity() < count {
        *buffer = Vec::new();
        buffer.reserve_exact(count);
    }
}

/// Returns `len` copies of `value`, reusing the memory of `buffer`.
pub fn reset<T: Clone>(mut buffer: Vec<T>, len: usize, value: T) -> Vec<T> {
    ensure_capacity(&mut buffer, len);
    buffer.clear();
    buffer.resize(len, value);
    buffer
}

/// A vector that starts at a cache line.
///
/// Loads of whole registers therefore never cross two lines.
///
/// Its size is [`ScratchReq::aligned`](crate::ScratchReq::aligned).
#[derive(Debug)]
pub struct AlignedVec<T> {
    /// The elements, after up to one cache line of unused ones.
    vector: Vec<T>,
    /// Index of the first element that starts a cache line.
    start: usize,
}

impl<T> Default for AlignedVec<T> {
    fn default() -> Self {
        Self { vector: Vec::new(), start: 0 }
    }
}

impl<T: Clone> AlignedVec<T> {
    /// Returns `len` elements with unspecified contents; `value` fills new memory.
    pub fn ensure_len(&mut self, len: usize, value: T) -> &mut [T] {
        self.ensure_bytes((len + CACHE_LINE / size_of::<T>()) * size_of::<T>(), value);
        &mut self.vector[self.start..][..len]
    }

    /// Allocates at least `bytes` bytes, as counted by [`AlignedVec::bytes`].
    ///
    /// `value` fills new memory.
    pub fn ensure_bytes(&mut self, bytes: usize, value: T) {
        ensure_len(&mut self.vector, bytes / size_of::<T>(), value);
        self.start = self.vector.as_ptr().align_offset(CACHE_LINE);
    }
}

impl<T> AlignedVec<T> {
    /// Aligns the elements of a vector.
    pub fn from_vec(vector: Vec<T>) -> Self {
        let start = vector.as_ptr().align_offset(CACHE_LINE).min(vector.len());
        Self { vector, start }
    }

    /// Returns the underlying vector.
    pub fn into_vec(self) -> Vec<T> {
        self.vector
    }

    /// Returns whether `len` elements fit without an allocation.
    pub fn fits(&self, len: usize) -> bool {
        len + CACHE_LINE / size_of::<T>() <= self.vector.len()
    }

    /// Returns the allocated bytes.
    pub fn bytes(&self) -> usize {
        self.vector.capacity() * size_of::<T>()
    }
}

impl<T> std::ops::DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.vector[self.start..]
    }
}

impl<T> std::ops::Deref for AlignedVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.vector[self.start..]
    }
}

/// Memory that a workspace reuses from call to call.
pub trait ReusableBuffer {
    /// Returns the allocated memory.
    fn allocated(&self) -> ScratchReq;
    /// Frees the memory.
    fn release(&mut self);
}

impl<T> ReusableBuffer for Vec<T> {
    fn allocated(&self) -> ScratchReq {
        ScratchReq::new::<T>(self.capacity())
    }
    fn release(&mut self) {
        *self = Self::new();
    }
}

impl<T> ReusableBuffer for AlignedVec<T> {
    fn allocated(&self) -> ScratchReq {
        ScratchReq::from_bytes(self.bytes())
    }
    fn release(&mut self) {
        *self = Self::default();
    }
}

/// Frees buffers above their requirements, if the total would exceed `limit` bytes.
///
/// A requirement is the memory of the buffer in the next call, which needs `other_memory` in
/// addition.
pub fn release_excess(
    limit: usize,
    other_memory: ScratchReq,
    buffers: &mut [(&mut dyn ReusableBuffer, ScratchReq)],
) {
    let sizes_in_next_call = buffers.iter().map(|(buffer, required)| buffer.allocated().or(*required));
    if ScratchReq::all_of(sizes_in_next_call).and(other_memory).bytes() > limit {
        let exceeding = buffers.iter_mut().filter(|(buffer, required)| buffer.allocated() > *required);
        exceeding.for_each(|(buffer, _)| buffer.release());
    }
}

/// Returns freed memory to the system, now and in future.
///
/// The process then holds little more than it uses, at the cost of page faults later. Does nothing
/// unless the C library is glibc.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: both only change how the allocator returns memory; any thread may call them.
    unsafe {
        const THRESHOLD_BYTES: libc::c_int = 1 << 18;
        libc::mallopt(libc::M_MMAP_THRESHOLD, THRESHOLD_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, THRESHOLD_BYTES);
        libc::malloc_trim(0);
    }
}

#[cfg(target_os = "linux")]
fn request_large_pages<T>(buffer: &[T]) {
    const PAGE_BYTES: usize = 4096;
    let start = buffer.as_ptr().cast::<u8>();
    let skipped_bytes = start.align_offset(PAGE_BYTES);
    let Some(len) = size_of_val(buffer).checked_sub(skipped_bytes) else { return };
    // SAFETY: the range is inside `buffer`; the advice changes neither contents nor access.
    unsafe {
        libc::madvise(start.add(skipped_bytes).cast_mut().cast(), len, libc::MADV_HUGEPAGE);
    }
}

#[cfg(not(target_os = "linux"))]
fn request_large_pages<T>(_: &[T]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_buffers_above_their_requirements_are_released_and_only_above_the_limit() {
        let sizes_after_release = |limit| {
            let (mut list, mut rows): (Vec<u8>, AlignedVec<f32>) = (vec![0; 100], AlignedVec::default());
            rows.ensure_len(10, 0.0);
            let required = [ScratchReq::new::<u8>(60), ScratchReq::aligned::<f32>(20)];
            let mut buffers: [(&mut dyn ReusableBuffer, ScratchReq); 2] =
                [(&mut list, required[0]), (&mut rows, required[1])];
            release_excess(limit, ScratchReq::from_bytes(1), &mut buffers);
            [list.capacity(), rows.bytes()]
        };
        let total = 100 + (4 * 20 + 64) + 1;
        assert_eq!(sizes_after_release(total), [100, 4 * 10 + 64]);
        assert_eq!(sizes_after_release(total - 1), [0, 4 * 10 + 64]);
    }
}
