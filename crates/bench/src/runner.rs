//! Runs all systems of each benchmark case and computes results.
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use indicatif::ProgressBar;
use tempfile::TempDir;

use super::answer::median;
use super::answer::{CaseAnswer, CaseShape};
use super::case::{Case, Plan, Spec, System};
use super::child::{ProcessLauncher, ProcessName, ProcessOutcome};
use super::error::{Error, Result};
use super::forecast::{Forecast, forecast};
use super::gradients::largest_difference;
use super::lower_bounds::Training;
use super::machine::Machine;
use super::report::Report;
use super::report::{ResultRow, Status, compare_speeds};
use super::speed::Speed;

/// Settings of a run of a suite.
pub struct RunSettings {
    /// Processes per case and system.
    pub repeats: usize,
    /// Approximate time of all timed steps of a process in seconds.
    pub seconds: f64,
    /// Limit of the resident bytes without inputs and gradients.
    pub cap: u64,
    /// Set by signals that stop the suite.
    pub stop: Arc<AtomicBool>,
}

/// Time limit of a process.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs every case of a suite.
///
/// # Errors
/// [`Error::Argument`], [`Error::Stopped`], and failures of a child process.
pub fn run(plan: &Plan, settings: RunSettings, progress: &ProgressBar) -> Result<Report> {
    // Read the load average before the first process starts.
    let machine = Machine::detect();
    let RunSettings { repeats, seconds, cap, stop } = settings;
    if repeats == 0 {
        let (argument, expected) = ("repeats", "at least 1");
        return Err(Error::Argument { argument, expected, found: "0".to_owned() });
    }
    let temporary = std::env::temp_dir();
    let program = std::env::current_exe().map_err(Error::file("bench".as_ref(), "find this program"))?;
    let runner = Runner {
        launcher: ProcessLauncher { program, stop, timeout: TIMEOUT },
        repeats,
        seconds,
        cap,
        folder: tempfile::tempdir().map_err(Error::file(&temporary, "make a temporary folder"))?,
        progress,
    };
    let mut rows = Vec::new();
    for case in &plan.cases {
        progress.set_message(case.name.clone());
        rows.extend(runner.rows(case)?);
    }
    Ok(Report { suite: plan.suite, machine, rows })
}

/// State shared by the cases of a suite.
struct Runner<'a> {
    /// Starts processes.
    launcher: ProcessLauncher,
    /// Processes per case and system.
    repeats: usize,
    /// Approximate time of all timed steps of a process in seconds.
    seconds: f64,
    /// Limit of the resident bytes without inputs and gradients.
    cap: u64,
    /// Temporary folder of the gradients.
    folder: TempDir,
    /// Counts processes, including those that are not started.
    progress: &'a ProgressBar,
}

/// Address space in addition to inputs, gradients and the cap.
///
/// For the operands of the reference product, stacks, and reserves of memory allocators.
const EXTRA_BYTES: u64 = 1 << 30;
const EXTRA_BYTES_PER_THREAD: u64 = 256 << 20;

/// A system and its measurements on a case.
struct Competitor<'a> {
    system: &'a System,
    answers: Vec<CaseAnswer>,
    status: Status,
    note: Option<String>,
}

