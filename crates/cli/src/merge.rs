//! `panda merge OUT PART...`
mod kind;
mod parts;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use recognizer::{Alignments, Evaluation};
use speech::files::is_same_file;
use training::files::Output;

use crate::error::{Error, Result};
use crate::out::outln;
use crate::scores;
use parts::MergeParts;

/// Arguments of `panda merge`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to write all of it
    out: PathBuf,
    /// What each shard has written, in the order of the shards: hypotheses (--hypotheses), alignments (--json), or lines (txt, json, ctm)
    #[arg(required = true, value_name = "PART")]
    parts: Vec<PathBuf>,
    /// Fail unless hypotheses or alignments are those of this manifest, in its order
    #[arg(long)]
    manifest: Option<PathBuf>,
    /// Of hypotheses, print a line for each speaker, too
    #[arg(long)]
    speakers: bool,
}

/// Joins the parts, and prints the error rates of hypotheses.
pub fn run(arguments: &Args) -> Result<ExitCode> {
    let inputs: Vec<&Path> =
        arguments.parts.iter().chain(&arguments.manifest).map(PathBuf::as_path).collect();
    let output = Output::new(&arguments.out, &inputs)?;
    let read = |path: &PathBuf| {
        speech::files::read_input_text(path).map_err(|source| model::Error::Io {
            path: path.clone(),
            action: "read the part",
            source,
        })
    };
    let texts = arguments.parts.iter().map(read).collect::<std::result::Result<Vec<_>, _>>()?;
    let parts = MergeParts::of(&arguments.parts, &texts)?;
    check(&parts, arguments)?;
    match parts {
        MergeParts::Lines { lines, .. } => {
            let lines = lines.concat();
            let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            output.write(text.as_bytes())?;
        }
        MergeParts::Alignments(parts) => {
            let all = Alignments::merge(parts).expect("at least one part");
            output.write(all.json().as_bytes())?;
        }
        MergeParts::Hypotheses(parts) => {
            let evaluation = Evaluation::merge(parts);
            output.write(evaluation.hypotheses().as_bytes())?;
            let file = arguments.manifest.as_ref().unwrap_or(&arguments.out);
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            scores::lines(&name, &evaluation, arguments.speakers)
                .iter()
                .try_for_each(|line| outln!("{line}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn error(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Error {
    Error::Part { path: path.to_owned(), expected: expected.into(), found: found.into() }
}

/// Fails where an utterance is in two parts, or where the parts are not the manifest.
fn check(parts: &MergeParts, arguments: &Args) -> Result<()> {
    if arguments.speakers && !matches!(parts, MergeParts::Hypotheses(_)) {
        return Err(error(&arguments.parts[0], "hypotheses, for --speakers", "others"));
    }
    let has_manifest_ids = !matches!(parts, MergeParts::Lines { has_manifest_ids: false, .. });
    if !has_manifest_ids {
        expect_different_files(&arguments.parts)?;
    }
    if let Some(ids) = parts.ids() {
        expect_once(&arguments.parts, &ids, &parts.left_out())?;
    }
    let Some(manifest) = &arguments.manifest else { return Ok(()) };
    match parts.ids().filter(|_| has_manifest_ids) {
        None => Err(error(&arguments.parts[0], "hypotheses or alignments", "other lines")),
        Some(ids) => expect_manifest(manifest, &arguments.parts, &ids, &parts.left_out()),
    }
}

/// Fails where a file is given twice, by whatever paths.
fn expect_different_files(paths: &[PathBuf]) -> Result<()> {
    for (at, path) in paths.iter().enumerate() {
        let is_same = |other: &&PathBuf| *other == path || is_same_file(other, path);
        if let Some(other) = paths[..at].iter().find(is_same) {
            let found = match other == path {
                true => "it twice".to_owned(),
                false => format!("the same file as {}", other.display()),
            };
            return Err(error(path, "every part once", found));
        }
    }
    Ok(())
}

/// Fails where an utterance is in a part twice or in two parts, used or left out.
fn expect_once(paths: &[PathBuf], ids: &[Vec<&str>], left_out: &[Vec<&str>]) -> Result<()> {
    let mut seen: HashMap<&str, &Path> = HashMap::new();
    for ((path, ids), left_out) in paths.iter().zip(ids).zip(left_out) {
        for id in ids.iter().chain(left_out) {
            if let Some(other) = seen.insert(id, path) {
                let found = format!("{id} in {}, too", other.display());
                return Err(error(path, "every utterance once", found));
            }
        }
    }
    Ok(())
}

/// Checks that the parts have the utterances of a manifest, in its order; utterances may be left out with a reason.
fn expect_manifest(
    manifest: &Path,
    paths: &[PathBuf],
    ids: &[Vec<&str>],
    left_out: &[Vec<&str>],
) -> Result<()> {
    let wanted = crate::manifests::read(manifest)?;
    let left_out: HashSet<&str> = left_out.iter().flatten().copied().collect();
    let wanted = wanted.iter().map(|one| &*one.id).filter(|id| !left_out.contains(id)).map(Some);
    let found = paths.iter().zip(ids).flat_map(|(path, ids)| ids.iter().map(move |&id| (path, id)));
    let mut found = found.map(Some).chain(std::iter::repeat(None));
    for (wanted, found) in wanted.chain([None]).zip(found.by_ref()) {
        if wanted != found.map(|(_, id)| id) {
            let path = found.map_or(paths.last(), |(path, _)| Some(path)).expect("at least one part");
            let none = || "no more".to_owned();
            let found = found.map_or_else(none, |(_, id)| id.to_owned());
            return Err(error(path, wanted.map_or_else(none, str::to_owned), found));
        }
    }
    Ok(())
}
