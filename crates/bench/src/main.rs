//! Compares speed and memory with other implementations, each case and system in a process of its own.
//!
//! [`Suite::plan`] states which systems run which cases. [`runner::run`] starts, for every case, system and repeat, this same
//! program with [`child::COMMAND`] and a description of the case; there, [`measure::run_case`] does the work and prints one line of
//! JSON. The [`report::Report`] becomes a table, a file or a plot.
#![warn(missing_docs)]

mod answer;
mod case;
mod child;
mod decode;
mod dense;
mod error;
mod floors;
mod forecast;
mod gradients;
mod inputs;
mod lattices;
mod loss;
mod machine;
mod measure;
mod micro;
mod plot;
mod pruned;
mod pruned_dense;
mod rates;
mod recognition;
mod report;
mod runner;
mod speed;
mod suites;
mod table;
mod train;
mod trivial;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Parser, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use kernels::Printable;
use model::bytes;
use training::files::OutputFile;

use error::{Error, Result};
use runner::RunSettings;
use suites::{Choice, Suite};

/// Compares speed and memory with other implementations, suite by suite
///
/// `bench micro product` and `bench micro tiles` print rates of single products and of tile shapes.
#[derive(Parser)]
#[command(name = "bench", version)]
struct BenchArgs {
    /// What is compared
    suite: Suite,
    /// The smallest honest part, in less than a minute
    #[arg(long)]
    quick: bool,
    /// Write the outcome as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot of the outcome
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Processes for each case and system [default: 5, quick 2]
    #[arg(long, value_parser = value_parser!(u16).range(1..=MAX_REPEATS))]
    repeats: Option<u16>,
    /// Threads of every system [default: all cores]
    #[arg(long, value_parser = value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Resident bytes above inputs and gradients at which a system is out of memory, such as 512MiB
    #[arg(long, value_name = "BYTES", default_value = "8GiB", value_parser = bytes::parse)]
    cap: usize,
    /// Budget of our loss in bytes [default: scores are recomputed; suite pruned: 56MiB]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    budget: Option<usize>,
    /// Suite skip: a checkpoint whose lattices are used
    #[arg(long, value_name = "FILE", requires = "manifest")]
    checkpoint: Option<PathBuf>,
    /// Suite skip: the utterances that the checkpoint is used on
    #[arg(long, value_name = "FILE", requires = "checkpoint")]
    manifest: Option<PathBuf>,
}

/// Most processes for each case and system.
const MAX_REPEATS: i64 = 10_000;
const REPEATS: u16 = 5;
const QUICK_REPEATS: u16 = 2;
/// Seconds of timed steps in a process, about.
const SECONDS: f64 = 1.0;
const QUICK_SECONDS: f64 = 0.3;

/// Exit status of a program that a signal ends.
const STOPPED: u8 = 130;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let outcome = match (words.next(), words.next()) {
        (Some(command), Some(case)) if command == child::COMMAND => measure::run_case(&case),
        (Some(command), Some(name)) if command == micro::COMMAND => micro::run(&name),
        _ => run(&BenchArgs::parse()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", Printable(&error));
            ExitCode::from(if matches!(error, Error::Stopped) { STOPPED } else { 2 })
        }
    }
}

/// Runs the suite, prints a table, and writes the requested files.
fn run(arguments: &BenchArgs) -> Result<()> {
    kernels::check_simd_override().map_err(Error::Environment)?;
    if cfg!(all(target_arch = "x86_64", not(feature = "candle-avx512"))) {
        eprintln!("note: built without the feature candle-avx512: candle's products use AVX2 only");
    }
    let (repeats, seconds) =
        if arguments.quick { (QUICK_REPEATS, QUICK_SECONDS) } else { (REPEATS, SECONDS) };
    let choice = Choice {
        quick: arguments.quick,
        threads: arguments.threads.map_or_else(machine::cores, usize::from),
        budget: arguments.budget,
        model: arguments.checkpoint.clone().zip(arguments.manifest.clone()),
    };
    // Before the work: a file that cannot be written is an error at once.
    let inputs: Vec<_> =
        [&arguments.checkpoint, &arguments.manifest].into_iter().flatten().map(PathBuf::as_path).collect();
    let open = |path: &Option<PathBuf>| path.as_ref().map(|path| OutputFile::new(path, &inputs)).transpose();
    let (json, svg) = (open(&arguments.json)?, open(&arguments.svg)?);
    let plan = arguments.suite.plan(&choice)?;
    let repeats = arguments.repeats.unwrap_or(repeats).into();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second signal ends the program at once.
        let watched = signal_hook::flag::register_conditional_shutdown(signal, STOPPED.into(), stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        watched.map_err(Error::Signal)?;
    }
    let settings = RunSettings { repeats, seconds, cap: arguments.cap as u64, stop };
    let processes = plan.cases.iter().map(|case| case.systems.len()).sum::<usize>() * repeats;
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {msg}, {elapsed} so far")
        .expect("the template is well-formed");
    let progress = ProgressBar::new(processes as u64).with_style(style);
    let report = runner::run(&plan, settings, &progress);
    progress.finish_and_clear();
    let report = report?;
    if let Some(svg) = svg {
        svg.write(plot::draw(&plan, &report.rows)?.as_bytes())?;
    }
    if let Some(json) = json {
        json.write(report.json()?.as_bytes())?;
    }
    let machine = &report.machine;
    println!("{}: {} cores of {}, {}", report.suite, machine.cores, machine.cpu, machine.date);
    table::lines(&report.rows).iter().for_each(|line| println!("{}", Printable(line)));
    Ok(())
}
