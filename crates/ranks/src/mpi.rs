//! MPI as the wire (feature `mpi`).
use std::fs;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, CommunicatorCollectives};

use crate::Wire;

/// How often a process looks whether the others of its machine are there.
const LOOK: Duration = Duration::from_millis(200);

/// One of the processes that `mpirun` has started.
///
/// All calls come from the thread that made it. Dropping it takes part in `MPI_Finalize`, which waits for the others.
pub struct Mpi {
    // First of all, so that it goes before the engine does.
    world: SimpleCommunicator,
    _universe: Universe,
}

impl Mpi {
    /// Joins the others; none if MPI has been used in this process before.
    pub fn start() -> Option<Self> {
        let (universe, _) = ::mpi::initialize_with_threading(Threading::Funneled)?;
        Some(Mpi { world: universe.world(), _universe: universe })
    }

    /// Ends all processes of the job.
    pub fn abort(&self, status: i32) -> ! {
        self.world.abort(status)
    }

    /// Begins to look whether the other processes of this machine are still there, in a thread of its own; `lost(rank, step)` hears of
    /// the first that is not, and of the step that this one is in.
    ///
    /// An engine ends the job when a process is lost, but seldom says in which step that was.
    pub fn watch(&mut self, mut lost: impl FnMut(usize, u64) + Send + 'static) -> Watch {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host =
            name.bytes().fold(0_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let mine = [host, u64::from(process::id())];
        let mut all = vec![[0_u64; 2]; self.count()];
        self.all_gather(bytemuck::cast_slice(&mine), bytemuck::cast_slice_mut(&mut all));
        let watch = Watch { on: Arc::new(AtomicBool::new(true)), step: Arc::default() };
        let (on, step, rank) = (Arc::clone(&watch.on), Arc::clone(&watch.step), self.rank());
        thread::spawn(move || {
            let here = |&(other, &[at, _]): &(usize, &[u64; 2])| other != rank && at == host;
            let others: Vec<(usize, u64)> =
                all.iter().enumerate().filter(here).map(|(other, &[_, process])| (other, process)).collect();
            while on.load(Ordering::SeqCst) {
                thread::sleep(LOOK);
                let gone = others.iter().find(|(_, process)| !is_there(*process));
                if let Some(&(other, _)) = gone.filter(|_| on.load(Ordering::SeqCst)) {
                    return lost(other, step.load(Ordering::SeqCst));
                }
            }
        });
        watch
    }
}

/// Whether a process is there, and has not ended without anybody taking note.
fn is_there(process: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Its name, in brackets, may hold anything.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
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

    /// From now on the others may end; then they are waited for, so that none ends before all know.
    pub fn end(self, wire: &mut dyn Wire) {
        self.on.store(false, Ordering::SeqCst);
        let mut all = vec![0; wire.count()];
        wire.all_gather(&[0], &mut all);
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
        self.world.all_to_all_into(send, receive);
    }

    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]) {
        self.world.all_gather_into(send, receive);
    }
}

/// How many processes the engine has started, and how many of them on this machine; none where it has started none.
pub fn place() -> Option<(usize, usize)> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let of = |all: &str, here: &str| Some((number(all)?, number(here).unwrap_or(1)));
    // OpenMPI's, those of MPICH and its children, and a queue's own launcher.
    of("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
        .or_else(|| of("PMI_SIZE", "MPI_LOCALNRANKS"))
        .or_else(|| of("PMIX_SIZE", "PMIX_LOCAL_SIZE"))
}
