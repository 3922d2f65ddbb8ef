//! `ProcessMutex`: a mutex that reports an error in a forked child instead of waiting forever.
use std::{
    process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use pyo3::{PyResult, exceptions::PyRuntimeError};

/// Process id of a mutex that is not locked.
const NO_PROCESS: u32 = 0;

/// A value that one thread of one process uses at a time.
pub struct ProcessMutex<T> {
    value: Mutex<T>,
    /// Process whose thread has locked the value.
    owner: AtomicU32,
}

impl<T> ProcessMutex<T> {
    /// Creates an unlocked mutex.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), owner: AtomicU32::new(NO_PROCESS) }
    }

    /// Calls `work` with the value, after calls of other threads.
    ///
    /// # Errors
    /// Those of `work`; `RuntimeError` in a forked child whose parent used the value during the
    /// fork: the thread that would unlock it does not exist in the child.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> PyResult<R>) -> PyResult<R> {
        let process = process::id();
        if ![NO_PROCESS, process].contains(&self.owner.load(Ordering::Acquire)) {
            return Err(PyRuntimeError::new_err(
                "recognizer: expected one that no thread used when the process was forked, found one in use; \
                 load the checkpoint in the child",
            ));
        }
        // A call that panicked leaves buffers that the next one overwrites.
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        self.owner.store(process, Ordering::Release);
        let result = work(&mut value);
        self.owner.store(NO_PROCESS, Ordering::Release);
        result
    }
}
