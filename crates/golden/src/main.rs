//! Compares losses, decoders, lattices and MLPerf's RNN-T with golden vectors of independent programs.
//!
//! `cargo run --release -p golden -- DIR` prints a line for each case of a folder. The exit status is 1 if a case fails, and 2 if
//! the folder or a file of it cannot be read.
#![warn(missing_docs)]

mod bars;
mod case;
mod decoding;
mod doors;
mod error;
mod lattice;
mod mlperf;
mod outcome;
mod pruned;
mod report;
#[cfg(test)]
mod tests;
mod topologies;

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
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
        .map_err(error::Error::Environment)
        .and_then(|()| report::report(&command.dir, &mut PrintableLines(std::io::stdout().lock())));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error::Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::from(CLOSED),
        Err(error) => {
            eprintln!("error: {}", Printable(error));
            ExitCode::from(2)
        }
    }
}

/// A writer in which each `writeln!` is one line with control characters escaped: names of cases come from files.
struct PrintableLines<W>(W);

impl<W: Write> Write for PrintableLines<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }

    fn write_fmt(&mut self, text: Arguments) -> std::io::Result<()> {
        let text = text.to_string();
        match text.strip_suffix('\n') {
            Some(line) => writeln!(self.0, "{}", Printable(line)),
            None => write!(self.0, "{}", Printable(text)),
        }
    }
}

#[cfg(test)]
mod printable_lines {
    use super::*;

    #[test]
    fn a_name_is_no_line() {
        let mut out = Vec::new();
        let mut lines = PrintableLines(&mut out);
        let name = "a\nb\u{1b}[2J";
        writeln!(lines, "{name}  pass").unwrap();
        writeln!(lines, "{} done", 3).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a\\nb\\u{1b}[2J  pass\n3 done\n");
    }
}
