//! `panda evaluate CHECKPOINT MANIFEST`
use std::{path::PathBuf, process::ExitCode};

use training::{Recogniser, evaluate};

use crate::{error::Result, report};

/// Arguments of `panda evaluate`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A checkpoint, for example runs/digits/best.safetensors
    checkpoint: PathBuf,
    /// A JSONL manifest
    manifest: PathBuf,
    /// Write one JSON line an utterance: id, reference, hypothesis
    #[arg(long)]
    hypotheses: Option<PathBuf>,
}

/// Decodes the manifest and prints a line for each subset.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let recogniser = Recogniser::load(&arguments.checkpoint)?;
    let utterances = speech::read_manifest(&arguments.manifest)?;
    let evaluation = evaluate(&recogniser, &utterances)?;
    if let Some(path) = &arguments.hypotheses {
        evaluation.write_hypotheses(path)?;
    }
    let name = arguments.manifest.file_stem().unwrap_or_default().to_string_lossy();
    report::lines(&name, &evaluation).iter().for_each(|line| println!("{line}"));
    Ok(ExitCode::SUCCESS)
}
