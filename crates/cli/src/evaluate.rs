//! `panda evaluate CHECKPOINT MANIFEST`
use std::{path::PathBuf, process::ExitCode};

use training::evaluate;

use crate::audio::{AudioArguments, SilenceArguments, note};
use crate::search::SearchArguments;
use crate::{error::Result, out::say, outputs, report};

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
    #[command(flatten)]
    search: SearchArguments,
    #[command(flatten)]
    audio: AudioArguments,
    #[command(flatten)]
    silence: SilenceArguments,
}

/// Decodes the manifest and prints a line for each subset.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let utterances = speech::read_manifest(&arguments.manifest)?;
    let inputs = [&arguments.checkpoint, &arguments.manifest];
    let [hypotheses] = outputs::open([&arguments.hypotheses], &inputs, &utterances)?;
    let recogniser = arguments.audio.load(&arguments.checkpoint)?;
    let recogniser = arguments.silence.apply(recogniser)?;
    let recogniser = arguments.search.apply(recogniser)?;
    let evaluation = evaluate(&recogniser, &utterances).map_err(|error| arguments.audio.advise(error))?;
    note(&evaluation.changes);
    if let Some(hypotheses) = hypotheses {
        hypotheses.write(evaluation.hypotheses().as_bytes())?;
    }
    let name = arguments.manifest.file_stem().unwrap_or_default().to_string_lossy();
    report::lines(&name, &evaluation).iter().try_for_each(|line| say!("{line}"))?;
    Ok(ExitCode::SUCCESS)
}
