//! `ProcessGroup`: the ranks (processes) of a run, with all-reduces during computation.
//!
//! The communicator has a separate thread. A sum over all ranks is divided into buckets:
//!
//! ```text
//! begin_all_reduce   terms arrive in any order, each with its position
//! BucketedSum        a bucket is sent as soon as its last term has arrived
//! Pending::wait      the sums
//! ```
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Communicator, Error, ReduceBuffers, Result, ThreadCommunicator, TransferFormat};

/// Values of a bucket of 25 MB: latency is negligible, and it still fits into a cache.
const BUCKET_VALUES: usize = 25_000_000 / size_of::<f32>();

/// This process as one of the ranks of a run.
///
/// All ranks call the same methods in the same order, and each call waits for all ranks. The
/// communicator has its own thread, so that an all-reduce runs while this thread computes.
pub struct ProcessGroup {
    pub(crate) thread: CommThread,
    transfer: TransferFormat,
    bucket_values: usize,
    buffers: Arc<Mutex<BucketBuffers>>,
    /// The step of the current calls, for messages about lost ranks.
    step: Arc<AtomicU64>,
}

impl ProcessGroup {
    /// Creates the group of a run in one process.
    pub fn single() -> Self {
        Self::new(ThreadCommunicator::single(), TransferFormat::F32)
    }

    /// Creates a group over a communicator.
    ///
    /// `transfer` is the number format of its all-reduces.
    ///
    /// # Panics
    /// If no thread can be started.
    pub fn new(communicator: impl Communicator + Send + 'static, transfer: TransferFormat) -> Self {
        Self::connect(|| Some(communicator), transfer).expect("a thread can be started")
    }

    /// Creates a group over the communicator that `connect` creates.
    ///
    /// `connect` runs in the communicator's own thread.
    ///
    /// Returns `None` if `connect` does.
    pub fn connect<C: Communicator>(
        connect: impl FnOnce() -> Option<C> + Send + 'static,
        transfer: TransferFormat,
    ) -> Option<Self> {
        let thread = CommThread::start(connect)?;
        let (buffers, step) = (Arc::default(), Arc::default());
        Some(ProcessGroup { thread, transfer, bucket_values: BUCKET_VALUES, buffers, step })
    }

    /// Sets the number of values of a bucket; it does not change the sums.
    #[must_use]
    pub fn with_bucket_values(mut self, values: usize) -> Self {
        self.bucket_values = values.max(1);
        self
    }

    /// Sets the counter that [`set_step`](Self::set_step) writes to.
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
    pub fn transfer(&self) -> TransferFormat {
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
        let gathered = self.thread.begin(|communicator| communicator.all_gather_bytes(bytes)).wait();
        let read = |(rank, bytes): (usize, Vec<u8>)| {
            serde_json::from_slice(&bytes).map_err(|error| Error::Rank { rank, message: error.to_string() })
        };
        gathered.into_iter().enumerate().map(read).collect()
    }

    /// Begins to sum terms over all ranks.
    ///
    /// Term `i` has `lengths[i]` values, the same on all ranks; sums have the same bits on all
    /// ranks. Terms arrive with their positions in the list, in any order; `read` passes a term's
    /// values to its argument. No other call may begin before the sums are complete.
    ///
    /// # Errors
    /// [`Error::MissingTerms`]; those of `read`, for which other ranks receive NaN.
    pub fn begin_all_reduce<T, E>(
        &mut self,
        lengths: Vec<usize>,
        terms: Receiver<(usize, T)>,
        read: impl Fn(&T, &mut dyn FnMut(&[f32])) -> std::result::Result<(), E> + Send + 'static,
    ) -> Pending<Result<Vec<Vec<f32>>>>
    where
        T: Send + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let (transfer, bucket_values, buffers) = (self.transfer, self.bucket_values, self.buffers.clone());
        self.thread.begin(move |communicator| {
            let buffers = &mut *buffers.lock().unwrap_or_else(PoisonError::into_inner);
            buffers.bucket.clear();
            let sums = lengths.iter().map(|&length| Vec::with_capacity(length)).collect();
            let lengths = &lengths;
            let sum = BucketedSum {
                communicator,
                transfer,
                buffers,
                bucket_values,
                lengths,
                sums,
                complete_sums: 0,
            };
            sum.run(terms, read)
        })
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

/// Buffers that are kept between sums.
#[derive(Default)]
struct BucketBuffers {
    reduce: ReduceBuffers,
    /// The values of the current bucket.
    bucket: Vec<f32>,
}

/// Sums of a list of terms, in the order of the list.
struct BucketedSum<'a> {
    communicator: &'a mut dyn Communicator,
    transfer: TransferFormat,
    buffers: &'a mut BucketBuffers,
    /// Number of values of a full bucket.
    bucket_values: usize,
    /// Number of values of each term.
    lengths: &'a [usize],
    sums: Vec<Vec<f32>>,
    /// Number of sums that are complete.
    complete_sums: usize,
}

