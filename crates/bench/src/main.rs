//! Compares speed and memory with other implementations, suite by suite.
//!
//! [`Suite::plan`] lists the cases and systems of a suite. For every case, system and repeat,
//! [`runner::run`] starts a child process: this program with [`process_launcher::COMMAND`] and a
//! description of the case. The child runs [`measure::run_case`] and prints one line of JSON. The
//! [`report::Report`] is printed as a table and written as JSON or as a plot.
#![warn(missing_docs)]

mod case;
mod decode;
mod decoding_speed;
mod dense_baseline;
mod encode;
mod error;
mod gradients;
mod inputs;
mod lattice_recursion;
mod loss;
mod lower_bounds;
mod machine;
mod measure;
mod memory_forecast;
mod micro_benchmarks;
mod plot;
mod process_launcher;
mod pruned_baseline;
mod pruned_loss;
mod rates;
mod recognition_lattices;
mod report;
mod runner;
mod simple_joiner;
mod suites;
mod table;
mod train;
mod workload;

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
use suites::{Suite, SuiteOptions};

/// Compare speed and memory with other implementations, suite by suite
///
/// `bench micro product`, `bench micro formats` and `bench micro tiles` print rates of single
/// matrix products, of number formats and of tile shapes.
#[derive(Parser)]
#[command(name = "bench", version)]
struct BenchArgs {
    /// Suite to run
    suite: Suite,
    /// Run only the smallest cases, in less than a minute
    #[arg(long)]
    quick: bool,
    /// Run only the cases whose names contain this text
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
    /// Run only this system
    #[arg(long, value_name = "NAME")]
    system: Option<String>,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot of the results
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Start this many processes per case and system [default: 5, with --quick 2]
    #[arg(long, value_parser = value_parser!(u16).range(1..=MAX_REPEATS))]
    repeats: Option<u16>,
    /// Use this many threads in every system [default: all cores]
    #[arg(long, value_parser = value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Limit the memory besides inputs and gradients, for example 512MiB
    #[arg(long, value_name = "BYTES", default_value = "8GiB", value_parser = bytes::parse)]
    cap: usize,
    /// Limit the memory of panda's loss in bytes [default: recompute scores; suite pruned: 56MiB]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    budget: Option<usize>,
    /// For the suite `skip`: use the lattices of this checkpoint
    #[arg(long, value_name = "FILE", requires = "manifest")]
    checkpoint: Option<PathBuf>,
    /// For the suite `skip`: use the utterances of this manifest
    #[arg(long, value_name = "FILE", requires = "checkpoint")]
    manifest: Option<PathBuf>,
}

/// Maximum of `--repeats`.
const MAX_REPEATS: i64 = 10_000;
const DEFAULT_REPEATS: u16 = 5;
const QUICK_REPEATS: u16 = 2;
/// Approximate time of all timed steps of a process in seconds.
const STEP_SECONDS: f64 = 1.0;
const QUICK_STEP_SECONDS: f64 = 0.3;

/// Exit status of a program that a signal ends: 128 + SIGINT.
const STOPPED_STATUS: u8 = 130;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let outcome = match (words.next(), words.next()) {
        (Some(command), Some(case)) if command == process_launcher::COMMAND => measure::run_case(&case),
        (Some(command), Some(name)) if command == micro_benchmarks::COMMAND => micro_benchmarks::run(&name),
        _ => run(&BenchArgs::parse()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", Printable(&error));
            ExitCode::from(if matches!(error, Error::Stopped) { STOPPED_STATUS } else { 2 })
        }
    }
}

/// Runs the suite, prints a table, and writes the requested files.
fn run(arguments: &BenchArgs) -> Result<()> {
    kernels::check_simd_override().map_err(Error::Environment)?;
    if cfg!(all(target_arch = "x86_64", not(feature = "candle-avx512"))) {
        eprintln!("note: built without the feature candle-avx512: candle's matrix products use AVX2 only");
    }
    let (repeats, seconds) =
        if arguments.quick { (QUICK_REPEATS, QUICK_STEP_SECONDS) } else { (DEFAULT_REPEATS, STEP_SECONDS) };
    let options = SuiteOptions {
        quick: arguments.quick,
        threads: arguments.threads.map_or_else(machine::available_cores, usize::from),
        budget: arguments.budget,
        model: arguments.checkpoint.clone().zip(arguments.manifest.clone()),
    };
    // Open the outputs before the work, so that an error is reported immediately.
    let inputs: Vec<_> =
        [&arguments.checkpoint, &arguments.manifest].into_iter().flatten().map(PathBuf::as_path).collect();
    let open = |path: &Option<PathBuf>| path.as_ref().map(|path| OutputFile::new(path, &inputs)).transpose();
    let (json, svg) = (open(&arguments.json)?, open(&arguments.svg)?);
    let mut plan = arguments.suite.plan(&options)?;
    if let Some(text) = &arguments.case {
        plan.cases.retain(|case| case.name.contains(text));
    }
    if plan.cases.is_empty() {
        let expected = "a part of the name of a case";
        let text = arguments.case.clone().unwrap_or_default();
        return Err(Error::Argument { argument: "--case", expected, found: text });
    }
    if let Some(name) = &arguments.system {
        plan.cases.iter_mut().for_each(|case| case.systems.retain(|system| system.name == *name));
        plan.cases.retain(|case| !case.systems.is_empty());
        if plan.cases.is_empty() {
            let expected = "the name of a system of these cases";
            return Err(Error::Argument { argument: "--system", expected, found: name.clone() });
        }
    }
    let repeats = arguments.repeats.unwrap_or(repeats).into();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second signal ends the program immediately.
        let registered =
            signal_hook::flag::register_conditional_shutdown(signal, STOPPED_STATUS.into(), stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        registered.map_err(Error::Signal)?;
    }
    let settings = RunSettings { repeats, seconds, cap: arguments.cap as u64, stop };
    let processes = plan.cases.iter().map(|case| case.systems.len()).sum::<usize>() * repeats;
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {msg}, {elapsed} elapsed")
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
    table::format_table(&report.rows).iter().for_each(|line| println!("{}", Printable(line)));
    Ok(())
}
