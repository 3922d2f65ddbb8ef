//! Global allocator of the memory tests: counts bytes and allocations.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest single allocation, in bytes.
static LARGEST_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Bytes allocated now.
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Largest value of [`LIVE_BYTES`] so far.
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sizes of the allocations of at least [`LARGE_ALLOCATION`] bytes.
static LARGE_SIZES: [AtomicUsize; 1 << 10] = [const { AtomicUsize::new(0) }; 1 << 10];
/// Number of these allocations.
static LARGE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Smallest allocation, in bytes, that [`large_allocations`] reports.
pub(crate) const LARGE_ALLOCATION: usize = 32 << 10;

thread_local! {
    /// Allocations of this thread.
    static THREAD_ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct CountingAllocator;

// SAFETY: every call goes to the system's allocator unchanged; the counters do not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        THREAD_ALLOCATIONS.set(THREAD_ALLOCATIONS.get() + 1);
        LARGEST_BYTES.fetch_max(layout.size(), Relaxed);
        if layout.size() >= LARGE_ALLOCATION {
            let index = LARGE_COUNT.fetch_add(1, Relaxed);
            LARGE_SIZES[index % LARGE_SIZES.len()].store(layout.size(), Relaxed);
        }
        PEAK_BYTES.fetch_max(LIVE_BYTES.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Lock that a test holds while it runs: the counters are process-wide.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    // A lock poisoned by a failed test is still valid.
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of some work over all threads, and its result.
pub(crate) struct Measurement<T> {
    /// Largest single allocation, in bytes.
    pub largest_allocation: usize,
    /// Peak growth of the live bytes.
    pub peak_growth: usize,
    pub result: T,
}

/// Runs `work` and measures its memory.
pub(crate) fn measure<T>(work: impl FnOnce() -> T) -> Measurement<T> {
    let before = LIVE_BYTES.load(Relaxed);
    LARGEST_BYTES.store(0, Relaxed);
    PEAK_BYTES.store(before, Relaxed);
    let result = work();
    Measurement {
        largest_allocation: LARGEST_BYTES.load(Relaxed),
        peak_growth: PEAK_BYTES.load(Relaxed) - before,
        result,
    }
}

/// Sizes of all allocations of at least [`LARGE_ALLOCATION`] bytes while `work` runs.
///
/// In bytes, over all threads.
pub(crate) fn large_allocations<T>(work: impl FnOnce() -> T) -> (Vec<usize>, T) {
    LARGE_COUNT.store(0, Relaxed);
    let result = work();
    let count = LARGE_COUNT.load(Relaxed);
    assert!(count <= LARGE_SIZES.len(), "{count} large allocations, more than the table holds");
    (LARGE_SIZES[..count].iter().map(|size| size.load(Relaxed)).collect(), result)
}

/// Peak growth of resident memory while `work` runs, in bytes.
///
/// None where `/proc` does not report it.
pub(crate) fn resident_growth<T>(work: impl FnOnce() -> T) -> (Option<usize>, T) {
    let status = |name: &str| {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kilobytes| kilobytes << 10)
    };
    // Resets the peak `VmHWM`.
    let before = std::fs::write("/proc/self/clear_refs", "5").ok().and_then(|()| status("VmRSS"));
    let result = work();
    (status("VmHWM").zip(before).map(|(peak, before)| peak.saturating_sub(before)), result)
}

/// Bytes allocated now.
pub(crate) fn live_bytes() -> usize {
    LIVE_BYTES.load(Relaxed)
}

/// Number of allocations of this thread while `work` runs.
pub(crate) fn allocation_count(work: impl FnOnce()) -> usize {
    let before = THREAD_ALLOCATIONS.get();
    work();
    THREAD_ALLOCATIONS.get() - before
}
