//! Checks a folder of golden vectors; prints one line per run.
//!
//! Run it with `cargo run --release -p golden -- DIR`. The exit status is 1 if a run fails, and 2
//! if the folder or one of its files cannot be read.
#![warn(missing_docs)]

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use golden::{Error, PrintableLines, report};
use kernels::Printable;

/// Check golden vectors of independent programs; exits with 1 if a run fails
#[derive(Parser)]
#[command(name = "golden", version)]
struct GoldenArgs {
    /// Folder of the cases: NAME.json and NAME.safetensors
    dir: PathBuf,
}

/// Exit status of a program whose output pipe was closed: 128 + SIGPIPE.
const CLOSED: u8 = 141;

fn main() -> ExitCode {
    let command = GoldenArgs::parse();
    let outcome = kernels::check_simd_override()
        .map_err(Error::Environment)
        .and_then(|()| report(&command.dir, &mut PrintableLines(std::io::stdout().lock())));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::from(CLOSED),
        Err(error) => {
            eprintln!("error: {}", Printable(error));
            ExitCode::from(2)
        }
    }
}
