//! Threads of one process as ranks: for tests, and to try what many processes would do.
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use crate::Wire;

/// One of some threads that are connected by memory.
pub struct Threads {
    rank: usize,
    shared: Arc<Shared>,
}

struct Shared {
    /// What each rank has sent.
    sent: Vec<Mutex<Vec<u8>>>,
    barrier: Barrier,
}

impl Threads {
    /// Runs the same in `count` threads, each with its own end of a wire; returns what they return, in the order of their ranks.
    ///
    /// # Panics
    /// If one of them does and the others are not left waiting for it.
    pub fn run<T: Send>(count: usize, work: impl Fn(Threads) -> T + Sync) -> Vec<T> {
        let sent = (0..count).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared { sent, barrier: Barrier::new(count) });
        std::thread::scope(|scope| {
            let run = |rank| {
                let (wire, work) = (Threads { rank, shared: shared.clone() }, &work);
                scope.spawn(move || work(wire))
            };
            let threads: Vec<_> = (0..count).map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
        })
    }

    /// Shows everybody what this rank sends, and reads what each has sent.
    fn exchange(&self, send: &[u8], mut read: impl FnMut(usize, &[u8])) {
        let lock = |rank: usize| self.shared.sent[rank].lock().unwrap_or_else(PoisonError::into_inner);
        lock(self.rank).clone_from(&send.to_vec());
        self.shared.barrier.wait();
        (0..self.count()).for_each(|rank| read(rank, &lock(rank)));
        // Nobody sends anew before all have read.
        self.shared.barrier.wait();
    }
}

impl Wire for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.shared.sent.len()
    }

    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) {
        let block = send.len() / self.count();
        let mine = self.rank * block..(self.rank + 1) * block;
        self.exchange(send, |rank, sent| {
            receive[rank * block..][..block].copy_from_slice(&sent[mine.clone()]);
        });
    }

    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]) {
        let block = send.len();
        self.exchange(send, |rank, sent| receive[rank * block..][..block].copy_from_slice(sent));
    }
}
