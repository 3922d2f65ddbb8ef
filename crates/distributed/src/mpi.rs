//! `MpiCommunicator` (feature `mpi`): processes of a run that `mpirun` has started.
use std::marker::PhantomData;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::request::{self, Request, Scope};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, CommunicatorCollectives};

use crate::unresponsive::Monitor;
use crate::watch::{self, WatchedProcess};
use crate::{Communicator, ProcessWatch, UnresponsiveRanks};

/// Time between two progress calls while no thread waits for the result.
const IDLE_POLL_INTERVAL: Duration = Duration::from_micros(100);
/// The exit code of all processes after an abort.
const ABORT_EXIT_CODE: i32 = 2;

/// The communicator of a process that `mpirun` has started.
///
/// All calls come from the thread that made it. Dropping it takes part in `MPI_Finalize`, which
/// waits for the other ranks; in a panic it ends all of them instead.
pub struct MpiCommunicator {
    /// True while a thread waits for the result of a call.
    is_waiting: Option<Arc<AtomicBool>>,
    monitor: Option<Monitor>,
    // Dropped before the universe.
    world: SimpleCommunicator,
    _universe: Universe,
    /// Makes the type not `Send`.
    not_send: PhantomData<*mut ()>,
}

impl MpiCommunicator {
    /// Initializes MPI.
    ///
    /// Returns `None` if this process has initialized MPI before, or if the library does not
    /// support threads.
    pub fn start() -> Option<Self> {
        let (universe, granted) = ::mpi::initialize_with_threading(Threading::Funneled)?;
        let communicator = || MpiCommunicator {
            is_waiting: None,
            monitor: None,
            world: universe.world(),
            _universe: universe,
            not_send: PhantomData,
        };
        (granted >= Threading::Funneled).then(communicator)
    }

    /// Reports ranks that do not take part in this rank's call.
    ///
    /// Reports follow after a minute, two, four, and after `limit`. All ranks must call this
    /// method, as each replies to the queries of the others. The time starts anew with each
    /// collective call.
    pub fn report_unresponsive(
        &mut self,
        limit: Duration,
        report: impl FnMut(UnresponsiveRanks) + Send + 'static,
    ) {
        self.monitor = Some(Monitor::new(limit, report));
    }

    /// Returns the number of processes on the cores of this process.
    pub fn processes_on_same_cores(&mut self) -> usize {
        let machine_and_cores = [watch::machine_id().unwrap_or(0), watch::core_set_id()];
        self.gather_pairs(machine_and_cores).into_iter().filter(|other| *other == machine_and_cores).count()
    }

    /// Calls `report_ended(rank, is_first)` when another process of this machine ends.
    ///
    /// `is_first` is true on the lowest of the remaining ranks. An MPI library ends the job when a
    /// process is lost, but seldom reports which. Processes that cannot see each other, such as
    /// those of other machines, are not watched.
    pub fn watch(&mut self, report_ended: impl FnMut(usize, bool) + Send + 'static) -> ProcessWatch {
        let (this_rank, this_machine) = (self.rank(), watch::machine_id());
        let machines_and_processes = self.gather_pairs([this_machine.unwrap_or(0), u64::from(process::id())]);
        let visible_process = |(rank, [machine, process_id]): (usize, [u64; 2])| {
            let is_visible = rank != this_rank && Some(machine) == this_machine;
            is_visible.then_some(WatchedProcess { rank, process_id })
        };
        let watched = machines_and_processes.into_iter().enumerate().filter_map(visible_process).collect();
        ProcessWatch::start(this_rank, watched, report_ended)
    }

    /// Returns the pairs of all ranks.
    fn gather_pairs(&mut self, pair: [u64; 2]) -> Vec<[u64; 2]> {
        let mut pairs = vec![[0; 2]; self.size()];
        self.all_gather(bytemuck::cast_slice(&pair), bytemuck::cast_slice_mut(&mut pairs));
        pairs
    }
}

impl Drop for MpiCommunicator {
    fn drop(&mut self) {
        // The other ranks would wait for this one.
        if thread::panicking() {
            self.abort();
        }
    }
}

/// Waits for the end of a call.
///
/// The library makes progress only when it is polled: at full speed if a thread waits for the
/// result.
fn wait_for_call<'a, D: ?Sized, S: Scope<'a>>(
    is_waiting: Option<&AtomicBool>,
    world: &SimpleCommunicator,
    monitor: Option<&mut Monitor>,
    mut request: Request<'a, D, S>,
) {
    let mut monitored_wait = monitor.map(|monitor| (monitor.start(), monitor));
    loop {
        request = match request.test() {
            Ok(_) => return,
            Err(request) => request,
        };
        match is_waiting {
            Some(is_waiting) if !is_waiting.load(Ordering::Relaxed) => thread::sleep(IDLE_POLL_INTERVAL),
            _ => thread::yield_now(),
        }
        if let Some((wait, monitor)) = &mut monitored_wait {
            monitor.poll(world, wait);
        }
    }
}

impl Communicator for MpiCommunicator {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn size(&self) -> usize {
        self.world.size() as usize
    }

    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) {
        request::scope(|scope| {
            let request = self.world.immediate_all_to_all_into(scope, send, receive);
            wait_for_call(self.is_waiting.as_deref(), &self.world, self.monitor.as_mut(), request);
        });
    }

    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]) {
        request::scope(|scope| {
            let request = self.world.immediate_all_gather_into(scope, send, receive);
            wait_for_call(self.is_waiting.as_deref(), &self.world, self.monitor.as_mut(), request);
        });
    }

    fn set_waiting_flag(&mut self, is_waiting: Arc<AtomicBool>) {
        self.is_waiting = Some(is_waiting);
    }

    fn abort(&mut self) {
        self.world.abort(ABORT_EXIT_CODE)
    }
}

/// The program that has started this process as one of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MpiLauncher {
    /// Number of processes, if the launcher states it.
    pub size: Option<usize>,
}

impl MpiLauncher {
    /// Detects the launcher from environment variables; `None` without a launcher.
    ///
    /// It recognizes OpenMPI, the MPICH family, and PMIx (queue systems).
    pub fn detect() -> Option<Self> {
        let parse_variable = |name: &str| std::env::var(name).ok()?.parse().ok();
        let size = parse_variable("OMPI_COMM_WORLD_SIZE").or_else(|| parse_variable("PMI_SIZE"));
        (size.is_some() || std::env::var_os("PMIX_RANK").is_some()).then_some(Self { size })
    }
}
