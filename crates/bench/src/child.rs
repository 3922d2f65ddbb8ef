//! The parent's side of a case: starts its process, limits it, and never leaves it behind.
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::answer::CaseAnswer;
use super::case::{Spec, System};
use super::error::{Error, Result};

/// First argument of a child process; the second is the description of its case.
pub const COMMAND: &str = "case";

/// How a process ended.
pub enum ProcessOutcome {
    /// With an answer.
    Measured(Box<CaseAnswer>),
    /// It could not get, or was refused, memory.
    OutOfMemory,
    /// It was stopped.
    TimedOut,
}

/// Starts processes and waits for them.
pub struct ProcessLauncher {
    /// This program.
    pub program: PathBuf,
    /// Set when the user wants to leave.
    pub stop: Arc<AtomicBool>,
    /// The most that a process may take.
    pub timeout: Duration,
}

/// Who is running, for messages.
pub struct Name<'a> {
    /// The case.
    pub case: &'a str,
    /// The system.
    pub system: &'a System,
}

impl Name<'_> {
    fn process(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let (case, system) = (self.case.to_owned(), self.system.name.clone());
        move |source| Error::Process { case, system, action, source }
    }

    fn failed(&self, found: String) -> Error {
        Error::Case { case: self.case.to_owned(), system: self.system.name.clone(), found }
    }
}

impl ProcessLauncher {
    /// Runs a case in a process of its own, whose address space has at most `limit` bytes.
    ///
    /// # Errors
    /// [`Error::Stopped`], and failures that have nothing to do with memory.
    pub fn run(&self, name: &Name, spec: &Spec, limit: u64) -> Result<ProcessOutcome> {
        let json = serde_json::to_string(spec)
            .map_err(|source| Error::Json { what: "description of a case", source })?;
        let mut command = self.command(&json, limit);
        // Candle's products look here as well, on every call.
        command.env("RAYON_NUM_THREADS", spec.threads.to_string());
        let mut child = command.spawn().map_err(name.process("start a process"))?;
        let out = reader(child.stdout.take());
        let err = reader(child.stderr.take());
        let status = self.wait(&mut child).map_err(name.process("wait for a process"));
        // Whatever happened above, nobody stays behind; a process that has ended cannot be killed, and need not.
        let _ = child.kill();
        let _ = child.wait();
        let (out, err) = (text(out), text(err));
        match status? {
            _ if self.stop.load(Ordering::SeqCst) => Err(Error::Stopped),
            None => Ok(ProcessOutcome::TimedOut),
            Some(status) if status.success() => match serde_json::from_str(out.trim()) {
                Ok(answer) => Ok(ProcessOutcome::Measured(Box::new(answer))),
                Err(error) => Err(name.failed(format!("{error} in the answer {out:?}"))),
            },
            Some(status) if interrupted(status) => Err(Error::Stopped),
            Some(status) if killed(status) || err.contains("memory allocation of") => {
                Ok(ProcessOutcome::OutOfMemory)
            }
            Some(status) => {
                let last = err.trim().lines().last().unwrap_or("no message").to_owned();
                Err(name.failed(format!("{status}: {last}")))
            }
        }
    }

    fn command(&self, spec: &str, limit: u64) -> Command {
        let mut command = if cfg!(unix) {
            let mut shell = Command::new("sh");
            // Kilobytes. Where there is no such limit, the peak that the process reports still counts.
            shell.args(["-c", "ulimit -v \"$1\" 2>/dev/null; shift; exec \"$@\"", "sh"]);
            shell.arg((limit / 1024).to_string()).arg(&self.program);
            shell
        } else {
            Command::new(&self.program)
        };
        command.args([COMMAND, spec]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `None` if it took too long or the user wants to leave.
    fn wait(&self, child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
        let start = Instant::now();
        while start.elapsed() < self.timeout && !self.stop.load(Ordering::SeqCst) {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is all there is to say.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn text(reader: JoinHandle<String>) -> String {
    reader.join().unwrap_or_default()
}

/// Killed by the system, as it does when memory runs out.
fn killed(status: ExitStatus) -> bool {
    const SIGKILL: i32 = 9;
    signal(status) == Some(SIGKILL)
}

/// Ctrl-C on a terminal reaches every process at once, and a child may be faster than its parent.
fn interrupted(status: ExitStatus) -> bool {
    const SIGINT: i32 = 2;
    const SIGTERM: i32 = 15;
    matches!(signal(status), Some(SIGINT | SIGTERM))
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal(_: ExitStatus) -> Option<i32> {
    None
}
