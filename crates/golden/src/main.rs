//! Prints a line for each case of a folder of golden vectors.
//!
//! `cargo run --release -p golden -- DIR` compares. The exit status is 1 if a case fails, and 2 if the folder or a file of it cannot
//! be read.
#![warn(missing_docs)]

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use golden::{Error, PrintableLines, report};
use kernels::Printable;

/// Checks golden vectors of independent programs; exit status 1 if any fails
#[derive(Parser)]
#[command(name = "golden", version)]
struct GoldenArgs {
    /// Folder with NAME.json and NAME.safetensors
    dir: PathBuf,
}

/// Exit status of a program whose output is no longer read, as of one that SIGPIPE ends.
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
