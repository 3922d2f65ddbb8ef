//! `panda bench SUITE`
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bench::{BenchError, Choice, Observer, Plan, Settings, Suite};
use indicatif::{ProgressBar, ProgressStyle};

use crate::bytes;
use crate::error::{Error, Result};
use crate::out::{complain, say};
use crate::{numbers, outputs, signals};

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
    #[arg(long, value_parser = numbers::within("expected a number of runs, from 1 to 10000", 1..=MOST_REPEATS))]
    repeats: Option<usize>,
    /// Threads of every system [default: all cores]
    #[arg(long, value_parser = numbers::within("expected at least 1", 1..=usize::MAX))]
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

/// Runs the suite, prints a table, and writes what was asked for.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let stop = signals::watch("stopping; Ctrl-C once more leaves at once")?;
    match measure_suite(arguments, stop) {
        Err(Error::Bench(BenchError::Stopped)) => {
            complain!("{}", BenchError::Stopped);
            Ok(ExitCode::from(signals::STOPPED))
        }
        outcome => {
            outcome?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Most runs of a contestant; a mistake, beyond.
const MOST_REPEATS: usize = 10_000;

fn measure_suite(arguments: &Arguments, stop: Arc<AtomicBool>) -> Result<()> {
    let (repeats, seconds) =
        if arguments.quick { (QUICK_REPEATS, QUICK_SECONDS) } else { (REPEATS, SECONDS) };
    let choice = Choice {
        quick: arguments.quick,
        threads: arguments.threads.unwrap_or_else(bench::cores),
        budget: arguments.budget,
        model: arguments.checkpoint.clone().zip(arguments.manifest.clone()),
    };
    let inputs: Vec<&PathBuf> = [&arguments.checkpoint, &arguments.manifest].into_iter().flatten().collect();
    let [json, svg] = outputs::open([&arguments.json, &arguments.svg], &inputs, &[])?;
    let plan = arguments.suite.plan(&choice)?;
    let repeats = arguments.repeats.unwrap_or(repeats);
    let settings = Settings { repeats, seconds, cap: arguments.cap as u64, stop };
    let progress = Progress::new(&plan, repeats);
    let report = bench::run(&plan, settings, &progress);
    progress.0.finish_and_clear();
    let report = report?;
    // Files first: nobody may be there to read the table.
    if let Some(svg) = svg {
        svg.write(report.picture(&plan)?.as_bytes())?;
    }
    if let Some(json) = json {
        json.write(report.json()?.as_bytes())?;
    }
    let machine = &report.machine;
    say!("{}: {} cores of {}, {}", report.suite, machine.cores, machine.cpu, machine.date)?;
    report.lines().iter().try_for_each(|line| say!("{line}"))
}

/// A bar over the processes, on a terminal only.
struct Progress(ProgressBar);

impl Progress {
    fn new(plan: &Plan, repeats: usize) -> Self {
        let processes = plan.cases.iter().map(|case| case.systems.len()).sum::<usize>() * repeats;
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {msg}, {elapsed} so far")
            .expect("the template is well-formed");
        Self(ProgressBar::new(processes as u64).with_style(style))
    }
}

impl Observer for Progress {
    fn on_case(&self, name: &str) {
        self.0.set_message(name.to_owned());
    }

    fn on_process(&self) {
        self.0.inc(1);
    }
}

/// The hidden command of a case's process: measures, and answers with one line of JSON.
pub fn run_case(arguments: &CaseArguments) -> Result<ExitCode> {
    bench::run_case(&arguments.spec)?;
    Ok(ExitCode::SUCCESS)
}
