//! `ProcessGroup`: the ranks (processes) of a run, with all-reduces during computation.
//!
//! Training calls it for the sums of gradients and to exchange values. The communicator has a
//! separate thread. A sum over all ranks is divided into buckets:
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

/// Bytes of a bucket: latency is negligible, and it still fits into a cache.
const BUCKET_BYTES: usize = 25_000_000;

/// This process as one of the ranks of a run.
///
/// All ranks call the same methods in the same order, and each call waits for all ranks. The
/// communicator has its own thread, so that an all-reduce runs while this thread computes.
pub struct ProcessGroup {
    pub(crate) comm_thread: CommThread,
    transfer: TransferFormat,
    /// Number of values of a full bucket.
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
        let comm_thread = CommThread::start(connect)?;
        let (buffers, step) = (Arc::default(), Arc::default());
        Some(ProcessGroup {
            comm_thread,
            transfer,
            bucket_values: BUCKET_BYTES / size_of::<f32>(),
            buffers,
            step,
        })
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
        self.comm_thread.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.comm_thread.size
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
        let gathered = self.comm_thread.begin(|communicator| communicator.all_gather_bytes(bytes)).wait();
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
        self.comm_thread.begin(move |communicator| {
            let buffers = &mut *buffers.lock().unwrap_or_else(PoisonError::into_inner);
            buffers.bucket.clear();
            let sums = lengths.iter().map(|&length| Vec::with_capacity(length)).collect();
            let lengths = &lengths;
            let bucketed_sum = BucketedSum {
                communicator,
                transfer,
                buffers,
                bucket_values,
                lengths,
                sums,
                complete_sum_count: 0,
            };
            bucketed_sum.run(terms, read)
        })
    }

    /// Waits until all ranks have called it.
    pub fn barrier(&mut self) {
        self.comm_thread.begin(|communicator| communicator.barrier()).wait();
    }

    /// Ends all processes.
    pub fn abort(&mut self) {
        self.comm_thread.begin(|communicator| communicator.abort()).wait();
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
    complete_sum_count: usize,
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
        let mut early_terms: Vec<Option<T>> = (0..expected).map(|_| None).collect();
        let (mut next_position, mut outcome) = (0, Ok(()));
        for (position, term) in terms {
            early_terms[position] = Some(term);
            while let Some(term) = early_terms.get_mut(next_position).and_then(Option::take) {
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
            let (sum, length) =
                (&mut self.sums[self.complete_sum_count], self.lengths[self.complete_sum_count]);
            let (values_of_sum, rest) = values.split_at(values.len().min(length - sum.len()));
            sum.extend_from_slice(values_of_sum);
            self.complete_sum_count += usize::from(sum.len() == length);
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
    /// Queue of the thread; none once the owner is dropped.
    job_sender: Option<Sender<CommJob>>,
    handle: Option<JoinHandle<()>>,
    /// True while the owner waits for a result.
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
    pub(crate) fn start<C: Communicator>(
        connect: impl FnOnce() -> Option<C> + Send + 'static,
    ) -> Option<Self> {
        let (job_sender, job_receiver) = channel::<CommJob>();
        let (rank_and_size_sender, rank_and_size_receiver) = channel();
        let is_waiting = Arc::new(AtomicBool::new(false));
        let waiting_flag = Arc::clone(&is_waiting);
        let handle = thread::Builder::new().name("communication".into()).spawn(move || {
            let Some(mut communicator) = connect() else { return };
            communicator.set_waiting_flag(waiting_flag);
            if rank_and_size_sender.send((communicator.rank(), communicator.size())).is_ok() {
                job_receiver.into_iter().for_each(|job| job(&mut communicator));
            }
        });
        let handle = handle.ok()?;
        let (rank, size) = rank_and_size_receiver.recv().ok()?;
        Some(CommThread { job_sender: Some(job_sender), handle: Some(handle), is_waiting, rank, size })
    }

    /// Begins a job.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Communicator) -> T + Send + 'static,
    ) -> Pending<T> {
        let (result_sender, result) = channel();
        let job = move |communicator: &mut dyn Communicator| {
            // Fails if the caller has dropped its Pending.
            let _ = result_sender.send(job(communicator));
        };
        if let Some(job_sender) = &self.job_sender {
            // Fails if the thread has panicked, which Pending::wait reports.
            let _ = job_sender.send(Box::new(job));
        }
        Pending { result, is_waiting: Arc::clone(&self.is_waiting) }
    }
}

impl Drop for CommThread {
    fn drop(&mut self) {
        if let (true, Some(job_sender)) = (thread::panicking(), &self.job_sender) {
            let _ = job_sender.send(Box::new(|communicator| communicator.abort()));
        }
        drop(self.job_sender.take());
        if let Some(handle) = self.handle.take() {
            // The caller that waited for a result has reported a panic of the thread.
            let _ = handle.join();
        }
    }
}
