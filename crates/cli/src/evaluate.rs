//! `panda evaluate CHECKPOINT MANIFEST`: word and character error rates.
use std::collections::HashMap;
use std::{path::PathBuf, process::ExitCode};

use recognizer::{Evaluation, OutputIds, TranscriptFormat, TranscriptionWriter, evaluate};
use speech::Utterance;
use training::files::OutputFile;

use crate::audio::{AudioArguments, SilenceArguments, print_conversions};
use crate::bad_items::{self, BadItemArguments};
use crate::captions::CaptionArguments;
use crate::search::SearchArguments;
use crate::{
    error::Result,
    manifests, output_files,
    printing::{outln, warn_each, warnln},
    scores, shard,
};
use output_files::TranscriptPath;
use shard::Shard;

/// Arguments of `panda evaluate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A checkpoint, for example runs/digits/best.safetensors
    checkpoint: PathBuf,
    /// JSONL manifest with recordings and reference transcripts
    manifest: PathBuf,
    /// Print error rates of each speaker in addition
    #[arg(long)]
    speakers: bool,
    /// Write one JSON line per utterance: id, subset, speaker, reference, hypothesis
    #[arg(long)]
    hypotheses: Option<PathBuf>,
    /// Write the hypotheses with times to --output: txt, json (one line per utterance) or ctm; srt
    /// and vtt write one file per utterance into the folder --output
    #[arg(long, value_name = "FORMAT", requires = "output")]
    format: Option<TranscriptFormat>,
    /// File, or folder for srt and vtt, of --format
    #[arg(long, value_name = "PATH", requires = "format")]
    output: Option<PathBuf>,
    /// Process only part I of N parts of the manifest, for example 2/5; `panda merge` joins the
    /// outputs of all parts
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Leave special words, such as <unk>, out of references and hypotheses; the default is
    /// tokens.ignore_special of the model's recipe
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

/// Decodes the manifest and prints one line of error rates per subset.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    // Read the manifest and open all outputs.
    let utterances = manifests::read(&arguments.manifest)?;
    let ids = || utterances.iter().map(|utterance| utterance.id.as_str());
    let writer = TranscriptionWriter {
        format: arguments.format.unwrap_or_default(),
        ids: OutputIds::for_ctm(ids()),
        captions: arguments.captions.options(arguments.format)?,
    };
    let file_names = OutputIds::for_file_names(ids());
    let utterances = shard::select_part(utterances, arguments.shard);
    let files = [&arguments.checkpoint, &arguments.manifest].into_iter();
    let inputs: Vec<&PathBuf> = files.chain(arguments.search.files()).collect();
    let joined_file =
        arguments.output.clone().filter(|_| arguments.format.is_some_and(TranscriptFormat::is_appendable));
    let [hypotheses, transcripts] =
        output_files::open([&arguments.hypotheses, &joined_file], &inputs, &utterances)?;
    let captions = open_captions(arguments, &inputs, &utterances, &file_names)?;
    let mut pairs = captions.iter().flat_map(|caption| hypotheses.iter().map(move |file| (file, caption)));
    pairs.try_for_each(|(hypotheses, caption)| output_files::expect_distinct(hypotheses, caption))?;
    // Load the model and decode.
    let recognizer = arguments.audio.load(&arguments.checkpoint)?;
    let recognizer = arguments.silence.apply(recognizer)?;
    let recognizer = arguments.search.apply(recognizer)?;
    let recognizer = arguments.bad.apply(recognizer)?;
    let ignores_special = arguments.ignore_special || recognizer.ignores_special();
    let recognizer = recognizer.with_special_omitted(ignores_special);
    let evaluation = match utterances.is_empty() {
        // A shard is empty if the manifest has fewer utterances than shards.
        true => Evaluation::new(Vec::new()),
        false => evaluate(&recognizer, &utterances).map_err(|error| arguments.audio.advise(error))?,
    };
    // Print notes and warnings; write hypotheses, transcripts and captions.
    let name = arguments.manifest.file_stem().unwrap_or_default().to_string_lossy();
    print_conversions(&evaluation.changes);
    if evaluation.num_discarded > 0 {
        let texts = if evaluation.num_discarded == 1 { "text was" } else { "texts were" };
        warnln!("note: {} {texts} discarded as silence; --silence 0 keeps them", evaluation.num_discarded);
    }
    bad_items::warn(&name, &evaluation.bad);
    let texts = utterances.iter().map(|utterance| utterance.text.as_str());
    warn_each(recognizer::conversion_warnings(&name, texts, recognizer.tokenizer()));
    if let Some(hypotheses) = hypotheses {
        hypotheses.write(evaluation.hypotheses().as_bytes())?;
    }
    if let Some(output) = transcripts {
        let lines = evaluation
            .transcripts
            .iter()
            .map(|transcript| writer.write(&transcript.id, &transcript.transcription));
        output.write(lines.collect::<String>().as_bytes())?;
    }
    let mut captions: HashMap<&str, OutputFile> =
        utterances.iter().map(|utterance| utterance.id.as_str()).zip(captions).collect();
    for transcript in &evaluation.transcripts {
        let Some(output) = captions.remove(transcript.id.as_str()) else { continue };
        output.write(writer.write(&transcript.id, &transcript.transcription).as_bytes())?;
    }
    scores::format_scores(&name, &evaluation, arguments.speakers)
        .iter()
        .try_for_each(|line| outln!("{line}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens one caption file per utterance before decoding; returns none for other formats.
fn open_captions(
    arguments: &Args,
    inputs: &[&PathBuf],
    utterances: &[Utterance],
    names: &OutputIds,
) -> Result<Vec<OutputFile>> {
    let (Some(format), Some(folder)) =
        (arguments.format.filter(|format| !format.is_appendable()), &arguments.output)
    else {
        return Ok(Vec::new());
    };
    let paths = utterances.iter().map(|utterance| TranscriptPath {
        recording: PathBuf::from(&utterance.id),
        output: folder.join(format!("{}.{}", names.name(&utterance.id), format.name())),
    });
    let inputs = inputs.iter().map(|path| path.as_path());
    output_files::open_in_folder(folder, &paths.collect::<Vec<_>>(), &inputs.collect::<Vec<_>>())
}
