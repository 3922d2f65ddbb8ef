//! Runs all systems of each benchmark case and computes results.
//!
//! The steps of a case: predict the memory of each system, measure it in child processes, compare
//! gradients with those of the baseline, compute one row of the report per system.
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use indicatif::ProgressBar;
use tempfile::TempDir;

use super::case::{Case, CaseSpec, Plan, System};
use super::decoding_speed::DecodingSpeed;
use super::error::{Error, Result};
use super::gradients::largest_difference;
use super::lower_bounds::TrainingSpeed;
use super::machine::Machine;
use super::memory_forecast::{Forecast, forecast};
use super::process_launcher::{ProcessLauncher, ProcessName, ProcessOutcome};
use super::report::Report;
use super::report::{ResultRow, Status, compare_speeds};
use super::workload::median;
use super::workload::{CaseMeasurement, CaseShape};

/// Settings of a run of a suite.
pub(crate) struct RunSettings {
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
pub(crate) fn run(plan: &Plan, settings: RunSettings, progress: &ProgressBar) -> Result<Report> {
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
        rows.extend(runner.run_case(case)?);
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
struct SystemRun<'a> {
    system: &'a System,
    measurements: Vec<CaseMeasurement>,
    status: Status,
    note: Option<String>,
}

impl Runner<'_> {
    /// Measures the systems of a case; returns one row per system.
    ///
    /// # Errors
    /// [`Error::Stopped`], and failures of a child process.
    fn run_case(&self, case: &Case) -> Result<Vec<ResultRow>> {
        // Run the systems in turn, so that all have the same conditions.
        let mut runs: Vec<SystemRun> = case.systems.iter().map(|system| self.predict(case, system)).collect();
        // Gradients are compared only if the baseline can run.
        let runnable: Vec<bool> = runs.iter().map(|run| run.status == Status::Ok).collect();
        let is_compared = |index: usize| runnable[case.baseline(index).unwrap_or(index)];
        for repeat in 0..self.repeats {
            for (index, run) in runs.iter_mut().enumerate() {
                if run.status == Status::Ok {
                    let gradients = (repeat == 0
                        && (is_compared(index) || case.needs_skip_report(run.system)))
                    .then(|| self.gradient_folder(index));
                    self.measure(case, run, gradients)?;
                }
                self.progress.inc(1);
            }
        }
        // Compare gradients, and compute the rows of the report.
        let measured_shape = runs.iter().find_map(|run| Some(run.measurements.first()?.shape));
        let shape = measured_shape.unwrap_or_else(|| case.work.shape());
        let is_ok = |index: usize| runs[index].status == Status::Ok;
        let rows = runs.iter().enumerate().map(|(index, run)| {
            let baseline = case.baseline(index).filter(|&baseline| is_ok(index) && is_ok(baseline));
            let difference = match baseline {
                Some(baseline) => Some(self.gradient_difference(case, run.system, index, baseline)?),
                None => None,
            };
            Ok(run.result_row(case, shape, difference))
        });
        let mut rows = rows.collect::<Result<Vec<ResultRow>>>()?;
        compare_speeds(&mut rows);
        for index in 0..runs.len() {
            // Fails if the folder does not exist.
            let _ = std::fs::remove_dir_all(self.gradient_folder(index));
        }
        Ok(rows)
    }

