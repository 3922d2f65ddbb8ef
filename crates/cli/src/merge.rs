//! `panda merge OUT PART...`: joins the outputs of runs sharded with `--shard I/N`.
mod part_kind;
mod parts;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use recognizer::{Alignments, Evaluation};
use speech::files::is_same_file;
use training::files::OutputFile;

use crate::error::{Error, Result};
use crate::printing::outln;
use crate::scores;
use parts::MergeParts;

/// Arguments of `panda merge`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Merged file to write
    out: PathBuf,
    /// Outputs of the shards, in shard order: hypotheses (--hypotheses), alignments (--json), or
    /// lines (txt, json, ctm)
    #[arg(required = true, value_name = "PART")]
    parts: Vec<PathBuf>,
    /// Fail unless the parts have this manifest's utterances in its order
    #[arg(long)]
    manifest: Option<PathBuf>,
    /// Print error rates of each speaker in addition (hypotheses only)
    #[arg(long)]
    speakers: bool,
}

/// Joins the parts and prints the error rates of hypotheses.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    let inputs: Vec<&Path> =
        arguments.parts.iter().chain(&arguments.manifest).map(PathBuf::as_path).collect();
    let output = OutputFile::new(&arguments.out, &inputs)?;
    let read = |path: &PathBuf| {
        speech::files::read_input_text(path).map_err(|source| model::Error::Io {
            path: path.clone(),
            action: "read the part",
            source,
        })
    };
    // Read and check all parts before the output is written.
    let texts = arguments.parts.iter().map(read).collect::<std::result::Result<Vec<_>, _>>()?;
    let parts = MergeParts::parse(&arguments.parts, &texts)?;
    check_parts(&parts, arguments)?;
    match parts {
        MergeParts::Lines { lines, .. } => {
            let lines = lines.concat();
            let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            output.write(text.as_bytes())?;
        }
        MergeParts::Alignments(parts) => {
            let joined = Alignments::merge(parts).expect("at least one part");
            output.write(joined.json().as_bytes())?;
        }
        MergeParts::Hypotheses(parts) => {
            let evaluation = Evaluation::merge(parts);
            output.write(evaluation.hypotheses().as_bytes())?;
            let file = arguments.manifest.as_ref().unwrap_or(&arguments.out);
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            scores::format_scores(&name, &evaluation, arguments.speakers)
                .iter()
                .try_for_each(|line| outln!("{line}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns an error about a part that does not fit the others.
fn part_error(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Error {
    Error::MergePart { path: path.to_owned(), expected: expected.into(), found: found.into() }
}

/// Fails for repeated utterances and for parts that differ from the manifest.
fn check_parts(parts: &MergeParts, arguments: &Args) -> Result<()> {
    if arguments.speakers && !matches!(parts, MergeParts::Hypotheses(_)) {
        return Err(part_error(&arguments.parts[0], "hypotheses, for --speakers", "another kind"));
    }
    let has_manifest_ids = !matches!(parts, MergeParts::Lines { has_manifest_ids: false, .. });
    if !has_manifest_ids {
        expect_different_files(&arguments.parts)?;
    }
    if let Some(ids) = parts.ids() {
        expect_each_utterance_once(&arguments.parts, &ids, &parts.excluded())?;
    }
    let Some(manifest) = &arguments.manifest else { return Ok(()) };
    match parts.ids().filter(|_| has_manifest_ids) {
        None => Err(part_error(&arguments.parts[0], "hypotheses or alignments", "other lines")),
        Some(ids) => expect_manifest(manifest, &arguments.parts, &ids, &parts.excluded()),
    }
}

/// Fails if a file is given twice, possibly by different paths.
fn expect_different_files(paths: &[PathBuf]) -> Result<()> {
    for (index, path) in paths.iter().enumerate() {
        let is_same = |other: &&PathBuf| *other == path || is_same_file(other, path);
        if let Some(other) = paths[..index].iter().find(is_same) {
            let duplicate = match other == path {
                true => "it twice".to_owned(),
                false => format!("the same file as {}", other.display()),
            };
            return Err(part_error(path, "every part once", duplicate));
        }
    }
    Ok(())
}

/// Fails if an utterance occurs twice, in one part or in two.
fn expect_each_utterance_once(paths: &[PathBuf], ids: &[Vec<&str>], excluded: &[Vec<&str>]) -> Result<()> {
    let mut first_paths: HashMap<&str, &Path> = HashMap::new();
    for ((path, ids), excluded) in paths.iter().zip(ids).zip(excluded) {
        for id in ids.iter().chain(excluded) {
            if let Some(other) = first_paths.insert(id, path) {
                let duplicate = format!("{id} also in {}", other.display());
                return Err(part_error(path, "every utterance once", duplicate));
            }
        }
    }
    Ok(())
}

/// Fails if the parts differ from the manifest in utterances or order.
///
/// Utterances that a shard excluded with a reason may be missing.
fn expect_manifest(
    manifest: &Path,
    paths: &[PathBuf],
    ids: &[Vec<&str>],
    excluded: &[Vec<&str>],
) -> Result<()> {
    let utterances = crate::manifests::read(manifest)?;
    let excluded: HashSet<&str> = excluded.iter().flatten().copied().collect();
    let expected_ids = utterances.iter().map(|utterance| &*utterance.id);
    let expected_ids = expected_ids.filter(|id| !excluded.contains(id)).map(Some);
    let part_ids = paths.iter().zip(ids).flat_map(|(path, ids)| ids.iter().map(move |&id| (path, id)));
    let mut part_ids = part_ids.map(Some).chain(std::iter::repeat(None));
    for (expected, actual) in expected_ids.chain([None]).zip(part_ids.by_ref()) {
        if expected != actual.map(|(_, id)| id) {
            let path = actual.map_or(paths.last(), |(path, _)| Some(path)).expect("at least one part");
            let end = || "no more".to_owned();
            let actual = actual.map_or_else(end, |(_, id)| id.to_owned());
            return Err(part_error(path, expected.map_or_else(end, str::to_owned), actual));
        }
    }
    Ok(())
}
