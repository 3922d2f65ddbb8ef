//! Prefetch: worker threads compute batches ahead of their use, in order.
//!
//! At most `capacity` items are computed or waiting at a time, so that memory is bounded for any
//! consumer. An item does not depend on the thread that computes it.
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

/// Batches that are computed or ready in addition to the current one.
pub(crate) const PREFETCHED_BATCHES: usize = 3;

/// Shared state of the worker threads and the consumer.
pub(crate) struct Prefetcher<T> {
    state: Mutex<PrefetchState<T>>,
    state_changed: Condvar,
    /// Number of items.
    count: usize,
    /// Largest number of items that are computed or waiting.
    capacity: usize,
}

/// The state that the lock of a [`Prefetcher`] protects.
struct PrefetchState<T> {
    /// Index of the next item to compute.
    next_index: usize,
    /// Items that are ready, by index.
    ready: BTreeMap<usize, T>,
    /// Number of items that the consumer has taken.
    num_used: usize,
    /// True once the consumer is dropped.
    is_closed: bool,
    /// Number of running workers.
    num_workers: usize,
    /// True once a worker has panicked.
    has_panicked: bool,
}

impl<T: Send> Prefetcher<T> {
    /// Creates a prefetcher of items 0 to `count`.
    ///
    /// At most `capacity` items wait for their use.
    pub(crate) fn new(count: usize, capacity: usize) -> Self {
        let state = PrefetchState {
            next_index: 0,
            ready: BTreeMap::new(),
            num_used: 0,
            is_closed: false,
            num_workers: 0,
            has_panicked: false,
        };
        Prefetcher {
            state: Mutex::new(state),
            state_changed: Condvar::new(),
            count,
            capacity: capacity.max(1),
        }
    }

    /// Starts the workers; returns the items in order.
    ///
    /// The workers end with the last item, or when the consumer is dropped.
    pub(crate) fn run<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        workers: usize,
        compute: &'scope (impl Fn(usize) -> T + Sync),
    ) -> PrefetchedItems<'scope, T> {
        let workers = workers.clamp(1, self.capacity);
        self.lock().num_workers = workers;
        for _ in 0..workers {
            scope.spawn(move || {
                let _guard = WorkerGuard(self);
                while let Some(index) = self.next_index() {
                    let item = compute(index);
                    self.lock().ready.insert(index, item);
                    self.state_changed.notify_all();
                }
            });
        }
        PrefetchedItems(self)
    }

    fn lock(&self) -> MutexGuard<'_, PrefetchState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for free capacity; returns the next index, or none at the end.
    fn next_index(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if state.is_closed || state.has_panicked || state.next_index == self.count {
                return None;
            }
            if state.next_index < state.num_used + self.capacity {
                state.next_index += 1;
                return Some(state.next_index - 1);
            }
            state = self.state_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Counts a worker as ended on drop, also in a panic.
///
/// The consumer would otherwise wait for ever, or mistake the panic for the end.
struct WorkerGuard<'a, T: Send>(&'a Prefetcher<T>);

impl<T: Send> Drop for WorkerGuard<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.num_workers -= 1;
        state.has_panicked |= std::thread::panicking();
        drop(state);
        self.0.state_changed.notify_all();
    }
}

/// The items in order.
pub(crate) struct PrefetchedItems<'a, T: Send>(&'a Prefetcher<T>);

impl<T: Send> Iterator for PrefetchedItems<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let mut state = self.0.lock();
        loop {
            let index = state.num_used;
            if let Some(item) = state.ready.remove(&index) {
                state.num_used += 1;
                drop(state);
                self.0.state_changed.notify_all();
                return Some(item);
            }
            if index == self.0.count {
                return None;
            }
            if state.has_panicked || state.num_workers == 0 {
                drop(state);
                panic!("a thread that loads batches has panicked");
            }
            state = self.0.state_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T: Send> Drop for PrefetchedItems<'_, T> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.state_changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn items_arrive_in_order_and_within_the_capacity() {
        for (count, capacity, workers) in
            [(0, 3, 2), (1, 1, 4), (50, 1, 3), (50, 4, 2), (50, 9, 9), (3, 100, 5)]
        {
            let (computed, used) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let compute = |index: usize| {
                let count = computed.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(count <= used.load(Ordering::SeqCst) + capacity.max(1) + 1);
                // Later ones are often ready first.
                std::thread::sleep(Duration::from_micros(if index.is_multiple_of(3) { 300 } else { 10 }));
                index * index
            };
            let prefetcher = Prefetcher::new(count, capacity);
            let items: Vec<usize> = std::thread::scope(|scope| {
                prefetcher
                    .run(scope, workers, &compute)
                    .inspect(|_| {
                        used.fetch_add(1, Ordering::SeqCst);
                    })
                    .collect()
            });
            assert_eq!(items, (0..count).map(|index| index * index).collect::<Vec<_>>());
        }
    }

    #[test]
    fn dropping_the_consumer_ends_the_workers() {
        let prefetcher = Prefetcher::new(1_000_000, 4);
        std::thread::scope(|scope| {
            let mut items = prefetcher.run(scope, 3, &|index| index);
            assert_eq!(items.by_ref().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        });
    }

    #[test]
    fn a_panic_of_a_worker_ends_the_consumer_and_all_workers() {
        for workers in 1..4 {
            let (prefetcher, used) = (Prefetcher::new(9, 3), AtomicUsize::new(0));
            let compute = |index: usize| assert!(index != 3);
            let run = || {
                std::thread::scope(|scope| {
                    prefetcher.run(scope, workers, &compute).for_each(|()| {
                        used.fetch_add(1, Ordering::SeqCst);
                    });
                });
            };
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
            assert!(used.load(Ordering::SeqCst) <= 3, "items after the missing one must not be used");
        }
    }
}
