//! Large buffers from the system.
//!
//! Fresh memory comes in pages, each at its first touch, for 0.2 to 1 µs: tens of milliseconds where all scores of a
//! batch are kept. Pages of 2 MiB are asked for, which the system may refuse.
#![allow(unsafe_code)]

use crate::{Real, par_for, parts_mut};

/// Below it, small pages will do.
const LARGE: usize = 4 << 20;

/// `len` times `value`, 0 as a rule: zeros are not written before someone else writes there.
pub fn filled<T: Clone>(len: usize, value: T) -> Vec<T> {
    let buffer = vec![value; len];
    if size_of_val(&*buffer) >= LARGE {
        in_large_pages(&buffer);
    }
    buffer
}

/// Elements that a task fills.
const PIECE: usize = 1 << 18;

/// `len` zeros that are written at once: for results, whose size is then known from the start, and which are often read
/// first, as sums are. A fresh page that is read first gets its own place later, and then interrupts all threads.
pub fn zeros<F: Real>(len: usize) -> Vec<F> {
    let mut buffer = filled(len, F::ZERO);
    par_for(parts_mut(&mut buffer, PIECE), |_, piece| piece.fill(F::ZERO));
    buffer
}

/// From now on, what is freed goes back to the system at once, and freed memory that was kept goes back now: a process then holds
/// little more than it uses, and asks for pages again and again. Where the C library is another than glibc, nothing happens.
pub fn give_back_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: both only change how the allocator trades with the system; they may be called at any time, by any thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 18);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 18);
        libc::malloc_trim(0);
    }
}

#[cfg(target_os = "linux")]
fn in_large_pages<T>(buffer: &[T]) {
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
fn in_large_pages<T>(_: &[T]) {}
