//! `mpirun -n N panda train RECIPE.toml`: the same run in many processes.
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{process, thread};

use ranks::{Courier, Mpi, Together, Transfer, Unresponsive, Wire};
use training::{Outcome, Ranks};

use crate::error::{Error, Result, chain};
use crate::out::warnln;

/// How long a process waits for another one to say what went wrong.
const PATIENCE: Duration = Duration::from_secs(5);

/// Status of a job that lost one of its processes.
const LOST: i32 = 3;

/// Trains alone, or, where a launcher has started this process, as one of many; none for one that has nothing to say.
pub fn run(
    transfer: Transfer,
    timeout_seconds: u64,
    train: &mut dyn FnMut(&mut dyn Ranks) -> Result<Outcome>,
) -> Result<Option<Outcome>> {
    let Some(launcher) = ranks::launcher() else { return train(&mut ()).map(Some) };
    let courier = Courier::start(Mpi::start).ok_or(Error::Mpi)?;
    let (rank, found) = (courier.rank(), courier.count());
    if let Some(expected) = launcher.count.filter(|&expected| expected != found) {
        return Err(Error::Launcher { expected, found });
    }
    use_threads(courier.ask(Mpi::neighbours));
    let lost = move |lost, step, first| {
        if first {
            warnln!("error: rank {lost} has ended in step {step}; --resume goes on from the last checkpoint");
        }
        process::exit(LOST);
    };
    let watch = courier.ask(move |mpi| mpi.watch(lost));
    let step = watch.step();
    let report = move |found: Unresponsive| report_unresponsive(&found, step.load(Ordering::SeqCst));
    let limit = if timeout_seconds == 0 { Duration::MAX } else { Duration::from_secs(timeout_seconds) };
    courier.ask(move |mpi| mpi.report_unresponsive(limit, report));
    let outcome = train(&mut Together::over(&courier, transfer).with_step(watch.step()));
    watch.end();
    match outcome {
        Ok(outcome) => {
            // None ends before all know that the others may.
            courier.ask(move |mpi| mpi.all_gather(&[0], &mut vec![0; found]));
            Ok((rank == 0).then_some(outcome))
        }
        Err(error) => {
            // Whoever it went wrong with says so, and ends the job; if that is all of them, it is rank 0.
            let speaks = match &error {
                Error::Training(training::Error::Rank { rank: named, .. }) => *named == rank,
                Error::Training(training::Error::Diverged { .. }) => rank == 0,
                _ => true,
            };
            if speaks {
                match &error {
                    Error::Training(error @ training::Error::Rank { .. }) => warnln!("error: {error}"),
                    error => warnln!("error: rank {rank}: {}", chain(error)),
                }
            } else {
                thread::sleep(PATIENCE);
            }
            courier.ask(|mpi| mpi.fail());
            process::exit(2)
        }
    }
}

/// Prints which processes do not respond, and ends this one, and with it the job, at the limit.
fn report_unresponsive(found: &Unresponsive, step: u64) {
    let names: Vec<String> = found.ranks.iter().map(ToString::to_string).collect();
    let ranks = if names.len() == 1 { "rank" } else { "ranks" };
    let seconds = found.waited.as_secs();
    let text = format!("{ranks} {}: no response for {seconds} s in step {step}", names.join(", "));
    if found.is_final {
        warnln!("error: {text}; --resume goes on from the last checkpoint");
        process::exit(LOST);
    }
    warnln!("warning: {text}; --rank-timeout ends the job");
}

/// A thread for each core that this process may use, or its share where others may use the same, unless somebody has said otherwise.
fn use_threads(neighbours: usize) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        // Fails where the pool is there already, which then stays as it is.
        let threads = (cores / neighbours.max(1)).max(1);
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    }
}
