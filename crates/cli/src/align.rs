//! `panda align CHECKPOINT MANIFEST`
use std::{path::PathBuf, process::ExitCode};

use kernels::Excerpt;
use recognizer::{Alignments, CtmUnit, OutputIds};
use training::files::Output;

use crate::{
    audio::{AudioArguments, note},
    bad_items::{self, BadItemArguments},
    error::Result,
    manifests,
    out::{formatted, outln, warn_each, warnln},
    outputs,
    shard::{self, Shard},
};

/// Arguments of `panda align`.
#[derive(clap::Args)]
pub struct Args {
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
    #[command(flatten)]
    bad: BadItemArguments,
}

/// Aligns the manifest; an utterance without a path, or one that cannot be used, is reported and left out.
pub fn run(arguments: &Args) -> Result<ExitCode> {
    let utterances = manifests::read(&arguments.manifest)?;
    let ids = OutputIds::for_ctm(utterances.iter().map(|one| one.id.as_str()));
    let utterances = shard::part(utterances, arguments.shard);
    let wanted = [&arguments.ctm, &arguments.json];
    let [ctm, json] = outputs::open(wanted, &[&arguments.checkpoint, &arguments.manifest], &utterances)?;
    let recogniser = arguments.audio.load(&arguments.checkpoint)?;
    let recogniser = arguments.bad.apply(recogniser)?;
    let found = recogniser.align(&utterances).map_err(|error| arguments.audio.advise(error))?;
    let checked = found.bad.check("alignment", utterances.len(), recogniser.max_bad());
    let checked = checked.map_err(|error| arguments.audio.advise(error));
    if found.bad.left_out.len() == utterances.len() {
        checked?;
        return write(arguments, &found, &ids, ctm, json);
    }
    note(&found.changes);
    let name = arguments.manifest.file_stem().unwrap_or_default().to_string_lossy();
    bad_items::warn(&name, &found.bad);
    let texts = utterances.iter().map(|one| one.text.as_str());
    warn_each(recognizer::conversion_warnings(&name, texts, recogniser.tokenizer()));
    for id in &found.without_path {
        warnln!("warning: {}: no path, more labels than its frames can emit; left out", Excerpt(id));
    }
    // What was aligned is written, even if too much of the list cannot be used.
    let code = write(arguments, &found, &ids, ctm, json)?;
    checked.map(|()| code)
}

/// Writes what was asked for, and a summary where there is room for one.
fn write(
    arguments: &Args,
    found: &Alignments,
    ids: &OutputIds,
    ctm: Option<Output>,
    json: Option<Output>,
) -> Result<ExitCode> {
    let unit = if arguments.tokens { CtmUnit::Tokens } else { CtmUnit::Words };
    let standard = [&ctm, &json].into_iter().flatten().any(Output::is_standard);
    if ctm.is_none() && json.is_none() {
        formatted(&found.ctm(unit, ids))?;
        return Ok(ExitCode::SUCCESS);
    }
    json.map_or(Ok(()), |json| json.write(found.json().as_bytes()))?;
    ctm.map_or(Ok(()), |ctm| ctm.write(found.ctm(unit, ids).as_bytes()))?;
    if standard {
        return Ok(ExitCode::SUCCESS);
    }
    let latency = found.expected_latency.map_or("no token".to_owned(), |mean| {
        format!("a token is expected {mean:.3} s after the start of its audio")
    });
    let (aligned, without) = (found.utterances.len(), found.without_path.len());
    let left_out = match found.bad.left_out.len() {
        0 => String::new(),
        count => format!(", {count} left out"),
    };
    outln!("{aligned} utterances aligned, {without} without a path{left_out}; {latency}")?;
    Ok(ExitCode::SUCCESS)
}
