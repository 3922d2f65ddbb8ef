//! Runs the systems of a case in alternation and turns their answers into rows.
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use indicatif::ProgressBar;
use tempfile::TempDir;

use super::answer::median;
use super::answer::{CaseAnswer, CaseShape};
use super::case::{Case, Plan, Spec, System};
use super::child::{Name, ProcessLauncher, ProcessOutcome};
use super::error::{Error, Result};
use super::floors::Training;
use super::forecast::{Forecast, forecast};
use super::gradients::largest_difference;
use super::machine::Machine;
use super::report::Report;
use super::report::{ResultRow, Status, compare_speeds};
use super::speed::Speed;

/// How a suite is run.
pub struct RunSettings {
    /// Processes for each case and system.
    pub repeats: usize,
    /// Seconds of timed steps in a process, about.
    pub seconds: f64,
    /// The most resident bytes above inputs and gradients.
    pub cap: u64,
    /// Set when the user wants to leave.
    pub stop: Arc<AtomicBool>,
}

/// A process that takes longer is stopped.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs every case of a suite.
///
/// # Errors
/// [`Error::Argument`], [`Error::Stopped`], and whatever went wrong in a process.
pub fn run(plan: &Plan, settings: RunSettings, progress: &ProgressBar) -> Result<Report> {
    // Before anything of ours makes the machine busy.
    let machine = Machine::here();
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

/// Everything that the cases of a suite have in common.
struct Runner<'a> {
    /// Starts processes.
    launcher: ProcessLauncher,
    /// Processes for each case and system.
    repeats: usize,
    /// Seconds of timed steps in a process.
    seconds: f64,
    /// The most resident bytes above inputs and gradients.
    cap: u64,
    /// Where gradients wait to be compared.
    folder: TempDir,
    /// Counts processes, including those that there was no need to start.
    progress: &'a ProgressBar,
}

/// Address space beside inputs, gradients and what the cap allows: the yardstick's operands, stacks and the reserves of
/// memory allocators.
const SLACK: u64 = 1 << 30;
const SLACK_PER_THREAD: u64 = 256 << 20;

/// A system on its way through the repeats of a case.
struct Competitor<'a> {
    system: &'a System,
    answers: Vec<CaseAnswer>,
    status: Status,
    note: Option<String>,
}

impl Runner<'_> {
    /// A row for each system of the case.
    ///
    /// # Errors
    /// [`Error::Stopped`], and whatever went wrong in a process.
    fn rows(&self, case: &Case) -> Result<Vec<ResultRow>> {
        let mut competitors: Vec<Competitor> =
            case.systems.iter().map(|system| self.admit(case, system)).collect();
        // Without its rival's, nobody's gradient is wanted.
        let admitted: Vec<bool> = competitors.iter().map(|all| all.status == Status::Ok).collect();
        let compared = |place: usize| admitted[case.rival(place).unwrap_or(place)];
        for repeat in 0..self.repeats {
            for (place, competitor) in competitors.iter_mut().enumerate() {
                if competitor.status == Status::Ok {
                    let gradients = (repeat == 0
                        && (compared(place) || case.wants_skip_report(competitor.system)))
                    .then(|| self.gradients(place));
                    self.measure(case, competitor, gradients)?;
                }
                self.progress.inc(1);
            }
        }
        let known = competitors.iter().find_map(|competitor| Some(competitor.answers.first()?.shape));
        let shape = known.unwrap_or_else(|| case.work.shape());
        let measured = |place: usize| competitors[place].status == Status::Ok;
        let rows = competitors.iter().enumerate().map(|(place, competitor)| {
            let difference = match case.rival(place).filter(|&rival| measured(place) && measured(rival)) {
                Some(rival) => Some(self.difference(case, competitor.system, place, rival)?),
                None => None,
            };
            Ok(competitor.row(case, shape, difference))
        });
        let mut rows = rows.collect::<Result<Vec<ResultRow>>>()?;
        compare_speeds(&mut rows);
        for place in 0..competitors.len() {
            // A folder that was never made need not go.
            let _ = std::fs::remove_dir_all(self.gradients(place));
        }
        Ok(rows)
    }

    /// A system at the start, out of memory or skipped if that can be known beforehand.
    fn admit<'s>(&self, case: &Case, system: &'s System) -> Competitor<'s> {
        let (status, note) = match forecast(&case.work, system) {
            Forecast::Skipped(why) => (Status::Skipped, Some(why)),
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
        let room = SLACK + SLACK_PER_THREAD * system.threads as u64;
        let limit = (2 * case.work.input_bytes()).saturating_add(self.cap).saturating_add(room);
        let (status, note) = match self.launcher.run(&Name { case: &case.name, system }, &spec, limit)? {
            ProcessOutcome::Measured(answer) => {
                let peak = answer.peak_bytes.unwrap_or(0);
                competitor.answers.push(*answer);
                match peak > self.cap {
                    true => (Status::OutOfMemory, Some(format!("took {:.0} MB", peak as f64 / 1e6))),
                    false => return Ok(()),
                }
            }
            ProcessOutcome::OutOfMemory => (Status::OutOfMemory, Some("was refused memory".to_owned())),
            ProcessOutcome::TimedOut => (Status::Skipped, Some("took too long".to_owned())),
        };
        (competitor.status, competitor.note) = (status, note);
        competitor.answers.clear();
        Ok(())
    }

    fn gradients(&self, place: usize) -> PathBuf {
        self.folder.path().join(place.to_string())
    }

    fn difference(&self, case: &Case, system: &System, place: usize, rival: usize) -> Result<f64> {
        let difference = largest_difference(&self.gradients(place), &self.gradients(rival))?;
        match difference.is_finite() {
            true => Ok(difference),
            false => Err(Error::Case {
                case: case.name.clone(),
                system: system.name.clone(),
                found: "a gradient that is no number where the rival's is one".to_owned(),
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
        // Each process against its own yardstick: they ran under the same conditions.
        let share = |answer: &CaseAnswer| Some(rate(median(&answer.milliseconds)?)? / answer.sgemm?);
        let shares: Vec<f64> = self.answers.iter().filter_map(share).collect();
        let decoded = self.answers.iter().find_map(|answer| answer.decoding).zip(median_ms);
        let products: Vec<f64> = self.answers.iter().filter_map(|answer| answer.sgemm).collect();
        let trained: Vec<_> = self.answers.iter().filter_map(|answer| answer.training).collect();
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
            speed: decoded.map(speed),
            training: median_ms.and_then(|time| Training::new(&trained, time, operations, median(&products))),
            mark: case.mark.clone(),
        }
    }
}
