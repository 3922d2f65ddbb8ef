//! `ProcessWatch`: reports ranks whose processes on this machine have ended.
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Time between two checks of the other processes.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Another process of the run on this machine.
pub(crate) struct WatchedProcess {
    pub rank: usize,
    pub process_id: u64,
}

/// A thread that checks other processes until it is stopped.
pub struct ProcessWatch {
    is_running: Arc<AtomicBool>,
}

impl ProcessWatch {
    /// Starts a thread that reports the first process that has ended.
    ///
    /// The report is a call of `report_ended(rank, is_first)`, where `is_first` is true on the
    /// lowest of the remaining ranks.
    pub(crate) fn start(
        own_rank: usize,
        watched: Vec<WatchedProcess>,
        mut report_ended: impl FnMut(usize, bool) + Send + 'static,
    ) -> Self {
        let watch = ProcessWatch { is_running: Arc::new(AtomicBool::new(true)) };
        let is_running = Arc::clone(&watch.is_running);
        thread::spawn(move || {
            let first_ended =
                || watched.iter().find(|other| has_ended(other.process_id)).map(|other| other.rank);
            while is_running.load(Ordering::SeqCst) {
                thread::sleep(CHECK_INTERVAL);
                let Some(ended_rank) = first_ended() else { continue };
                // A process that ends regularly stops all watches first. This waits in case its
                // message is still on the way.
                thread::sleep(CHECK_INTERVAL);
                if is_running.load(Ordering::SeqCst) {
                    let is_first =
                        watched.iter().all(|other| other.rank > own_rank || has_ended(other.process_id));
                    return report_ended(ended_rank, is_first);
                }
            }
        });
        watch
    }

    /// Stops the checks: from now on other processes may end.
    pub fn stop(self) {
        self.is_running.store(false, Ordering::SeqCst);
    }
}

/// Identifies the machine and its process namespace.
///
/// The number is equal for processes that can see each other; `None` without `/proc`.
pub(crate) fn machine_id() -> Option<u64> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(hash_text(&format!("{boot_id}{}", namespace.display())).max(1))
}

/// Identifies the cores that this process may use.
///
/// The number is equal in processes with the same cores.
pub(crate) fn core_set_id() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    hash_text(status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap_or_default())
}

/// Returns a number that is equal for equal texts.
fn hash_text(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Returns true if a process does not exist or is a zombie.
fn has_ended(process_id: u64) -> bool {
    match fs::read_to_string(format!("/proc/{process_id}/stat")) {
        Err(error) => error.kind() == ErrorKind::NotFound,
        Ok(stat) => {
            // The name, in parentheses, may contain any characters.
            let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
            matches!(state, Some("Z" | "X"))
        }
    }
}
