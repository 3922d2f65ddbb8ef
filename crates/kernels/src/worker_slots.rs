//! Scratch memory of parallel tasks: a planned number of locked slots.
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{ReusableBuffer, ScratchReq};

/// Scratch memory of tasks: one slot for each thread, up to a planned number.
///
/// While a task holds a slot, it must not lock another slot nor wait for subtasks.
#[derive(Debug)]
pub struct WorkerSlots<T>(Vec<Mutex<T>>);

impl<T> Default for WorkerSlots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> WorkerSlots<T> {
    /// Changes the number of slots, at least 1; remaining slots keep their memory.
    pub fn resize(&mut self, count: usize) {
        let count = count.max(1);
        self.0.reserve_exact(count.saturating_sub(self.0.len()));
        self.0.resize_with(count, Mutex::default);
    }
}

impl<T> WorkerSlots<T> {
    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Locks the slot of the calling thread; other threads may share it.
    ///
    /// # Panics
    /// If there is no slot.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.0[rayon::current_thread_index().unwrap_or(0) % self.0.len()])
    }

    /// Iterates over all slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|slot| slot.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the memory of a slot with the given contents.
    pub fn requirement_of(content: ScratchReq) -> ScratchReq {
        ScratchReq::new::<Mutex<T>>(1).and(content)
    }
}

impl<T: ReusableBuffer> ReusableBuffer for WorkerSlots<T> {
    fn allocated(&self) -> ScratchReq {
        ScratchReq::all_of(self.0.iter().map(|slot| Self::requirement_of(lock(slot).allocated())))
    }

    fn release(&mut self) {
        self.0 = Vec::new();
    }
}

/// Locks a mutex, also after a panic: the contents are only ever overwritten.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
