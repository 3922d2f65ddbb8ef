//! Buffers of tasks: so many as a plan allows, whatever the number of threads.
use std::sync::{Mutex, MutexGuard, PoisonError};

use kernels::{Lines, Real, grow};

/// What one task at a time works in.
#[derive(Debug)]
pub struct Scratch<F> {
    /// What products pack into.
    pub packing: Lines<F>,
    scores: Vec<F>,
    found: Vec<F>,
}

impl<F> Default for Scratch<F> {
    fn default() -> Self {
        Self { packing: Lines::default(), scores: Vec::new(), found: Vec::new() }
    }
}

impl<F: Real> Scratch<F> {
    /// Room for scores and for as many other numbers, whatever an earlier task left there, beside that for packing.
    pub(crate) fn rooms(&mut self, scores: usize, found: usize) -> (&mut Lines<F>, &mut [F], &mut [F]) {
        grow(&mut self.scores, scores, F::ZERO);
        grow(&mut self.found, found, F::ZERO);
        (&mut self.packing, &mut self.scores[..scores], &mut self.found[..found])
    }
}

/// The scratches of a call. A task that holds one neither asks for another nor waits for tasks of its own.
#[derive(Debug)]
pub struct Scratches<F>(Vec<Mutex<Scratch<F>>>);

impl<F: Real> Scratches<F> {
    pub(crate) fn new(count: usize) -> Self {
        Self((0..count.max(1)).map(|_| Mutex::default()).collect())
    }

    /// One that is free, or will be soon.
    pub fn lock(&self) -> MutexGuard<'_, Scratch<F>> {
        let own = rayon::current_thread_index().unwrap_or(0) % self.0.len();
        // What a task that panicked left there is overwritten like anything else.
        self.0[own].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
