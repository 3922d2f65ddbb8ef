//! Starts a child process for each benchmark case; limits its memory and time.
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::case::{CaseSpec, System};
use super::error::{Error, Result};
use super::workload::CaseMeasurement;

/// First argument of a child process; the second is its [`CaseSpec`].
pub(crate) const COMMAND: &str = "case";

/// Time between checks of a running process.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Outcome of a process.
pub(crate) enum ProcessOutcome {
    /// The process returned measurements.
    Measured(Box<CaseMeasurement>),
    /// An allocation failed, or the system killed the process.
    OutOfMemory,
    /// The process exceeded the time limit.
    TimedOut,
}

/// Starts processes and waits for them.
pub(crate) struct ProcessLauncher {
    /// Path of this program.
    pub program: PathBuf,
    /// Set by signals that stop the suite.
    pub stop: Arc<AtomicBool>,
    /// Time limit of a process.
    pub timeout: Duration,
}

/// Case and system of a process, for messages.
pub(crate) struct ProcessName<'a> {
    /// Name of the case.
    pub case: &'a str,
    /// System of the process.
    pub system: &'a System,
}

impl ProcessName<'_> {
    fn io_error(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let (case, system) = (self.case.to_owned(), self.system.name.clone());
        move |source| Error::Process { case, system, action, source }
    }

    fn case_error(&self, found: String) -> Error {
        Error::Case { case: self.case.to_owned(), system: self.system.name.clone(), found }
    }
}

impl ProcessLauncher {
    /// Runs a case in a child process; limits its address space.
    ///
    /// # Errors
    /// [`Error::Stopped`], and failures for other reasons than memory.
    pub(crate) fn run(
        &self,
        name: &ProcessName,
        spec: &CaseSpec,
        memory_limit: u64,
    ) -> Result<ProcessOutcome> {
        let json = serde_json::to_string(spec)
            .map_err(|source| Error::Json { what: "description of a case", source })?;
        let mut command = self.command(&json, memory_limit);
        // Candle's matrix products read it too, on every call.
        command.env("RAYON_NUM_THREADS", spec.threads.to_string());
        let mut child = command.spawn().map_err(name.io_error("start a process"))?;
        let stdout = spawn_reader(child.stdout.take());
        let stderr = spawn_reader(child.stderr.take());
        let status = self.wait(&mut child).map_err(name.io_error("wait for a process"));
        // Kill the process in any case; this fails if it has ended, which is fine.
        let _ = child.kill();
        let _ = child.wait();
        let (stdout, stderr) = (join_reader(stdout), join_reader(stderr));
        match status? {
            _ if self.stop.load(Ordering::SeqCst) => Err(Error::Stopped),
            None => Ok(ProcessOutcome::TimedOut),
            Some(status) if status.success() => match serde_json::from_str(stdout.trim()) {
                Ok(answer) => Ok(ProcessOutcome::Measured(Box::new(answer))),
                Err(error) => Err(name.case_error(format!("{error} in the answer {stdout:?}"))),
            },
            Some(status) if is_interrupted(status) => Err(Error::Stopped),
            Some(status) if is_killed(status) || stderr.contains("memory allocation of") => {
                Ok(ProcessOutcome::OutOfMemory)
            }
            Some(status) => {
                let last_line = stderr.trim().lines().last().unwrap_or("no message").to_owned();
                Err(name.case_error(format!("{status}: {last_line}")))
            }
        }
    }

    fn command(&self, spec: &str, memory_limit: u64) -> Command {
        let mut command = if cfg!(unix) {
            let mut shell = Command::new("sh");
            // In kilobytes. On systems without this limit, the reported peak is checked.
            shell.args(["-c", "ulimit -v \"$1\" 2>/dev/null; shift; exec \"$@\"", "sh"]);
            shell.arg((memory_limit / 1024).to_string()).arg(&self.program);
            shell
        } else {
            Command::new(&self.program)
        };
        command.args([COMMAND, spec]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Waits for a process; returns `None` after the time limit or a signal.
    fn wait(&self, child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
        let start = Instant::now();
        while start.elapsed() < self.timeout && !self.stop.load(Ordering::SeqCst) {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(None)
    }
}

/// Starts a thread that reads a pipe to its end.
fn spawn_reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // After a read error, return the bytes before it.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn join_reader(reader: JoinHandle<String>) -> String {
    reader.join().unwrap_or_default()
}

/// Returns true if SIGKILL ended the process, as when memory runs out.
fn is_killed(status: ExitStatus) -> bool {
    const SIGKILL: i32 = 9;
    ending_signal(status) == Some(SIGKILL)
}

/// Returns true if SIGINT or SIGTERM ended the process.
///
/// Ctrl-C in a terminal reaches child and parent, possibly the child first.
fn is_interrupted(status: ExitStatus) -> bool {
    const SIGINT: i32 = 2;
    const SIGTERM: i32 = 15;
    matches!(ending_signal(status), Some(SIGINT | SIGTERM))
}

#[cfg(unix)]
/// Returns the signal that ended a process.
fn ending_signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn ending_signal(_: ExitStatus) -> Option<i32> {
    None
}
