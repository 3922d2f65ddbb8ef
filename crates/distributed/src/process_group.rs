//! The ranks of a run, over a communicator.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::all_reduce::{BUCKET_VALUES, Buckets};
use crate::comm_thread::CommThread;
use crate::{Communicator, Error, Result, ThreadCommunicator, Transfer};

/// This process as one of the ranks of a run.
///
/// All ranks call the same methods in the same order, and each call waits for all ranks. The communicator has a thread of its own, so
/// that an all-reduce runs while this thread computes.
pub struct ProcessGroup {
    pub(crate) thread: CommThread,
    pub(crate) transfer: Transfer,
    pub(crate) bucket_values: usize,
    pub(crate) buckets: Arc<Mutex<Buckets>>,
    step: Arc<AtomicU64>,
}

impl ProcessGroup {
    /// A run in one process.
    pub fn alone() -> Self {
        Self::new(ThreadCommunicator::alone(), Transfer::F32)
    }

    /// A group over a communicator, whose all-reduces send numbers in the given format.
    ///
    /// # Panics
    /// If no thread can be started.
    pub fn new(communicator: impl Communicator + Send + 'static, transfer: Transfer) -> Self {
        Self::connect(|| Some(communicator), transfer).expect("a thread can be started")
    }

    /// A group over the communicator that `connect` makes in the thread that uses it; none if it makes none.
    pub fn connect<C: Communicator>(
        connect: impl FnOnce() -> Option<C> + Send + 'static,
        transfer: Transfer,
    ) -> Option<Self> {
        let thread = CommThread::start(connect)?;
        let (buckets, step) = (Arc::default(), Arc::default());
        Some(ProcessGroup { thread, transfer, bucket_values: BUCKET_VALUES, buckets, step })
    }

    /// The same with buckets of so many values; sums are the same.
    #[must_use]
    pub fn with_bucket_values(mut self, values: usize) -> Self {
        self.bucket_values = values.max(1);
        self
    }

    /// The same, with [`set_step`](Self::set_step) writing to this counter.
    #[must_use]
    pub fn with_step_counter(mut self, step: Arc<AtomicU64>) -> Self {
        self.step = step;
        self
    }

    /// Returns the number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.thread.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.thread.size
    }

    /// Returns the number format of all-reduces.
    pub fn transfer(&self) -> Transfer {
        self.transfer
    }

    /// States the step of the following calls, for messages about lost ranks.
    pub fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::SeqCst);
    }

    /// Returns the values of all ranks, in the order of the ranks.
    ///
    /// # Errors
    /// [`Error::Rank`] for the first rank whose value is of another type.
    pub fn all_gather<T: Serialize + DeserializeOwned>(&mut self, value: &T) -> Result<Vec<T>> {
        let bytes = serde_json::to_vec(value).expect("maps have strings as keys");
        let all = self.thread.begin(|communicator| communicator.all_gather_bytes(bytes)).wait();
        let read = |(rank, bytes): (usize, Vec<u8>)| {
            serde_json::from_slice(&bytes).map_err(|error| Error::Rank { rank, message: error.to_string() })
        };
        all.into_iter().enumerate().map(read).collect()
    }

    /// Waits until all ranks have called it.
    pub fn barrier(&mut self) {
        self.thread.begin(|communicator| communicator.barrier()).wait();
    }

    /// Ends all processes.
    pub fn abort(&mut self) {
        self.thread.begin(|communicator| communicator.abort()).wait();
    }
}
