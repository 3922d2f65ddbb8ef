//! `mpirun -n N panda train RECIPE.toml`: the same run in many processes.
use std::time::Duration;
use std::{process, thread};

use ranks::{Mpi, Together, Wire};
use training::{Outcome, Ranks};

use crate::error::{Error, Result, chain};
use crate::out::complain;

/// In which numbers gradients travel.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
pub enum Transfer {
    /// As they are
    #[default]
    F32,
    /// Half the bytes
    Bf16,
}

/// How long a process waits for another one to say what went wrong.
const PATIENCE: Duration = Duration::from_secs(5);

/// Status of a job that lost one of its processes.
const LOST: i32 = 3;

/// Trains alone, or, where an engine has started this process, as one of many; none for one that has nothing to say.
pub fn run(
    transfer: Transfer,
    train: &mut dyn FnMut(&mut dyn Ranks) -> Result<Outcome>,
) -> Result<Option<Outcome>> {
    let Some((_, here)) = ranks::place() else { return train(&mut ()).map(Some) };
    use_threads(here);
    let mut mpi = Mpi::start().expect("MPI is started once");
    let rank = mpi.rank();
    let watch = mpi.watch(move |lost, step| {
        // One of those that are left.
        if rank == usize::from(lost == 0) {
            complain!(
                "error: rank {lost} has ended in step {step}; --resume goes on from the last checkpoint"
            );
        }
        process::exit(LOST);
    });
    let transfer = match transfer {
        Transfer::F32 => ranks::Transfer::F32,
        Transfer::Bf16 => ranks::Transfer::Bf16,
    };
    let outcome = train(&mut Together::new(&mut mpi, transfer).with_step(watch.step()));
    match outcome {
        Ok(outcome) => {
            watch.end(&mut mpi);
            Ok((rank == 0).then_some(outcome))
        }
        Err(error) => {
            // Whoever it went wrong with says so, and ends the job; if all have found the same, that is rank 0.
            let speaks = match &error {
                Error::Training(training::Error::Rank { .. }) => false,
                Error::Training(training::Error::Diverged { .. }) => rank == 0,
                _ => true,
            };
            if speaks {
                complain!("error: rank {rank}: {}", chain(&error));
            } else {
                thread::sleep(PATIENCE);
            }
            mpi.abort(2)
        }
    }
}

/// The machine's cores, shared by the processes that run on it, unless somebody has said otherwise or they are bound to some.
fn use_threads(here: usize) {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = |range: &str| -> Option<(usize, usize)> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    let cores: usize = online.trim().split(',').filter_map(last).map(|(first, last)| last - first + 1).sum();
    let free = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if free < cores { free } else { (free / here.max(1)).max(1) };
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        // Fails where the pool is there already, which then stays as it is.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    }
}
