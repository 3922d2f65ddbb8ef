//! Rooms that tasks work in, as many as there are tasks at once.
use std::sync::Mutex;

use kernels::{AlignedVec, Real};

/// Buffers that stay from task to task.
pub struct Pool<F>(Mutex<Vec<AlignedVec<F>>>);

impl<F> Default for Pool<F> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<F: Real> Pool<F> {
    /// Lends a buffer of so many elements, whatever is in them.
    pub fn with<T>(&self, len: usize, work: impl FnOnce(&mut [F]) -> T) -> T {
        let lock = || self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut lines = lock().pop().unwrap_or_default();
        let result = work(lines.ensure_len(len, F::ZERO));
        lock().push(lines);
        result
    }
}
