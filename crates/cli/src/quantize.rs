//! `panda quantize CHECKPOINT -o OUT`: a smaller checkpoint for recognition.
use std::path::PathBuf;
use std::process::ExitCode;

use model::encoders::NumberFormat;
use model::{CheckpointFile, StoredPart};
use training::files::OutputFile;

use crate::error::Result;
use crate::printing::outln;

/// Arguments of `panda quantize`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A checkpoint, imported or trained
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    /// Checkpoint to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Format of the weights: q8 (8-bit blocks) or bf16 (linear layers of a FastConformer only)
    #[arg(long, value_name = "q8|bf16", default_value = "q8")]
    to: NumberFormat,
}

/// Writes the checkpoint and prints its parts.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    let Args { checkpoint, output, to } = arguments;
    let output = OutputFile::new(output, &[checkpoint])?;
    let file = CheckpointFile::open(checkpoint)?;
    model::quantize(&file, *to, output.path())?;
    // A pipe or device cannot be read again.
    if output.path().is_file() {
        print_parts(&CheckpointFile::open(output.path())?.stored_parts())?;
    }
    outln!("{}: checkpoint for recognition", output.path().display())?;
    Ok(ExitCode::SUCCESS)
}

/// Prints values and bytes of each part and number format.
pub(crate) fn print_parts(parts: &[StoredPart]) -> Result<()> {
    outln!("{:<24} {:>6} {:>12} {:>10}", "weights", "format", "values", "MB")?;
    for part in parts {
        let megabytes = part.bytes as f64 / 1e6;
        outln!("{:<24} {:>6} {:>12} {megabytes:>10.3}", part.name, part.format.name(), part.values)?;
    }
    let (values, bytes) = (parts.iter().map(|part| part.values), parts.iter().map(|part| part.bytes));
    let (values, megabytes) = (values.sum::<usize>(), bytes.sum::<usize>() as f64 / 1e6);
    outln!("{:<24} {:>6} {values:>12} {megabytes:>10.3}", "all parts", "")?;
    Ok(())
}