impl BucketedSum<'_> {
    /// Adds each term once all terms before it have arrived.
    fn run<T, E: std::error::Error + Send + Sync + 'static>(
        mut self,
        terms: Receiver<(usize, T)>,
        read: impl Fn(&T, &mut dyn FnMut(&[f32])) -> std::result::Result<(), E>,
    ) -> Result<Vec<Vec<f32>>> {
        let expected = self.lengths.len();
        // Terms that have arrived before an earlier one.
        let mut waiting_terms: Vec<Option<T>> = (0..expected).map(|_| None).collect();
        let (mut next_position, mut outcome) = (0, Ok(()));
        for (position, term) in terms {
            waiting_terms[position] = Some(term);
            while let Some(term) = waiting_terms.get_mut(next_position).and_then(Option::take) {
                if let Err(error) = read(&term, &mut |values| self.append_to_bucket(values)) {
                    // The other ranks wait for this many values of the term.
                    self.append_to_bucket(&vec![f32::NAN; self.lengths[next_position]]);
                    outcome = Err(Error::Term(error.into()));
                }
                next_position += 1;
            }
        }
        if next_position < expected {
            // This rank fails without a last call: its bucket would be shorter than those of the
            // other ranks.
            return Err(Error::MissingTerms { expected, found: next_position });
        }
        self.reduce_bucket();
        outcome.map(|()| self.sums)
    }

    /// Appends values to the bucket; reduces each full bucket.
    fn append_to_bucket(&mut self, mut values: &[f32]) {
        while !values.is_empty() {
            let free = self.bucket_values - self.buffers.bucket.len();
            let (fitting, rest) = values.split_at(values.len().min(free));
            self.buffers.bucket.extend_from_slice(fitting);
            if self.buffers.bucket.len() == self.bucket_values {
                self.reduce_bucket();
            }
            values = rest;
        }
    }

    /// Reduces the bucket, and appends its values to their sums.
    fn reduce_bucket(&mut self) {
        let BucketBuffers { reduce, bucket } = &mut *self.buffers;
        self.communicator.all_reduce(bucket, self.transfer, reduce);
        let mut values = &bucket[..];
        while !values.is_empty() {
            let (sum, length) = (&mut self.sums[self.complete_sums], self.lengths[self.complete_sums]);
            let (missing, rest) = values.split_at(values.len().min(length - sum.len()));
            sum.extend_from_slice(missing);
            self.complete_sums += usize::from(sum.len() == length);
            values = rest;
        }
        bucket.clear();
    }
}

/// A collective call that the communication thread runs.
type CommJob = Box<dyn FnOnce(&mut dyn Communicator) + Send>;

/// A communicator in its own thread, which runs one job after another.
///
/// MPI libraries expect all calls from one thread: this thread makes all of them. A panic of the
/// owner aborts the communicator, so that other ranks do not wait.
pub(crate) struct CommThread {
    jobs: Option<Sender<CommJob>>,
    thread: Option<JoinHandle<()>>,
    is_waiting: Arc<AtomicBool>,
    pub rank: usize,
    pub size: usize,
}

/// The result of a collective call that may still run.
#[must_use]
pub struct Pending<T> {
    result: Receiver<T>,
    is_waiting: Arc<AtomicBool>,
}

impl<T> Pending<T> {
    /// Waits for the end of the call.
    ///
    /// # Panics
    /// If the communicator has panicked.
    pub fn wait(self) -> T {
        self.is_waiting.store(true, Ordering::SeqCst);
        let result = self.result.recv().expect("the communication thread is alive");
        self.is_waiting.store(false, Ordering::SeqCst);
        result
    }
}

impl CommThread {
    /// Starts the thread, which creates the communicator; `None` if that fails.
    pub fn start<C: Communicator>(connect: impl FnOnce() -> Option<C> + Send + 'static) -> Option<Self> {
        let (jobs, job_queue) = channel::<CommJob>();
        let (rank_and_size, connected) = channel();
        let is_waiting = Arc::new(AtomicBool::new(false));
        let waiting_flag = Arc::clone(&is_waiting);
        let thread = thread::Builder::new().name("communication".into()).spawn(move || {
            let Some(mut communicator) = connect() else { return };
            communicator.set_waiting_flag(waiting_flag);
            if rank_and_size.send((communicator.rank(), communicator.size())).is_ok() {
                job_queue.into_iter().for_each(|job| job(&mut communicator));
            }
        });
        let thread = thread.ok()?;
        let (rank, size) = connected.recv().ok()?;
        Some(CommThread { jobs: Some(jobs), thread: Some(thread), is_waiting, rank, size })
    }

    /// Begins a job.
    pub fn begin<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Communicator) -> T + Send + 'static,
    ) -> Pending<T> {
        let (sender, result) = channel();
        let job = move |communicator: &mut dyn Communicator| {
            // Fails if the caller has dropped its Pending.
            let _ = sender.send(job(communicator));
        };
        if let Some(jobs) = &self.jobs {
            // Fails if the thread has panicked, which Pending::wait reports.
            let _ = jobs.send(Box::new(job));
        }
        Pending { result, is_waiting: Arc::clone(&self.is_waiting) }
    }
}

impl Drop for CommThread {
    fn drop(&mut self) {
        if let (true, Some(jobs)) = (thread::panicking(), &self.jobs) {
            let _ = jobs.send(Box::new(|communicator| communicator.abort()));
        }
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // The caller that waited for a result has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}
