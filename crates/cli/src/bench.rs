//! `panda bench SUITE`: ours and its rivals side by side, each case and system in a process of its own.
mod answer;
mod case;
mod child;
mod dense;
mod error;
mod files;
mod forecast;
mod gradients;
mod inputs;
mod lattices;
mod loss;
mod machine;
mod measure;
mod memory;
mod noise;
mod picture;
mod pruned;
mod pruned_dense;
mod row;
mod runner;
mod sgemm;
mod subject;
mod suites;
mod table;
mod trivial;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::bytes;
use case::Plan;
pub use child::COMMAND as CASE;
use child::Launcher;
pub use error::BenchError;
use error::Result;
use machine::Machine;
use row::{Report, Row};
use runner::Runner;
use suites::{Choice, Suite};

/// Arguments of `panda bench`.
#[derive(clap::Args)]
pub struct Arguments {
    /// What is compared
    suite: Suite,
    /// The smallest honest part, in less than a minute
    #[arg(long)]
    quick: bool,
    /// Write the outcome as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a picture of the outcome
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Processes for each case and system [default: 5, quick 2]
    #[arg(long)]
    repeats: Option<usize>,
    /// Threads of every system [default: all cores]
    #[arg(long)]
    threads: Option<usize>,
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

/// Arguments of the process of a case.
#[derive(clap::Args)]
pub struct CaseArguments {
    /// The case as JSON
    spec: String,
}

const REPEATS: usize = 5;
const QUICK_REPEATS: usize = 2;
/// Timed steps of a process take about so many seconds.
const SECONDS: f64 = 1.0;
const QUICK_SECONDS: f64 = 0.3;
/// A process that takes longer is stopped.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs the suite, prints a table, and writes what was asked for.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::SeqCst))?;
    match measure_suite(arguments, stop) {
        Err(BenchError::Stopped) => {
            eprintln!("{}", BenchError::Stopped);
            Ok(ExitCode::from(130))
        }
        outcome => {
            outcome?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn measure_suite(arguments: &Arguments, stop: Arc<AtomicBool>) -> Result<()> {
    let at_least_one = |argument, value: usize| match value {
        0 => Err(BenchError::Argument { argument, expected: "at least 1", found: "0".to_owned() }),
        _ => Ok(value),
    };
    let repeats = arguments.repeats.unwrap_or(if arguments.quick { QUICK_REPEATS } else { REPEATS });
    let choice = Choice {
        quick: arguments.quick,
        threads: at_least_one("threads", arguments.threads.unwrap_or_else(machine::cores))?,
        budget: arguments.budget,
        model: arguments.checkpoint.clone().zip(arguments.manifest.clone()),
    };
    // Before anything of ours makes the machine busy.
    let machine = Machine::here();
    let plan = arguments.suite.plan(&choice);
    let processes = plan.cases.iter().map(|case| case.systems.len()).sum::<usize>() * repeats;
    let temporary = std::env::temp_dir();
    let program = std::env::current_exe().map_err(BenchError::file("panda".as_ref(), "find this program"))?;
    let runner = Runner {
        launcher: Launcher { program, stop, timeout: TIMEOUT },
        repeats: at_least_one("repeats", repeats)?,
        seconds: if arguments.quick { QUICK_SECONDS } else { SECONDS },
        cap: arguments.cap as u64,
        folder: tempfile::tempdir().map_err(BenchError::file(&temporary, "make a temporary folder"))?,
        bar: progress(processes as u64),
    };
    let mut rows = Vec::new();
    for case in &plan.cases {
        runner.bar.set_message(case.name.clone());
        rows.extend(runner.rows(case)?);
    }
    runner.bar.finish_and_clear();
    report(arguments, &plan, machine, rows)
}

/// On a terminal only.
fn progress(processes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {msg}, {elapsed} so far")
        .expect("the template is well-formed");
    ProgressBar::new(processes).with_style(style)
}

fn report(arguments: &Arguments, plan: &Plan, machine: Machine, rows: Vec<Row>) -> Result<()> {
    println!("{}: {} cores of {}, {}", plan.suite, machine.cores, machine.cpu, machine.date);
    table::lines(&rows).iter().for_each(|line| println!("{line}"));
    if let Some(path) = &arguments.svg {
        files::write_atomically(path, &picture::draw(plan, &rows)?)?;
    }
    if let Some(path) = &arguments.json {
        let report = Report { suite: plan.suite, machine, rows };
        let text = serde_json::to_string_pretty(&report)
            .map_err(|source| BenchError::Json { what: "outcome", source })?;
        files::write_atomically(path, &(text + "\n"))?;
    }
    Ok(())
}

/// The hidden command of a case's process: measures, and answers with one line of JSON.
pub fn run_case(arguments: &CaseArguments) -> Result<ExitCode> {
    let spec = measure::parse(&arguments.spec)?;
    measure::end_with_parent();
    let answer = measure::run(&spec)?;
    let line = serde_json::to_string(&answer)
        .map_err(|source| BenchError::Json { what: "answer of a case", source })?;
    println!("{line}");
    Ok(ExitCode::SUCCESS)
}