impl Runner<'_> {
    /// Measures the systems of a case; returns one row per system.
    ///
    /// # Errors
    /// [`Error::Stopped`], and failures of a child process.
    fn rows(&self, case: &Case) -> Result<Vec<ResultRow>> {
        let mut competitors: Vec<Competitor> =
            case.systems.iter().map(|system| self.predict(case, system)).collect();
        // Gradients are compared only if the baseline can run.
        let runnable: Vec<bool> =
            competitors.iter().map(|competitor| competitor.status == Status::Ok).collect();
        let is_compared = |index: usize| runnable[case.baseline(index).unwrap_or(index)];
        for repeat in 0..self.repeats {
            for (index, competitor) in competitors.iter_mut().enumerate() {
                if competitor.status == Status::Ok {
                    let gradients = (repeat == 0
                        && (is_compared(index) || case.needs_skip_report(competitor.system)))
                    .then(|| self.gradients(index));
                    self.measure(case, competitor, gradients)?;
                }
                self.progress.inc(1);
            }
        }
        let measured_shape =
            competitors.iter().find_map(|competitor| Some(competitor.answers.first()?.shape));
        let shape = measured_shape.unwrap_or_else(|| case.work.shape());
        let is_ok = |index: usize| competitors[index].status == Status::Ok;
        let rows = competitors.iter().enumerate().map(|(index, competitor)| {
            let baseline = case.baseline(index).filter(|&baseline| is_ok(index) && is_ok(baseline));
            let difference = match baseline {
                Some(baseline) => Some(self.difference(case, competitor.system, index, baseline)?),
                None => None,
            };
            Ok(competitor.row(case, shape, difference))
        });
        let mut rows = rows.collect::<Result<Vec<ResultRow>>>()?;
        compare_speeds(&mut rows);
        for index in 0..competitors.len() {
            // Fails if the folder does not exist.
            let _ = std::fs::remove_dir_all(self.gradients(index));
        }
        Ok(rows)
    }

    /// Returns a system with its predicted status: ok, out of memory or skipped.
    fn predict<'s>(&self, case: &Case, system: &'s System) -> Competitor<'s> {
        let (status, note) = match forecast(&case.work, system) {
            Forecast::Skipped(reason) => (Status::Skipped, Some(reason)),
            Forecast::Bytes(bytes) if bytes > self.cap as f64 => {
                (Status::OutOfMemory, Some(format!("predicted {:.0} MB", bytes / 1e6)))
            }
            Forecast::Bytes(_) | Forecast::Unknown => (Status::Ok, None),
        };
        Competitor { system, answers: Vec::new(), status, note }
    }

    fn measure(&self, case: &Case, competitor: &mut Competitor, gradients: Option<PathBuf>) -> Result<()> {
        let system = competitor.system;
        let (work, method) = (case.work.clone(), system.method.clone());
        let spec = Spec { work, method, threads: system.threads, seconds: self.seconds, gradients };
        let extra = EXTRA_BYTES + EXTRA_BYTES_PER_THREAD * system.threads as u64;
        let limit = (2 * case.work.input_bytes()).saturating_add(self.cap).saturating_add(extra);
        let name = ProcessName { case: &case.name, system };
        let (status, note) = match self.launcher.run(&name, &spec, limit)? {
            ProcessOutcome::Measured(answer) => {
                let peak = answer.peak_bytes.unwrap_or(0);
                competitor.answers.push(*answer);
                match peak > self.cap {
                    true => (Status::OutOfMemory, Some(format!("used {:.0} MB", peak as f64 / 1e6))),
                    false => return Ok(()),
                }
            }
            ProcessOutcome::OutOfMemory => (Status::OutOfMemory, Some("allocation failed".to_owned())),
            ProcessOutcome::TimedOut => (Status::Skipped, Some("time limit exceeded".to_owned())),
        };
        (competitor.status, competitor.note) = (status, note);
        competitor.answers.clear();
        Ok(())
    }

    /// Returns the folder of the gradients of a system.
    fn gradients(&self, index: usize) -> PathBuf {
        self.folder.path().join(index.to_string())
    }

    fn difference(&self, case: &Case, system: &System, index: usize, baseline: usize) -> Result<f64> {
        let difference = largest_difference(&self.gradients(index), &self.gradients(baseline))?;
        match difference.is_finite() {
            true => Ok(difference),
            false => Err(Error::Case {
                case: case.name.clone(),
                system: system.name.clone(),
                found: "a NaN gradient; the baseline's is finite".to_owned(),
            }),
        }
    }
}

impl Competitor<'_> {
    fn row(&self, case: &Case, shape: CaseShape, rel_grad_diff: Option<f64>) -> ResultRow {
        let times: Vec<f64> = self.answers.iter().flat_map(|answer| answer.milliseconds.clone()).collect();
        let median_ms = median(&times);
        let operations = self.answers.iter().find_map(|answer| answer.operations);
        let rate = |milliseconds: f64| Some(operations? as f64 / milliseconds / 1e6);
        // Each rate is divided by the reference rate of the same process, for equal conditions.
        let share = |answer: &CaseAnswer| Some(rate(median(&answer.milliseconds)?)? / answer.sgemm?);
        let shares: Vec<f64> = self.answers.iter().filter_map(share).collect();
        let decoding = self.answers.iter().find_map(|answer| answer.decoding).zip(median_ms);
        let products: Vec<f64> = self.answers.iter().filter_map(|answer| answer.sgemm).collect();
        let reports: Vec<_> = self.answers.iter().filter_map(|answer| answer.training).collect();
        let speed = |(report, time)| Speed::new(report, shape.B, time, median(&products));
        ResultRow {
            case: case.name.clone(),
            system: self.system.name.clone(),
            shape,
            threads: self.system.threads,
            median_ms,
            min_ms: times.iter().copied().reduce(f64::min),
            max_ms: times.iter().copied().reduce(f64::max),
            peak_bytes: self.answers.iter().filter_map(|answer| answer.peak_bytes).max(),
            gflops: median_ms.and_then(rate),
            sgemm_share: median(&shares),
            rel_grad_diff,
            status: self.status,
            note: self.note.clone(),
            skip: self.answers.iter().find_map(|answer| answer.skip),
            pruning: self.answers.iter().find_map(|answer| answer.pruning),
            speed: decoding.map(speed),
            training: median_ms.and_then(|time| Training::new(&reports, time, operations, median(&products))),
            mark: case.mark.clone(),
        }
    }
}
