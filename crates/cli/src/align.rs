//! `panda align CHECKPOINT MANIFEST`
use std::{io::Write, path::PathBuf, process::ExitCode};

use training::{Unit, files::Output};

use crate::{
    audio::{AudioArguments, note},
    error::{Error, Result},
    out::{complain, say},
    outputs,
    shard::{self, Shard},
};

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
    /// Take the second of five parts of the manifest, say, by --shard 2/5; panda merge joins what they write
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    #[command(flatten)]
    audio: AudioArguments,
}

/// Aligns the manifest; an utterance without a path is reported and left out.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let utterances = shard::part(speech::read_manifest(&arguments.manifest)?, arguments.shard);
    let wanted = [&arguments.ctm, &arguments.json];
    let [ctm, json] = outputs::open(wanted, &[&arguments.checkpoint, &arguments.manifest], &utterances)?;
    let recogniser = arguments.audio.load(&arguments.checkpoint)?;
    let found = recogniser.align(&utterances).map_err(|error| arguments.audio.advise(error))?;
    note(&found.changes);
    for id in &found.without_path {
        complain!("warning: {id}: no path, more labels than its frames can emit; left out");
    }
    let unit = if arguments.tokens { Unit::Tokens } else { Unit::Words };
    let standard = [&ctm, &json].into_iter().flatten().any(Output::is_standard);
    if ctm.is_none() && json.is_none() {
        let written = std::io::stdout().lock().write_all(found.ctm(unit).as_bytes());
        written.map_err(Error::standard_output)?;
        return Ok(ExitCode::SUCCESS);
    }
    json.map_or(Ok(()), |json| json.write(found.json().as_bytes()))?;
    ctm.map_or(Ok(()), |ctm| ctm.write(found.ctm(unit).as_bytes()))?;
    if standard {
        return Ok(ExitCode::SUCCESS);
    }
    let latency = found.expected_latency.map_or("no token".to_owned(), |mean| {
        format!("a token is expected {mean:.3} s after the start of its audio")
    });
    let (aligned, without) = (found.utterances.len(), found.without_path.len());
    say!("{aligned} utterances aligned, {without} without a path; {latency}")?;
    Ok(ExitCode::SUCCESS)
}
