//! Buffers of tasks: so many as a plan allows, whatever the number of threads.
use std::sync::{Mutex, MutexGuard, PoisonError};

use kernels::{AlignedVec, Real, ensure_len};

/// What one task at a time works in.
#[derive(Debug)]
pub struct Scratch<F> {
    /// What products pack into.
    pub packing: AlignedVec<F>,
    scores: Vec<F>,
    found: Vec<F>,
}

impl<F> Default for Scratch<F> {
    fn default() -> Self {
        Self { packing: AlignedVec::default(), scores: Vec::new(), found: Vec::new() }
    }
}

impl<F: Real> Scratch<F> {
    /// Room for scores and for as many other numbers, whatever an earlier task left there, beside that for packing.
    pub(crate) fn rooms(&mut self, scores: usize, found: usize) -> (&mut AlignedVec<F>, &mut [F], &mut [F]) {
        ensure_len(&mut self.scores, scores, F::ZERO);
        ensure_len(&mut self.found, found, F::ZERO);
        (&mut self.packing, &mut self.scores[..scores], &mut self.found[..found])
    }
}

impl<F> Scratch<F> {
    /// Bytes held: packing, scores, the others.
    pub(crate) fn held(&self) -> [usize; 3] {
        let float = size_of::<F>();
        [self.packing.bytes(), float * self.scores.capacity(), float * self.found.capacity()]
    }
}

/// The scratches of a call. A task that holds one neither asks for another nor waits for tasks of its own.
#[derive(Debug)]
pub struct Scratches<F>(Vec<Mutex<Scratch<F>>>);

impl<F> Default for Scratches<F> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<F: Real> Scratches<F> {
    /// Makes them as many as that, at least one.
    pub(crate) fn count(&mut self, count: usize) {
        self.0.resize_with(count.max(1), Mutex::default);
    }

    /// The same, and makes room in all that a thread may ask for: which one does in a call is chance.
    pub(crate) fn reserve(&mut self, count: usize, [packing, scores, found]: [usize; 3]) {
        self.count(count);
        for scratch in self.0.iter_mut().take(rayon::current_num_threads()) {
            let scratch = scratch.get_mut().unwrap_or_else(PoisonError::into_inner);
            scratch.packing.ensure_bytes(packing, F::ZERO);
            scratch.rooms(scores / size_of::<F>(), found / size_of::<F>());
        }
    }

    /// Bytes that each holds.
    pub(crate) fn held(&mut self) -> impl Iterator<Item = [usize; 3]> + '_ {
        self.0.iter_mut().map(|scratch| scratch.get_mut().unwrap_or_else(PoisonError::into_inner).held())
    }

    /// One that is free, or will be soon.
    pub fn lock(&self) -> MutexGuard<'_, Scratch<F>> {
        let own = rayon::current_thread_index().unwrap_or(0) % self.0.len();
        // What a task that panicked left there is overwritten like anything else.
        self.0[own].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
