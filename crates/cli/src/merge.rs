//! `panda merge OUT PART...`
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use training::files::Output;
use training::{Alignments, Evaluation, Transcript};

use crate::error::{Error, Result};
use crate::out::say;
use crate::scores;

/// Arguments of `panda merge`.
#[derive(clap::Args)]
pub struct Arguments {
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

/// What parts hold.
enum Parts {
    Hypotheses(Vec<Vec<Transcript>>),
    Alignments(Vec<Alignments>),
    Lines,
}

impl Parts {
    /// What all of them are.
    fn of(texts: &[String]) -> Self {
        let lines = |text: &String| text.lines().map(serde_json::from_str).collect();
        let hypotheses = texts.iter().map(lines).collect::<serde_json::Result<Vec<Vec<Transcript>>>>();
        if let Some(hypotheses) = hypotheses.ok().filter(|parts| parts.iter().any(|part| !part.is_empty())) {
            return Parts::Hypotheses(hypotheses);
        }
        match texts.iter().map(|text| serde_json::from_str(text)).collect() {
            Ok(alignments) => Parts::Alignments(alignments),
            Err(_) => Parts::Lines,
        }
    }

    /// Ids of each part, in order, if it has some.
    fn ids(&self) -> Option<Vec<Vec<&str>>> {
        match self {
            Parts::Hypotheses(parts) => {
                Some(parts.iter().map(|part| part.iter().map(|one| &*one.id).collect()).collect())
            }
            Parts::Alignments(parts) => {
                Some(parts.iter().map(|part| part.utterances.iter().map(|one| &*one.id).collect()).collect())
            }
            Parts::Lines => None,
        }
    }

    /// Ids of utterances that were looked at and left out.
    fn left_out(&self) -> Vec<&str> {
        match self {
            Parts::Alignments(parts) => {
                parts.iter().flat_map(|part| part.without_path.iter().map(|id| &**id)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Joins the parts, and prints the error rates of hypotheses.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let inputs: Vec<&Path> =
        arguments.parts.iter().chain(&arguments.manifest).map(PathBuf::as_path).collect();
    let output = Output::new(&arguments.out, &inputs)?;
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|source| training::Error::Io {
            path: path.clone(),
            action: "read the part",
            source,
        })
    };
    let texts = arguments.parts.iter().map(read).collect::<std::result::Result<Vec<_>, _>>()?;
    let parts = Parts::of(&texts);
    check(&parts, arguments)?;
    match parts {
        Parts::Lines => output.write(texts.concat().as_bytes())?,
        Parts::Alignments(parts) => {
            let all = Alignments::joined(parts).expect("at least one part");
            output.write(all.json().as_bytes())?;
        }
        Parts::Hypotheses(parts) => {
            let evaluation = Evaluation::of(parts.into_iter().flatten().collect());
            output.write(evaluation.hypotheses().as_bytes())?;
            let file = arguments.manifest.as_ref().unwrap_or(&arguments.out);
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            scores::lines(&name, &evaluation, arguments.speakers)
                .iter()
                .try_for_each(|line| say!("{line}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails where an utterance is in two parts, or where the parts are not the manifest.
fn check(parts: &Parts, arguments: &Arguments) -> Result<()> {
    let error =
        |path: &Path, expected: String, found: String| Error::Part { path: path.to_owned(), expected, found };
    let Some(ids) = parts.ids() else {
        return match &arguments.manifest {
            None => Ok(()),
            Some(_) => {
                Err(error(&arguments.parts[0], "hypotheses or alignments".into(), "other lines".into()))
            }
        };
    };
    let mut seen: HashMap<&str, &Path> = HashMap::new();
    for (path, ids) in arguments.parts.iter().zip(&ids) {
        for id in ids {
            if let Some(other) = seen.insert(id, path) {
                let found = format!("{id} in {}, too", other.display());
                return Err(error(path, "every utterance once".into(), found));
            }
        }
    }
    let Some(manifest) = &arguments.manifest else { return Ok(()) };
    let left_out = parts.left_out();
    let wanted = speech::read_manifest(manifest)?;
    let wanted = wanted.iter().map(|one| &*one.id).filter(|id| !left_out.contains(id)).map(Some);
    let found =
        arguments.parts.iter().zip(&ids).flat_map(|(path, ids)| ids.iter().map(move |&id| (path, id)));
    let mut found = found.map(Some).chain(std::iter::repeat(None));
    for (wanted, found) in wanted.chain([None]).zip(found.by_ref()) {
        if wanted != found.map(|(_, id)| id) {
            let path =
                found.map_or(arguments.parts.last(), |(path, _)| Some(path)).expect("at least one part");
            let none = || "no more".to_owned();
            let found = found.map_or_else(none, |(_, id)| id.to_owned());
            return Err(error(path, wanted.map_or_else(none, str::to_owned), found));
        }
    }
    Ok(())
}
