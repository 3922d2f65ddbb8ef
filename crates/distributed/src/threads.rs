//! `ThreadCommunicator`: threads as ranks, for single-process runs and tests.
//!
//! It is a collective communicator over shared memory.
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use crate::Communicator;

/// A communicator between threads that share memory.
pub struct ThreadCommunicator {
    rank: usize,
    shared: Arc<SharedMemory>,
}

/// Memory that all ranks share.
struct SharedMemory {
    /// The latest bytes of each rank.
    sent: Vec<Mutex<Vec<u8>>>,
    barrier: Barrier,
}

impl ThreadCommunicator {
    /// Creates the only rank of a group.
    pub(crate) fn single() -> Self {
        ThreadCommunicator { rank: 0, shared: Arc::new(SharedMemory::new(1)) }
    }

    /// Runs `work` in `size` threads, each with its own rank.
    ///
    /// Returns their results in the order of the ranks.
    ///
    /// # Panics
    /// If one of the threads panics and the others do not wait for it.
    pub fn run<T: Send>(size: usize, work: impl Fn(ThreadCommunicator) -> T + Sync) -> Vec<T> {
        let shared = Arc::new(SharedMemory::new(size));
        std::thread::scope(|scope| {
            let run = |rank| {
                let (communicator, work) = (ThreadCommunicator { rank, shared: shared.clone() }, &work);
                scope.spawn(move || work(communicator))
            };
            let threads: Vec<_> = (0..size).map(run).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
        })
    }

    /// Publishes the bytes of this rank, and reads those of each rank.
    fn exchange(&self, send: &[u8], mut read: impl FnMut(usize, &[u8])) {
        let lock = |rank: usize| self.shared.sent[rank].lock().unwrap_or_else(PoisonError::into_inner);
        lock(self.rank).clone_from(&send.to_vec());
        self.shared.barrier.wait();
        (0..self.size()).for_each(|rank| read(rank, &lock(rank)));
        // No rank sends again before all have read.
        self.shared.barrier.wait();
    }
}

impl SharedMemory {
    fn new(size: usize) -> Self {
        SharedMemory { sent: (0..size).map(|_| Mutex::default()).collect(), barrier: Barrier::new(size) }
    }
}

impl Communicator for ThreadCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.sent.len()
    }

    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) {
        let block_len = send.len() / self.size();
        let own_block = self.rank * block_len..(self.rank + 1) * block_len;
        self.exchange(send, |rank, sent| {
            receive[rank * block_len..][..block_len].copy_from_slice(&sent[own_block.clone()]);
        });
    }

    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]) {
        let block_len = send.len();
        self.exchange(send, |rank, sent| receive[rank * block_len..][..block_len].copy_from_slice(sent));
    }
}
