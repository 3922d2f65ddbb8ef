//! Things that are made ahead of their use, by some threads, and used in order.
//!
//! At most `room` are made or waiting at a time, so that memory is bounded whatever the consumer does. What is made does not depend
//! on who makes it.
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;

/// Batches that are made or wait ready while one is computed.
pub(crate) const PREFETCHED_BATCHES: usize = 3;

/// What makers and the consumer share.
pub(crate) struct Prefetcher<T> {
    state: Mutex<PrefetchState<T>>,
    changed: Condvar,
    count: usize,
    room: usize,
}

struct PrefetchState<T> {
    /// The next to be made.
    next: usize,
    /// Those that are ready.
    ready: BTreeMap<usize, T>,
    /// Those that were used.
    used: usize,
    /// Whether nobody wants any more.
    closed: bool,
    /// Makers at work.
    makers: usize,
    /// Whether one of them panicked.
    panicked: bool,
}

impl<T: Send> Prefetcher<T> {
    /// Things 0 to `count`, of which at most `room` are there before their use.
    pub fn new(count: usize, room: usize) -> Self {
        let state = PrefetchState {
            next: 0,
            ready: BTreeMap::new(),
            used: 0,
            closed: false,
            makers: 0,
            panicked: false,
        };
        Prefetcher { state: Mutex::new(state), changed: Condvar::new(), count, room: room.max(1) }
    }

    /// Starts threads that make them, and gives them in order. The threads end with the last thing, or when the consumer is dropped.
    pub fn run<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        workers: usize,
        make: &'scope (impl Fn(usize) -> T + Sync),
    ) -> PrefetchedItems<'scope, T> {
        let workers = workers.clamp(1, self.room);
        self.lock().makers = workers;
        for _ in 0..workers {
            scope.spawn(move || {
                let _gone = WorkerGuard(self);
                while let Some(index) = self.take() {
                    let made = make(index);
                    self.lock().ready.insert(index, made);
                    self.changed.notify_all();
                }
            });
        }
        PrefetchedItems(self)
    }

    fn lock(&self) -> MutexGuard<'_, PrefetchState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next thing to be made, as soon as there is room for it; none if there is nothing left to do.
    fn take(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if state.closed || state.panicked || state.next == self.count {
                return None;
            }
            if state.next < state.used + self.room {
                state.next += 1;
                return Some(state.next - 1);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Says that a maker has ended, also where it panicked: the consumer would wait for ever, or take it for the end.
struct WorkerGuard<'a, T: Send>(&'a Prefetcher<T>);

impl<T: Send> Drop for WorkerGuard<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.makers -= 1;
        state.panicked |= std::thread::panicking();
        drop(state);
        self.0.changed.notify_all();
    }
}

/// Takes things in order.
pub(crate) struct PrefetchedItems<'a, T: Send>(&'a Prefetcher<T>);

impl<T: Send> Iterator for PrefetchedItems<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let mut state = self.0.lock();
        loop {
            let at = state.used;
            if let Some(thing) = state.ready.remove(&at) {
                state.used += 1;
                drop(state);
                self.0.changed.notify_all();
                return Some(thing);
            }
            if at == self.0.count {
                return None;
            }
            if state.panicked || state.makers == 0 {
                drop(state);
                panic!("a thread that makes batches has panicked");
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T: Send> Drop for PrefetchedItems<'_, T> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn things_come_in_order_and_never_more_than_there_is_room_for() {
        for (count, room, workers) in [(0, 3, 2), (1, 1, 4), (50, 1, 3), (50, 4, 2), (50, 9, 9), (3, 100, 5)]
        {
            let (made, used) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let make = |index: usize| {
                let ahead = made.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(ahead <= used.load(Ordering::SeqCst) + room.max(1) + 1);
                // Later ones are often ready first.
                std::thread::sleep(Duration::from_micros(if index.is_multiple_of(3) { 300 } else { 10 }));
                index * index
            };
            let ahead = Prefetcher::new(count, room);
            let found: Vec<usize> = std::thread::scope(|scope| {
                ahead
                    .run(scope, workers, &make)
                    .inspect(|_| {
                        used.fetch_add(1, Ordering::SeqCst);
                    })
                    .collect()
            });
            assert_eq!(found, (0..count).map(|index| index * index).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_consumer_that_goes_away_ends_the_makers() {
        let ahead = Prefetcher::new(1_000_000, 4);
        std::thread::scope(|scope| {
            let mut things = ahead.run(scope, 3, &|index| index);
            assert_eq!(things.by_ref().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        });
    }

    #[test]
    fn a_maker_that_panics_ends_consumer_and_makers_for_any_number_of_them() {
        for workers in 1..4 {
            let (ahead, used) = (Prefetcher::new(9, 3), AtomicUsize::new(0));
            let make = |index: usize| assert!(index != 3);
            let run = || {
                std::thread::scope(|scope| {
                    ahead.run(scope, workers, &make).for_each(|()| {
                        used.fetch_add(1, Ordering::SeqCst);
                    });
                });
            };
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
            assert!(used.load(Ordering::SeqCst) <= 3, "what comes after the lost one is not used");
        }
    }
}
