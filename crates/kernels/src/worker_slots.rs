//! Scratch memory of tasks: as many slots as a plan allows, whatever the number of threads.
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{ReusableBuffer, ScratchReq};

/// Scratch memory of tasks; each thread has a slot of its own, if there are enough.
///
/// A task that holds a slot neither locks another nor waits for tasks of its own.
#[derive(Debug)]
pub struct WorkerSlots<T>(Vec<Mutex<T>>);

impl<T> Default for WorkerSlots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> WorkerSlots<T> {
    /// Changes the number of slots, at least one; slots that remain keep their memory.
    pub fn resize(&mut self, count: usize) {
        let count = count.max(1);
        self.0.reserve_exact(count.saturating_sub(self.0.len()));
        self.0.resize_with(count, Mutex::default);
    }
}

impl<T> WorkerSlots<T> {
    /// Number of slots.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Locks the slot of the calling thread, which other threads may share.
    ///
    /// # Panics
    /// If there is no slot.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.0[rayon::current_thread_index().unwrap_or(0) % self.0.len()])
    }

    /// All slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|slot| slot.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// The requirement of a slot around `content`.
    pub fn requirement_of(content: ScratchReq) -> ScratchReq {
        ScratchReq::new::<Mutex<T>>(1).and(content)
    }
}

impl<T: ReusableBuffer> ReusableBuffer for WorkerSlots<T> {
    fn requirement(&self) -> ScratchReq {
        ScratchReq::all_of(self.0.iter().map(|slot| Self::requirement_of(lock(slot).requirement())))
    }

    fn release(&mut self) {
        self.0 = Vec::new();
    }
}

/// Locks also after a panic: whatever it left behind is only ever overwritten.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
