//! Thread pool of the process; a forked child gets its own.
//!
//! The threads of a pool do not exist in a forked child, so that a call into the parent's pool
//! would wait forever. The pool is replaced when the process id has changed.
use std::{
    process,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
};

use pyo3::{
    PyResult,
    exceptions::{PyRuntimeError, PyValueError},
    pyfunction,
};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// A pool, and the process that its threads belong to.
struct ProcessPool {
    process_id: u32,
    threads: usize,
    pool: ThreadPool,
    /// The pool that was created before, if any.
    previous: *const ProcessPool,
}

/// Largest number of threads; more would exhaust the system and not the processors.
const MAX_THREADS: usize = 1024;

static LATEST: AtomicPtr<ProcessPool> = AtomicPtr::new(std::ptr::null_mut());
/// Number of threads that the user chose; 0 is the default of rayon.
static CHOSEN_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` in the pool of this process.
pub fn install<T: Send>(work: impl FnOnce() -> T + Send) -> PyResult<T> {
    Ok(process_pool()?.pool.install(work))
}

/// Returns the pool of this process; creates it for the first call.
fn process_pool() -> PyResult<&'static ProcessPool> {
    let (process_id, threads) = (process::id(), CHOSEN_THREADS.load(Ordering::Acquire));
    let latest = LATEST.load(Ordering::Acquire);
    let mut next: *const ProcessPool = latest;
    // SAFETY: the pointers are null or come from `Box::leak`, and pools are never freed.
    while let Some(pool) = unsafe { next.as_ref() } {
        if (pool.process_id, pool.threads) == (process_id, threads) {
            return Ok(pool);
        }
        next = pool.previous;
    }
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("panda-{index}"));
    let pool = pool.build().map_err(|error| PyRuntimeError::new_err(format!("threads: {error}")))?;
    // Pools are kept, one for each number of threads: calls of other threads may use them, and in a
    // forked child a destructor would wait for threads that do not exist.
    let pool = Box::leak(Box::new(ProcessPool { process_id, threads, pool, previous: latest }));
    let pool = std::ptr::from_mut(pool);
    LATEST.store(pool, Ordering::Release);
    // SAFETY: the pool was leaked above.
    Ok(unsafe { &*pool })
}

/// Returns the number of threads of a call.
#[pyfunction]
pub fn num_threads() -> PyResult<usize> {
    Ok(process_pool()?.pool.current_num_threads())
}

/// Sets the number of threads of later calls; the results do not depend on it.
#[pyfunction]
pub fn set_num_threads(threads: i64) -> PyResult<()> {
    let Some(threads) = usize::try_from(threads).ok().filter(|count| (1..=MAX_THREADS).contains(count))
    else {
        return Err(PyValueError::new_err(format!(
            "threads: expected a number from 1 to {MAX_THREADS}, found {threads}"
        )));
    };
    CHOSEN_THREADS.store(threads, Ordering::Release);
    Ok(())
}
