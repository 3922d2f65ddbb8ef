//! Handles signals that request the end of the program, such as Ctrl-C.
//!
//! Training and streaming check the flag of [`watch`] and stop after the current step or chunk.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::printing::warnln;

/// Exit status of a command that a signal ended: 128 + SIGINT.
pub(crate) const STOPPED_STATUS: u8 = 130;

/// Exit status of a command whose output pipe was closed: 128 + SIGPIPE.
pub(crate) const CLOSED_STATUS: u8 = 141;

/// Returns a flag that SIGINT, SIGTERM or SIGHUP sets.
///
/// The first signal prints `message` unless it is empty; the second one exits immediately. SIGHUP
/// stays ignored if it is ignored at the start, as with `nohup`.
pub(crate) fn watch(message: &'static str) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    on_each_signal(move || {
        if flag.load(Ordering::SeqCst) {
            std::process::exit(STOPPED_STATUS.into());
        }
        // The message comes before the flag: a reader of the flag may end the program.
        if !message.is_empty() {
            // The terminal shows ^C on the current line.
            warnln!("");
            warnln!("{message}");
        }
        flag.store(true, Ordering::SeqCst);
    })?;
    Ok(stop)
}

/// Turns a file size limit (SIGXFSZ) into a write error.
///
/// Otherwise the signal would end the program and leave an incomplete file.
pub(crate) fn report_large_files() -> Result<()> {
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default())?;
    Ok(())
}

#[cfg(unix)]
fn on_each_signal(mut run: impl FnMut() + Send + 'static) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    if !is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        signals.forever().for_each(|_| run());
    })?;
    Ok(())
}

#[cfg(not(unix))]
fn on_each_signal(run: impl FnMut() + Send + 'static) -> Result<()> {
    ctrlc::set_handler(run).map_err(|error| std::io::Error::other(error).into())
}

/// Returns true if a signal is ignored, or if that is unknown.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}
