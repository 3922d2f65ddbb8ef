//! The system's allocator with counters beside it.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest single allocation, bytes alive now, and the most that ever were.
static LARGEST: AtomicUsize = AtomicUsize::new(0);
static ALIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Sizes of the allocations of at least [`NOTED`] bytes, and how many there were.
static SIZES: [AtomicUsize; 1 << 10] = [const { AtomicUsize::new(0) }; 1 << 10];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Bytes from which on [`large`] tells of an allocation.
pub const NOTED: usize = 32 << 10;

thread_local! {
    /// Allocations of this thread.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; only counters are kept beside it, which allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        LARGEST.fetch_max(layout.size(), Relaxed);
        if layout.size() >= NOTED {
            let at = COUNT.fetch_add(1, Relaxed);
            SIZES[at % SIZES.len()].store(layout.size(), Relaxed);
        }
        PEAK.fetch_max(ALIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// To be held by a test from its first line to its last: the allocator counts for the whole process.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed leaves nothing behind that the next would mind.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Largest allocation and growth of the live bytes while `work` runs, in bytes, over all threads.
pub fn measure<T>(work: impl FnOnce() -> T) -> (usize, usize, T) {
    let before = ALIVE.load(Relaxed);
    LARGEST.store(0, Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    (LARGEST.load(Relaxed), PEAK.load(Relaxed) - before, result)
}

/// Bytes of every allocation of at least [`NOTED`] bytes while `work` runs, over all threads.
pub fn large<T>(work: impl FnOnce() -> T) -> (Vec<usize>, T) {
    COUNT.store(0, Relaxed);
    let result = work();
    let count = COUNT.load(Relaxed);
    assert!(count <= SIZES.len(), "{count} large allocations are too many to note");
    (SIZES[..count].iter().map(|size| size.load(Relaxed)).collect(), result)
}

/// Growth of this process's resident memory at its peak while `work` runs, in bytes; none where the kernel does not tell.
pub fn resident<T>(work: impl FnOnce() -> T) -> (Option<usize>, T) {
    let status = |name: &str| {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kilobytes| kilobytes << 10)
    };
    // The kernel forgets the peak so far.
    let before = std::fs::write("/proc/self/clear_refs", "5").ok().and_then(|()| status("VmRSS"));
    let result = work();
    (status("VmHWM").zip(before).map(|(peak, before)| peak.saturating_sub(before)), result)
}

/// Bytes alive now.
pub fn alive() -> usize {
    ALIVE.load(Relaxed)
}

/// Allocations that this thread makes while `work` runs.
pub fn calls(work: impl FnOnce()) -> usize {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}
