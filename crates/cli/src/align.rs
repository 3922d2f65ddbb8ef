//! `panda align CHECKPOINT MANIFEST`
use std::{io::Write, path::PathBuf, process::ExitCode};

use training::{Recogniser, Unit};

use crate::error::Result;

/// Arguments of `panda align`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A checkpoint, for example runs/digits/best.safetensors
    checkpoint: PathBuf,
    /// A JSONL manifest whose texts are to be aligned
    manifest: PathBuf,
    /// Write CTM lines (`utterance channel start duration word confidence`) to this file; without it and without
    /// --json, they go to standard output
    #[arg(long)]
    ctm: Option<PathBuf>,
    /// Write one JSON object: tokens, words, log-likelihoods, expected latencies
    #[arg(long)]
    json: Option<PathBuf>,
    /// CTM lines of tokens instead of words
    #[arg(long)]
    tokens: bool,
}

/// Aligns the manifest; an utterance without a path is reported and left out.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let recogniser = Recogniser::load(&arguments.checkpoint)?;
    let utterances = speech::read_manifest(&arguments.manifest)?;
    let found = recogniser.align(&utterances)?;
    for id in &found.without_path {
        eprintln!("warning: {id}: no path, more labels than its frames can emit; left out");
    }
    let unit = if arguments.tokens { Unit::Tokens } else { Unit::Words };
    if let Some(path) = &arguments.json {
        found.write_json(path)?;
    }
    match &arguments.ctm {
        Some(path) => found.write_ctm(path, unit)?,
        None if arguments.json.is_some() => {}
        None => {
            let written = std::io::stdout().write_all(found.ctm(unit).as_bytes());
            let named =
                |source| training::Error::Io { path: "standard output".into(), action: "write", source };
            written.map_err(named)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let latency = found.expected_latency.map_or("no token".to_owned(), |mean| {
        format!("a token is expected {mean:.3} s after the start of its audio")
    });
    println!(
        "{} utterances aligned, {} without a path; {latency}",
        found.utterances.len(),
        found.without_path.len()
    );
    Ok(ExitCode::SUCCESS)
}
