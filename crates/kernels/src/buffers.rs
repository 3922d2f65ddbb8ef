//! Buffers that are allocated once: aligned, on large pages, kept from call to call.
//!
//! Fresh memory comes in pages, each at its first touch, for 0.2 to 1 µs: tens of milliseconds where all scores of a
//! batch are kept. Pages of 2 MiB are requested, which the system may refuse.
#![allow(unsafe_code)]

use crate::{Real, ScratchReq, par_for, parts_mut};

/// Bytes from which on large pages are requested.
const LARGE_PAGE_BYTES: usize = 4 << 20;
/// Elements that a task of [`zeros`] writes.
const ELEMENTS_PER_TASK: usize = 1 << 18;
/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// Allocates `len` times `value`; zeros are first written by their user.
pub fn alloc<T: Clone>(len: usize, value: T) -> Vec<T> {
    let buffer = vec![value; len];
    if size_of_val(&*buffer) >= LARGE_PAGE_BYTES {
        request_large_pages(&buffer);
    }
    buffer
}

/// Allocates `len` zeros and writes them at once.
///
/// For results, whose size is then known from the start, and which are often read first, as sums are. A fresh page that is
/// read first gets its own place later, and then interrupts all threads.
pub fn zeros<F: Real>(len: usize) -> Vec<F> {
    let mut buffer = alloc(len, F::ZERO);
    par_for(parts_mut(&mut buffer, ELEMENTS_PER_TASK), |_, part| part.fill(F::ZERO));
    buffer
}

/// Makes a buffer at least `len` elements long; a longer one is a new one without the old elements.
pub fn ensure_len<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.len() < len {
        *buffer = Vec::new();
        *buffer = alloc(len, value);
    }
}

/// Makes room for at least `count` elements; the old ones are lost where there was too little.
///
/// So the old and the new memory never exist at the same time.
pub fn ensure_capacity<T>(list: &mut Vec<T>, count: usize) {
    if list.capacity() < count {
        *list = Vec::new();
        list.reserve_exact(count);
    }
}

/// Returns `len` times `value` in the memory of a list, or in new memory if that is too small.
pub fn reset<T: Clone>(mut list: Vec<T>, len: usize, value: T) -> Vec<T> {
    ensure_capacity(&mut list, len);
    list.clear();
    list.resize(len, value);
    list
}

/// A buffer that begins with a cache line, so that no register of a kernel lies in two.
///
/// [`ScratchReq::aligned`](crate::ScratchReq::aligned) is its size.
#[derive(Debug)]
pub struct AlignedVec<T> {
    all: Vec<T>,
    first: usize,
}

impl<T> Default for AlignedVec<T> {
    fn default() -> Self {
        Self { all: Vec::new(), first: 0 }
    }
}

impl<T: Clone> AlignedVec<T> {
    /// Returns `len` elements, with whatever an earlier call left in them.
    pub fn ensure_len(&mut self, len: usize, value: T) -> &mut [T] {
        self.ensure_bytes((len + CACHE_LINE / size_of::<T>()) * size_of::<T>(), value);
        &mut self.all[self.first..][..len]
    }

    /// Allocates at least so many bytes, as [`AlignedVec::bytes`] counts them.
    pub fn ensure_bytes(&mut self, bytes: usize, value: T) {
        ensure_len(&mut self.all, bytes / size_of::<T>(), value);
        self.first = self.all.as_ptr().align_offset(CACHE_LINE);
    }
}

impl<T> AlignedVec<T> {
    /// Aligns a list.
    pub fn from_vec(all: Vec<T>) -> Self {
        let first = all.as_ptr().align_offset(CACHE_LINE).min(all.len());
        Self { all, first }
    }

    /// Returns the list that holds the memory.
    pub fn into_vec(self) -> Vec<T> {
        self.all
    }

    /// Whether `len` elements fit without an allocation.
    pub fn fits(&self, len: usize) -> bool {
        len + CACHE_LINE / size_of::<T>() <= self.all.len()
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<T>()
    }
}

impl<T> std::ops::DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[self.first..]
    }
}

impl<T> std::ops::Deref for AlignedVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.all[self.first..]
    }
}

/// Memory that a workspace keeps from call to call.
pub trait ReusableBuffer {
    /// What it holds.
    fn requirement(&self) -> ScratchReq;
    /// Frees its memory.
    fn release(&mut self);
}

impl<T> ReusableBuffer for Vec<T> {
    fn requirement(&self) -> ScratchReq {
        ScratchReq::new::<T>(self.capacity())
    }
    fn release(&mut self) {
        *self = Self::new();
    }
}

impl<T> ReusableBuffer for AlignedVec<T> {
    fn requirement(&self) -> ScratchReq {
        ScratchReq::from_bytes(self.bytes())
    }
    fn release(&mut self) {
        *self = Self::default();
    }
}

/// Frees buffers that exceed their requirements, if a workspace would exceed a limit because of them.
///
/// `others` is what the next call requires besides the buffers.
pub fn release_excess(
    limit: usize,
    others: ScratchReq,
    buffers: &mut [(&mut dyn ReusableBuffer, ScratchReq)],
) {
    let largest = buffers.iter().map(|(buffer, required)| buffer.requirement().or(*required));
    if ScratchReq::all_of(largest).and(others).bytes() > limit {
        let exceeding = buffers.iter_mut().filter(|(buffer, required)| buffer.requirement() > *required);
        exceeding.for_each(|(buffer, _)| buffer.release());
    }
}

/// Returns freed memory to the system, now and at once from now on.
///
/// A process then holds little more than it uses, and requests pages again and again. Does nothing where the C library is
/// not glibc.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: both only change how the allocator trades with the system; they may be called at any time, by any thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 18);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 18);
        libc::malloc_trim(0);
    }
}

#[cfg(target_os = "linux")]
fn request_large_pages<T>(buffer: &[T]) {
    const PAGE: usize = 4096;
    let start = buffer.as_ptr().cast::<u8>();
    let skip = start.align_offset(PAGE);
    let Some(len) = size_of_val(buffer).checked_sub(skip) else { return };
    // SAFETY: the range is inside of `buffer`; the advice changes neither contents nor access, and failure does no harm.
    unsafe {
        libc::madvise(start.add(skip).cast_mut().cast(), len, libc::MADV_HUGEPAGE);
    }
}

#[cfg(not(target_os = "linux"))]
fn request_large_pages<T>(_: &[T]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_buffers_above_their_requirements_are_released_and_only_above_the_limit() {
        let kept = |limit| {
            let (mut list, mut rows): (Vec<u8>, AlignedVec<f32>) = (vec![0; 100], AlignedVec::default());
            rows.ensure_len(10, 0.0);
            let required = [ScratchReq::new::<u8>(60), ScratchReq::aligned::<f32>(20)];
            let mut buffers: [(&mut dyn ReusableBuffer, ScratchReq); 2] =
                [(&mut list, required[0]), (&mut rows, required[1])];
            release_excess(limit, ScratchReq::from_bytes(1), &mut buffers);
            [list.capacity(), rows.bytes()]
        };
        let all = 100 + (4 * 20 + 64) + 1;
        assert_eq!(kept(all), [100, 4 * 10 + 64]);
        assert_eq!(kept(all - 1), [0, 4 * 10 + 64]);
    }
}
