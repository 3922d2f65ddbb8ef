//! Allocator of the native module: large blocks go back to the system when they are freed.
//!
//! The C library keeps freed memory for later calls. The buffers of a loss would then be resident
//! for the whole training run, next to the memory of other libraries.
use std::alloc::{GlobalAlloc, Layout, System};

/// Smallest block that is mapped separately: smaller ones are reused without page faults.
const LARGE_BYTES: usize = 4 << 20;
/// Alignment of mapped memory.
const PAGE_BYTES: usize = 4096;

/// Allocates large blocks by `mmap`, others by the C library.
pub struct LargeBlocks;

fn is_large(size: usize, align: usize) -> bool {
    size >= LARGE_BYTES && align <= PAGE_BYTES
}

// SAFETY: size and alignment of a block decide which allocator it belongs to. `mmap` returns zeroed
// memory of the size, aligned to pages; `mremap` keeps the contents.
unsafe impl GlobalAlloc for LargeBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !is_large(layout.size(), layout.align()) {
            // SAFETY: the caller's layout.
            return unsafe { System.alloc(layout) };
        }
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping does not overlap others.
        let block = unsafe { libc::mmap(std::ptr::null_mut(), layout.size(), protection, flags, -1, 0) };
        if block == libc::MAP_FAILED { std::ptr::null_mut() } else { block.cast() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_large(layout.size(), layout.align()) {
            // SAFETY: the caller's layout; new mappings are zero.
            true => unsafe { self.alloc(layout) },
            // SAFETY: the caller's layout.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match is_large(layout.size(), layout.align()) {
            // SAFETY: the block was mapped with this size.
            true => drop(unsafe { libc::munmap(block.cast(), layout.size()) }),
            // SAFETY: the block comes from the C library.
            false => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        match (is_large(layout.size(), layout.align()), is_large(new_size, layout.align())) {
            // SAFETY: the block comes from the C library, and remains there.
            (false, false) => unsafe { System.realloc(block, layout, new_size) },
            // SAFETY: the block was mapped with this size; it may move.
            (true, true) => unsafe {
                let moved = libc::mremap(block.cast(), layout.size(), new_size, libc::MREMAP_MAYMOVE);
                if moved == libc::MAP_FAILED { std::ptr::null_mut() } else { moved.cast() }
            },
            // SAFETY: both blocks have at least the copied bytes; the old one is freed only if the
            // new one exists.
            (true, false) | (false, true) => unsafe {
                let new_block = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
                if !new_block.is_null() {
                    std::ptr::copy_nonoverlapping(block, new_block, layout.size().min(new_size));
                    self.dealloc(block, layout);
                }
                new_block
            },
        }
    }
}
