//! `panda align CHECKPOINT MANIFEST`: forced alignment of transcripts.
use std::{path::PathBuf, process::ExitCode};

use kernels::Excerpt;
use recognizer::{Alignments, CtmUnit, OutputIds};
use training::files::OutputFile;

use crate::{
    audio::{AudioArguments, print_conversions},
    bad_items::{self, BadItemArguments},
    error::Result,
    manifests, output_files,
    printing::{outln, print_machine_readable, warn_each, warnln},
    shard::{self, Shard},
};

/// Arguments of `panda align`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A checkpoint, for example runs/digits/best.safetensors
    checkpoint: PathBuf,
    /// JSONL manifest with the transcripts to align
    manifest: PathBuf,
    /// Write CTM lines to this file: `utterance channel start duration word confidence`. Without
    /// --ctm and --json, they are written to standard output
    #[arg(long)]
    ctm: Option<PathBuf>,
    /// Write one JSON object to this file: tokens, words, log-likelihoods, expected latencies
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write CTM lines of tokens instead of words
    #[arg(long)]
    tokens: bool,
    /// Process only part I of N parts of the manifest, for example 2/5; `panda merge` joins the
    /// outputs of all parts
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    #[command(flatten)]
    audio: AudioArguments,
    #[command(flatten)]
    bad: BadItemArguments,
}

/// Aligns the utterances of a manifest and writes the alignments.
///
/// Utterances without a path and bad utterances are reported and excluded.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    // Read the manifest and open the outputs.
    let utterances = manifests::read(&arguments.manifest)?;
    let ids = OutputIds::for_ctm(utterances.iter().map(|utterance| utterance.id.as_str()));
    let utterances = shard::select_part(utterances, arguments.shard);
    let paths = [&arguments.ctm, &arguments.json];
    let [ctm, json] = output_files::open(paths, &[&arguments.checkpoint, &arguments.manifest], &utterances)?;
    // Load the model and align.
    let recognizer = arguments.audio.load(&arguments.checkpoint)?;
    let recognizer = arguments.bad.apply(recognizer)?;
    let alignments = recognizer.align(&utterances).map_err(|error| arguments.audio.advise(error))?;
    let share_check = alignments.bad.check("alignment", utterances.len(), recognizer.max_bad());
    let share_check = share_check.map_err(|error| arguments.audio.advise(error));
    if alignments.bad.excluded.len() == utterances.len() {
        share_check?;
        return write_alignments(arguments, &alignments, &ids, ctm, json);
    }
    // Print notes and warnings.
    print_conversions(&alignments.changes);
    let name = arguments.manifest.file_stem().unwrap_or_default().to_string_lossy();
    bad_items::warn(&name, &alignments.bad);
    let texts = utterances.iter().map(|utterance| utterance.text.as_str());
    warn_each(recognizer::conversion_warnings(&name, texts, recognizer.tokenizer()));
    for id in &alignments.without_path {
        warnln!("warning: {}: no path, more labels than its frames can emit; left out", Excerpt(id));
    }
    // Alignments are written even if too many utterances are bad.
    let code = write_alignments(arguments, &alignments, &ids, ctm, json)?;
    share_check.map(|()| code)
}

/// Writes the requested files; prints a summary unless one is standard output.
fn write_alignments(
    arguments: &Args,
    alignments: &Alignments,
    ids: &OutputIds,
    ctm: Option<OutputFile>,
    json: Option<OutputFile>,
) -> Result<ExitCode> {
    let unit = if arguments.tokens { CtmUnit::Tokens } else { CtmUnit::Words };
    let is_standard_output = [&ctm, &json].into_iter().flatten().any(OutputFile::is_standard);
    if ctm.is_none() && json.is_none() {
        print_machine_readable(&alignments.ctm(unit, ids))?;
        return Ok(ExitCode::SUCCESS);
    }
    json.map_or(Ok(()), |json| json.write(alignments.json().as_bytes()))?;
    ctm.map_or(Ok(()), |ctm| ctm.write(alignments.ctm(unit, ids).as_bytes()))?;
    if is_standard_output {
        return Ok(ExitCode::SUCCESS);
    }
    let latency = alignments.expected_latency.map_or("no token".to_owned(), |mean| {
        format!("a token is expected {mean:.3} s after the start of its audio")
    });
    let (aligned, without_path) = (alignments.utterances.len(), alignments.without_path.len());
    let excluded = match alignments.bad.excluded.len() {
        0 => String::new(),
        count => format!(", {count} left out"),
    };
    outln!("{aligned} utterances aligned, {without_path} without a path{excluded}; {latency}")?;
    Ok(ExitCode::SUCCESS)
}
