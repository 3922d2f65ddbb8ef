//! A thread that owns a communicator and runs its calls while other threads compute.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use crate::Communicator;

type CommJob = Box<dyn FnOnce(&mut dyn Communicator) + Send>;

/// A communicator in a thread of its own, which runs one job after another.
///
/// MPI libraries expect all calls from one thread; here it is this one. A panic of the owner aborts the communicator, so that other
/// ranks do not wait.
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
    /// Starts the thread, which makes the communicator; none if it cannot.
    pub fn start<C: Communicator>(connect: impl FnOnce() -> Option<C> + Send + 'static) -> Option<Self> {
        let (jobs, queue) = channel::<CommJob>();
        let (sender, connected) = channel();
        let is_waiting = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_waiting);
        let thread = thread::Builder::new().name("communication".into()).spawn(move || {
            let Some(mut communicator) = connect() else { return };
            communicator.set_waiting_flag(flag);
            if sender.send((communicator.rank(), communicator.size())).is_ok() {
                queue.into_iter().for_each(|job| job(&mut communicator));
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
            // A panic of the thread has been reported where its result was awaited.
            let _ = thread.join();
        }
    }
}