    /// Returns a system with its predicted status: ok, out of memory or skipped.
    fn predict<'s>(&self, case: &Case, system: &'s System) -> SystemRun<'s> {
        let (status, note) = match forecast(&case.work, system) {
            Forecast::Skipped(reason) => (Status::Skipped, Some(reason)),
            Forecast::Bytes(bytes) if bytes > self.cap as f64 => {
                (Status::OutOfMemory, Some(format!("predicted {:.0} MB", bytes / 1e6)))
            }
            Forecast::Bytes(_) | Forecast::Unknown => (Status::Ok, None),
        };
        SystemRun { system, measurements: Vec::new(), status, note }
    }

    fn measure(&self, case: &Case, run: &mut SystemRun, gradients: Option<PathBuf>) -> Result<()> {
        let system = run.system;
        let (work, method) = (case.work.clone(), system.method.clone());
        let spec = CaseSpec { work, method, threads: system.threads, seconds: self.seconds, gradients };
        let extra = EXTRA_BYTES + EXTRA_BYTES_PER_THREAD * system.threads as u64;
        let limit = (2 * case.work.input_bytes()).saturating_add(self.cap).saturating_add(extra);
        let name = ProcessName { case: &case.name, system };
        let (status, note) = match self.launcher.run(&name, &spec, limit)? {
            ProcessOutcome::Measured(measurement) => {
                let peak = measurement.peak_bytes.unwrap_or(0);
                run.measurements.push(*measurement);
                match peak > self.cap {
                    true => (Status::OutOfMemory, Some(format!("used {:.0} MB", peak as f64 / 1e6))),
                    false => return Ok(()),
                }
            }
            ProcessOutcome::OutOfMemory => (Status::OutOfMemory, Some("allocation failed".to_owned())),
            ProcessOutcome::TimedOut => (Status::Skipped, Some("time limit exceeded".to_owned())),
        };
        (run.status, run.note) = (status, note);
        run.measurements.clear();
        Ok(())
    }

    /// Returns the folder of the gradients of a system.
    fn gradient_folder(&self, index: usize) -> PathBuf {
        self.folder.path().join(index.to_string())
    }

    fn gradient_difference(
        &self,
        case: &Case,
        system: &System,
        index: usize,
        baseline: usize,
    ) -> Result<f64> {
        let difference = largest_difference(&self.gradient_folder(index), &self.gradient_folder(baseline))?;
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

impl SystemRun<'_> {
    fn result_row(&self, case: &Case, shape: CaseShape, rel_grad_diff: Option<f64>) -> ResultRow {
        let times: Vec<f64> =
            self.measurements.iter().flat_map(|measurement| measurement.milliseconds.clone()).collect();
        let median_ms = median(&times);
        let operations = self.measurements.iter().find_map(|measurement| measurement.operations);
        let rate = |milliseconds: f64| Some(operations? as f64 / milliseconds / 1e6);
        // Each rate is divided by the reference rate of the same process, for equal conditions.
        let share = |measurement: &CaseMeasurement| {
            Some(rate(median(&measurement.milliseconds)?)? / measurement.sgemm?)
        };
        let shares: Vec<f64> = self.measurements.iter().filter_map(share).collect();
        let decoding = self.measurements.iter().find_map(|measurement| measurement.decoding).zip(median_ms);
        let products: Vec<f64> =
            self.measurements.iter().filter_map(|measurement| measurement.sgemm).collect();
        let reports: Vec<_> =
            self.measurements.iter().filter_map(|measurement| measurement.training).collect();
        let speed = |(report, time)| DecodingSpeed::new(report, shape.B, time, median(&products));
        ResultRow {
            case: case.name.clone(),
            system: self.system.name.clone(),
            shape,
            threads: self.system.threads,
            median_ms,
            min_ms: times.iter().copied().reduce(f64::min),
            max_ms: times.iter().copied().reduce(f64::max),
            peak_bytes: self.measurements.iter().filter_map(|measurement| measurement.peak_bytes).max(),
            gflops: median_ms.and_then(rate),
            sgemm_share: median(&shares),
            rel_grad_diff,
            status: self.status,
            note: self.note.clone(),
            skip: self.measurements.iter().find_map(|measurement| measurement.skip),
            pruning: self.measurements.iter().find_map(|measurement| measurement.pruning),
            speed: decoding.map(speed),
            training: median_ms
                .and_then(|time| TrainingSpeed::new(&reports, time, operations, median(&products))),
            mark: case.mark.clone(),
        }
    }
}
