//! Signals that ask the program to end.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::out::warnln;

/// Exit status of a command that a signal ended.
pub const STOPPED: u8 = 130;

/// Exit status of a command whose output nobody reads any more.
pub const CLOSED: u8 = 141;

/// A flag that becomes true when somebody asks the program to end, by Ctrl-C for example, and then `says` something; the second
/// time the program ends at once.
///
/// A hang-up that is ignored when the program begins, as `nohup` arranges, stays ignored.
pub fn watch(says: &'static str) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    on_each(move || {
        if flag.load(Ordering::SeqCst) {
            std::process::exit(STOPPED.into());
        }
        // Before whoever sees the flag has ended the program.
        if !says.is_empty() {
            // The terminal has shown ^C in the line of the cursor.
            warnln!("");
            warnln!("{says}");
        }
        flag.store(true, Ordering::SeqCst);
    })?;
    Ok(stop)
}

/// A limit on the size of files is an error of whoever writes too much, not the end of the program with a file half-written.
pub fn report_large_files() -> Result<()> {
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default())?;
    Ok(())
}

#[cfg(unix)]
fn on_each(mut run: impl FnMut() + Send + 'static) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    if !ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        signals.forever().for_each(|_| run());
    })?;
    Ok(())
}

#[cfg(not(unix))]
fn on_each(run: impl FnMut() + Send + 'static) -> Result<()> {
    ctrlc::set_handler(run).map_err(|error| std::io::Error::other(error).into())
}

/// Whether a signal was ignored by who started the program. Where the system does not tell, it may have been.
#[cfg(unix)]
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}
