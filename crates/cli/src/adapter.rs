//! `panda adapter`: low-rank adapters of checkpoints, apart from their base.
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use model::checkpoint::Values;
use model::{Adapter, Checkpoint, merge_adapter, remove_adapter};
use training::files::OutputFile;

use crate::error::Result;
use crate::printing::outln;

/// Arguments of `panda adapter`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Write the trained parameters of a checkpoint, without its base
    Extract {
        /// Checkpoint of a recipe with [adapter]
        checkpoint: PathBuf,
        /// Adapter file to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Write the checkpoint of a base and an adapter; another base is an error
    Apply {
        /// Checkpoint from which the adapter's run started
        base: PathBuf,
        /// Adapter file of `extract`
        adapter: PathBuf,
        /// Checkpoint to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Write the base of a checkpoint with an adapter, bit for bit
    Remove {
        /// Checkpoint of `apply`, or of a run that trained only the adapter
        checkpoint: PathBuf,
        /// Checkpoint to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Add the updates of an adapter to the weights of its checkpoint
    Merge {
        /// Checkpoint of a recipe with [adapter]
        checkpoint: PathBuf,
        /// Checkpoint to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
}

/// Writes the file and prints its size.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    match &arguments.action {
        Action::Extract { checkpoint, output } => {
            let output = OutputFile::new(output, &[checkpoint])?;
            let adapter = Adapter::extract(checkpoint, &Checkpoint::read(checkpoint)?)?;
            let bytes = adapter.to_bytes(output.path())?;
            let path = output.path().to_owned();
            output.write(&bytes)?;
            print_size(&path, "adapter", &adapter.values)?;
        }
        Action::Apply { base, adapter: path, output } => {
            let output = OutputFile::new(output, &[base, path])?;
            let adapter = Adapter::read(path)?;
            write(output, &adapter.apply(path, base, &Checkpoint::read(base)?)?)?;
        }
        Action::Remove { checkpoint, output } => {
            let output = OutputFile::new(output, &[checkpoint])?;
            write(output, &remove_adapter(checkpoint, &Checkpoint::read(checkpoint)?)?)?;
        }
        Action::Merge { checkpoint, output } => {
            let output = OutputFile::new(output, &[checkpoint])?;
            write(output, &merge_adapter(checkpoint, &Checkpoint::read(checkpoint)?)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a checkpoint and prints its size.
fn write(output: OutputFile, checkpoint: &Checkpoint) -> Result<()> {
    let path = output.path().to_owned();
    output.write(&checkpoint.to_bytes(&path)?)?;
    print_size(&path, "checkpoint", &checkpoint.weights)
}

fn print_size(path: &Path, kind: &str, values: &Values) -> Result<()> {
    let weights: usize = values.values().map(Vec::len).sum();
    outln!("{}: {kind} with {weights} weights in {} parameters", path.display(), values.len())
}
