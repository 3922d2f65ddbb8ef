//! `panda export CHECKPOINT --to LAYOUT OUT`: a checkpoint for NeMo or Hugging Face.
use std::path::PathBuf;
use std::process::ExitCode;

use model::{Checkpoint, Layout};

use crate::error::Result;
use crate::printing::{outln, warnln};

/// Arguments of `panda export`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A checkpoint of a FastConformer model, imported or trained
    checkpoint: PathBuf,
    /// Write for this toolkit: huggingface or nemo
    #[arg(long, value_name = "LAYOUT", value_parser = parse_layout)]
    to: Layout,
    /// Folder to write, or a file *.nemo; existing files are replaced
    #[arg(value_name = "OUT")]
    output: PathBuf,
}

/// Writes the files and prints their names.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    let Args { checkpoint: path, to, output } = arguments;
    let checkpoint = Checkpoint::read(path)?;
    let files = model::export(path, &checkpoint, *to, output)?;
    files.iter().try_for_each(|file| outln!("{}", file.display()))?;
    let tokenizer = checkpoint.tokenizer(path)?;
    if tokenizer.source_file().is_none() {
        let kind = tokenizer.kind();
        warnln!("warning: no tokenizer file is written: tokens of kind {kind:?} have none in this layout");
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_layout(name: &str) -> std::result::Result<Layout, String> {
    let layout = Layout::ALL.into_iter().find(|layout| layout.name() == name);
    layout.ok_or_else(|| {
        let names: Vec<&str> = Layout::ALL.iter().map(|layout| layout.name()).collect();
        format!("expected {}", names.join(" or "))
    })
}
