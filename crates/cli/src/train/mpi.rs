//! `mpirun -n N panda train RECIPE.toml`: data-parallel training in N processes.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{process, thread};

use distributed::{MpiCommunicator, ProcessGroup, TransferFormat, UnresponsiveRanks};
use training::RunOutcome;

use crate::error::{Error, Result, message_with_causes};
use crate::printing::warnln;

/// Time that other ranks wait for the failed rank to report.
const ERROR_REPORT_TIME: Duration = Duration::from_secs(5);

/// Exit status of a job that lost a process.
const RANK_LOST_STATUS: i32 = 3;

/// Trains as one rank of an MPI job or in one process.
///
/// Returns none on ranks other than 0, which print no outcome.
pub(super) fn run(
    transfer: TransferFormat,
    timeout_seconds: u64,
    train: &mut dyn FnMut(&mut ProcessGroup) -> Result<RunOutcome>,
) -> Result<Option<RunOutcome>> {
    let Some(launcher) = distributed::MpiLauncher::detect() else {
        return train(&mut ProcessGroup::single()).map(Some);
    };
    // Connect the processes; watch for lost and unresponsive ranks.
    let step = Arc::new(AtomicU64::new(0));
    let time_limit = if timeout_seconds == 0 { Duration::MAX } else { Duration::from_secs(timeout_seconds) };
    let (sender, receiver) = channel();
    let (lost_rank_step, unresponsive_step) = (Arc::clone(&step), Arc::clone(&step));
    let connect = move || {
        let mut mpi = MpiCommunicator::start()?;
        let processes_on_same_cores = mpi.processes_on_same_cores();
        let watch = mpi.watch(move |lost_rank, is_first| {
            if is_first {
                let step = lost_rank_step.load(Ordering::SeqCst);
                warnln!(
                    "error: rank {lost_rank} has ended in step {step}; --resume continues from the last checkpoint"
                );
            }
            process::exit(RANK_LOST_STATUS);
        });
        mpi.report_unresponsive(time_limit, move |unresponsive| {
            report_unresponsive(&unresponsive, unresponsive_step.load(Ordering::SeqCst));
        });
        sender.send((processes_on_same_cores, watch)).ok()?;
        Some(mpi)
    };
    let group = ProcessGroup::connect(connect, transfer).ok_or(Error::Mpi)?;
    let mut group = group.with_step_counter(step);
    let (processes_on_same_cores, watch) = receiver.recv().map_err(|_| Error::Mpi)?;
    let (rank, found) = (group.rank(), group.size());
    if let Some(expected) = launcher.size.filter(|&expected| expected != found) {
        watch.stop();
        return Err(Error::Launcher { expected, found });
    }
    // Train, then stop all ranks together.
    set_thread_count(processes_on_same_cores);
    let outcome = train(&mut group);
    watch.stop();
    match outcome {
        Ok(outcome) => {
            // No rank ends before all have stopped their watches.
            group.barrier();
            Ok((rank == 0).then_some(outcome))
        }
        Err(error) => {
            // The rank with the error prints it and ends the job; rank 0 does so if all have it.
            let prints_error = match &error {
                Error::Training(training::Error::Rank { rank: failed_rank, .. }) => *failed_rank == rank,
                Error::Training(training::Error::Diverged { .. }) => rank == 0,
                _ => true,
            };
            if prints_error {
                match &error {
                    Error::Training(error @ training::Error::Rank { .. }) => warnln!("error: {error}"),
                    error => warnln!("error: rank {rank}: {}", message_with_causes(error)),
                }
            } else {
                thread::sleep(ERROR_REPORT_TIME);
            }
            group.abort();
            process::exit(2)
        }
    }
}

/// Prints the unresponsive ranks; at the time limit, ends this process and the job.
fn report_unresponsive(unresponsive: &UnresponsiveRanks, step: u64) {
    let names: Vec<String> = unresponsive.ranks.iter().map(ToString::to_string).collect();
    let ranks = if names.len() == 1 { "rank" } else { "ranks" };
    let seconds = unresponsive.wait_time.as_secs();
    let text = format!("{ranks} {}: no response for {seconds} s in step {step}", names.join(", "));
    if unresponsive.is_final {
        warnln!("error: {text}; --resume continues from the last checkpoint");
        process::exit(RANK_LOST_STATUS);
    }
    warnln!("warning: {text}; --rank-timeout ends the job");
}

/// Sets the number of threads of this process; `RAYON_NUM_THREADS` overrides it.
///
/// It is the number of cores divided by the processes bound to the same cores.
fn set_thread_count(processes_on_same_cores: usize) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        // Fails if the pool exists already, which then stays unchanged.
        let threads = (cores / processes_on_same_cores.max(1)).max(1);
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    }
}
