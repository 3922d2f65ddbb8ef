//! MPI as the wire (feature `mpi`).
mod unresponsive;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::request::{self, Request, Scope};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, CommunicatorCollectives};

use self::unresponsive::Monitor;
pub use self::unresponsive::Unresponsive;
use crate::Wire;

/// How often a process looks whether the others of its machine are there.
const LOOK: Duration = Duration::from_millis(200);

/// How long the wire leaves the core to others while nobody waits for it.
const BREAK: Duration = Duration::from_micros(100);

/// One of the processes that `mpirun` has started.
///
/// All calls come from the thread that made it. Dropping it takes part in `MPI_Finalize`, which waits for the others; in a panic it ends
/// all of them instead.
pub struct Mpi {
    awaited: Option<Arc<AtomicBool>>,
    monitor: Option<Monitor>,
    // First of all, so that it goes before the engine does.
    world: SimpleCommunicator,
    _universe: Universe,
    /// It stays where it is.
    one: PhantomData<*mut ()>,
}

impl Mpi {
    /// Joins the others; none if MPI has been used in this process before, or lets no process that has threads join.
    pub fn start() -> Option<Self> {
        let (universe, granted) = ::mpi::initialize_with_threading(Threading::Funneled)?;
        let joined = || Mpi {
            awaited: None,
            monitor: None,
            world: universe.world(),
            _universe: universe,
            one: PhantomData,
        };
        (granted >= Threading::Funneled).then(joined)
    }

    /// Ends all processes of the job.
    pub fn abort(&self, status: i32) -> ! {
        self.world.abort(status)
    }

    /// Reports ranks that do not take part in a call that this one waits in: after a minute, two, four, and after `limit`.
    ///
    /// All processes must call it, as each replies to the queries of the others. The time starts anew with each collective call.
    pub fn report_unresponsive(
        &mut self,
        limit: Duration,
        report: impl FnMut(Unresponsive) + Send + 'static,
    ) {
        self.monitor = Some(Monitor::new(limit, report));
    }

    /// How many processes, this one among them, may use the same cores of the same machine.
    pub fn neighbours(&mut self) -> usize {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let cores = status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap_or_default();
        let mine = [machine().unwrap_or(0), hash(cores)];
        self.all(mine).into_iter().filter(|other| *other == mine).count()
    }

    /// Begins to look whether the other processes of this machine are still there, in a thread of its own; `lost(rank, step, first)`
    /// hears of the first that is not, of the step that this one is in, and whether it is the first of those that are left.
    ///
    /// An engine ends the job when a process is lost, but seldom says in which step that was. Where processes cannot see each other,
    /// nobody looks.
    pub fn watch(&mut self, mut lost: impl FnMut(usize, u64, bool) + Send + 'static) -> Watch {
        let here = machine();
        let all = self.all([here.unwrap_or(0), u64::from(process::id())]);
        let watch = Watch { on: Arc::new(AtomicBool::new(true)), step: Arc::default() };
        let (on, step, rank) = (Arc::clone(&watch.on), Arc::clone(&watch.step), self.rank());
        let others =
            all.into_iter().enumerate().filter(|(other, [at, _])| *other != rank && Some(*at) == here);
        let others: Vec<(usize, u64)> = others.map(|(other, [_, process])| (other, process)).collect();
        thread::spawn(move || {
            let gone = || others.iter().find(|(_, process)| is_gone(*process)).map(|(other, _)| *other);
            while on.load(Ordering::SeqCst) {
                thread::sleep(LOOK);
                let Some(other) = gone() else { continue };
                // One that has ended in good order has told the others, who may not have heard it yet.
                thread::sleep(LOOK);
                if on.load(Ordering::SeqCst) {
                    let first = others.iter().all(|(other, process)| *other > rank || is_gone(*process));
                    return lost(other, step.load(Ordering::SeqCst), first);
                }
            }
        });
        watch
    }

    /// Two numbers of each process.
    fn all(&mut self, mine: [u64; 2]) -> Vec<[u64; 2]> {
        let mut all = vec![[0; 2]; self.count()];
        self.all_gather(bytemuck::cast_slice(&mine), bytemuck::cast_slice_mut(&mut all));
        all
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // The others wait for one that does not come.
        if thread::panicking() {
            self.abort(2);
        }
    }
}

/// Waits for the end of a call: the engine goes on where it is asked, with all its might if somebody waits.
fn wait<'a, D: ?Sized, S: Scope<'a>>(
    awaited: Option<&AtomicBool>,
    world: &SimpleCommunicator,
    monitor: Option<&mut Monitor>,
    mut request: Request<'a, D, S>,
) {
    let mut monitored = monitor.map(|monitor| (monitor.start(), monitor));
    loop {
        request = match request.test() {
            Ok(_) => return,
            Err(request) => request,
        };
        match awaited {
            Some(awaited) if !awaited.load(Ordering::Relaxed) => thread::sleep(BREAK),
            _ => thread::yield_now(),
        }
        if let Some((wait, monitor)) = &mut monitored {
            monitor.poll(world, wait);
        }
    }
}

/// What processes have in common that can see each other: the start of their machine, and their view of its processes.
fn machine() -> Option<u64> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let view = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(hash(&format!("{boot}{}", view.display())).max(1))
}

/// The same in all processes of this program.
fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Whether a process is no longer there, or has ended without anybody taking note.
fn is_gone(process: u64) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        Err(error) => error.kind() == ErrorKind::NotFound,
        Ok(stat) => {
            // Its name, in brackets, may hold anything.
            let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
            matches!(state, Some("Z" | "X"))
        }
    }
}

/// Looks after the other processes until it is told that they may end.
pub struct Watch {
    on: Arc<AtomicBool>,
    step: Arc<AtomicU64>,
}

impl Watch {
    /// Where the step is written down that this process is in.
    pub fn step(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.step)
    }

    /// From now on the others may end.
    pub fn end(self) {
        self.on.store(false, Ordering::SeqCst);
    }
}

impl Wire for Mpi {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn count(&self) -> usize {
        self.world.size() as usize
    }

    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) {
        request::scope(|scope| {
            let request = self.world.immediate_all_to_all_into(scope, send, receive);
            wait(self.awaited.as_deref(), &self.world, self.monitor.as_mut(), request);
        });
    }

    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]) {
        request::scope(|scope| {
            let request = self.world.immediate_all_gather_into(scope, send, receive);
            wait(self.awaited.as_deref(), &self.world, self.monitor.as_mut(), request);
        });
    }

    fn patience(&mut self, awaited: Arc<AtomicBool>) {
        self.awaited = Some(awaited);
    }

    fn fail(&mut self) {
        self.abort(2);
    }
}

/// What has started this process as one of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launcher {
    /// Processes, if it says so.
    pub count: Option<usize>,
}

/// The launcher, if there is one: OpenMPI's, one of MPICH's family, or a queue's own.
pub fn launcher() -> Option<Launcher> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let count = number("OMPI_COMM_WORLD_SIZE").or_else(|| number("PMI_SIZE"));
    (count.is_some() || std::env::var_os("PMIX_RANK").is_some()).then_some(Launcher { count })
}
