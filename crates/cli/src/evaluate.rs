//! `panda evaluate CHECKPOINT MANIFEST`
use std::collections::HashMap;
use std::{path::PathBuf, process::ExitCode};

use recognizer::{Evaluation, OutputIds, TranscriptFormat, TranscriptionWriter, evaluate};
use speech::Utterance;
use training::files::Output;

use crate::audio::{AudioArguments, SilenceArguments, note};
use crate::bad_items::{self, BadItemArguments};
use crate::captions::CaptionArguments;
use crate::search::SearchArguments;
use crate::{
    error::Result,
    manifests,
    out::{outln, warn_each, warnln},
    outputs, scores, shard,
};
use outputs::TranscriptPath;
use shard::Shard;

/// Arguments of `panda evaluate`.
#[derive(clap::Args)]
pub struct Args {
    /// A checkpoint, for example runs/digits/best.safetensors
    checkpoint: PathBuf,
    /// A JSONL manifest
    manifest: PathBuf,
    /// Print a line for each speaker, too
    #[arg(long)]
    speakers: bool,
    /// Write one JSON line an utterance: id, subset, speaker, reference, hypothesis
    #[arg(long)]
    hypotheses: Option<PathBuf>,
    /// Write what was heard, with times: txt, json (a line an utterance) or ctm to --output; srt or vtt, a file an utterance, into the
    /// folder --output
    #[arg(long, value_name = "FORMAT", requires = "output")]
    format: Option<TranscriptFormat>,
    /// Where to
    #[arg(long, value_name = "PATH", requires = "format")]
    output: Option<PathBuf>,
    /// Take the second of five parts of the manifest, say, by --shard 2/5; panda merge joins what they write
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Leave special words, such as <unk>, out of references and hypotheses; tokens.ignore_special = true in the model's recipe
    /// does so too
    #[arg(long)]
    ignore_special: bool,
    #[command(flatten)]
    captions: CaptionArguments,
    #[command(flatten)]
    search: SearchArguments,
    #[command(flatten)]
    audio: AudioArguments,
    #[command(flatten)]
    silence: SilenceArguments,
    #[command(flatten)]
    bad: BadItemArguments,
}

/// Decodes the manifest and prints a line for each subset.
pub fn run(arguments: &Args) -> Result<ExitCode> {
    let utterances = manifests::read(&arguments.manifest)?;
    let ids = || utterances.iter().map(|one| one.id.as_str());
    let writer = TranscriptionWriter {
        format: arguments.format.unwrap_or_default(),
        ids: OutputIds::for_ctm(ids()),
        captions: arguments.captions.options(arguments.format)?,
    };
    let file_names = OutputIds::for_file_names(ids());
    let utterances = shard::part(utterances, arguments.shard);
    let read = [&arguments.checkpoint, &arguments.manifest].into_iter();
    let inputs: Vec<&PathBuf> = read.chain(arguments.search.files()).collect();
    let one_file = arguments.output.clone().filter(|_| arguments.format.is_some_and(TranscriptFormat::is_appendable));
    let [hypotheses, heard] = outputs::open([&arguments.hypotheses, &one_file], &inputs, &utterances)?;
    let captions = captions(arguments, &inputs, &utterances, &file_names)?;
    let mut pairs = captions.iter().flat_map(|one| hypotheses.iter().map(move |other| (other, one)));
    pairs.try_for_each(|(hypotheses, one)| outputs::expect_apart(hypotheses, one))?;
    let recogniser = arguments.audio.load(&arguments.checkpoint)?;
    let recogniser = arguments.silence.apply(recogniser)?;
    let recogniser = arguments.search.apply(recogniser)?;
    let recogniser = arguments.bad.apply(recogniser)?;
    let ignores_special = arguments.ignore_special || recogniser.ignores_special();
    let recogniser = recogniser.with_special_omitted(ignores_special);
    let evaluation = match utterances.is_empty() {
        // A shard of a list that has fewer utterances than there are shards.
        true => Evaluation::new(Vec::new()),
        false => evaluate(&recogniser, &utterances).map_err(|error| arguments.audio.advise(error))?,
    };
    let name = arguments.manifest.file_stem().unwrap_or_default().to_string_lossy();
    note(&evaluation.changes);
    if evaluation.discarded > 0 {
        let texts = if evaluation.discarded == 1 { "text was" } else { "texts were" };
        warnln!("note: {} {texts} discarded as silence; --silence 0 keeps them", evaluation.discarded);
    }
    bad_items::warn(&name, &evaluation.bad);
    let texts = utterances.iter().map(|one| one.text.as_str());
    warn_each(recognizer::conversion_warnings(&name, texts, recogniser.tokenizer()));
    if let Some(hypotheses) = hypotheses {
        hypotheses.write(evaluation.hypotheses().as_bytes())?;
    }
    if let Some(output) = heard {
        let lines = evaluation.transcripts.iter().map(|one| writer.write(&one.id, &one.transcription));
        output.write(lines.collect::<String>().as_bytes())?;
    }
    let mut captions: HashMap<&str, Output> =
        utterances.iter().map(|one| one.id.as_str()).zip(captions).collect();
    for one in &evaluation.transcripts {
        let Some(output) = captions.remove(one.id.as_str()) else { continue };
        output.write(writer.write(&one.id, &one.transcription).as_bytes())?;
    }
    scores::lines(&name, &evaluation, arguments.speakers).iter().try_for_each(|line| outln!("{line}"))?;
    Ok(ExitCode::SUCCESS)
}

/// A file of captions for each utterance, looked at before the work begins; none for other formats.
fn captions(
    arguments: &Args,
    inputs: &[&PathBuf],
    utterances: &[Utterance],
    names: &OutputIds,
) -> Result<Vec<Output>> {
    let (Some(format), Some(folder)) =
        (arguments.format.filter(|format| !format.is_appendable()), &arguments.output)
    else {
        return Ok(Vec::new());
    };
    let places = utterances.iter().map(|utterance| TranscriptPath {
        recording: PathBuf::from(&utterance.id),
        output: folder.join(format!("{}.{}", names.name(&utterance.id), format.name())),
    });
    let inputs = inputs.iter().map(|path| path.as_path());
    outputs::in_folder(folder, &places.collect::<Vec<_>>(), &inputs.collect::<Vec<_>>())
}
