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
    Hypotheses(Vec<Evaluation>),
    Alignments(Vec<Alignments>),
    /// Of any other kind, with ids where there are some.
    Lines(Option<Vec<Vec<String>>>),
}

/// What a part is, by its text.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Hypotheses,
    Alignments,
    /// Objects with an id each, as `transcribe --format json` writes them.
    Json,
    Ctm,
    Text,
}

/// A line of `--format json`, as far as it matters here.
#[derive(serde::Deserialize)]
struct Named {
    id: String,
}

/// A line about an utterance that could not be used.
#[derive(serde::Deserialize)]
struct LeftOut {
    #[serde(rename = "left_out")]
    _reason: String,
}

impl Kind {
    /// None for an empty part, or one of nothing but utterances that were left out, which fits to all.
    fn of(text: &str) -> Option<Self> {
        let first = text.lines().find(|line| serde_json::from_str::<LeftOut>(line).is_err())?;
        Some(if serde_json::from_str::<Transcript>(first).is_ok() {
            Kind::Hypotheses
        } else if serde_json::from_str::<Named>(first).is_ok() {
            Kind::Json
        } else if serde_json::from_str::<Alignments>(text).is_ok() {
            Kind::Alignments
        } else if text.lines().all(is_ctm) {
            Kind::Ctm
        } else {
            Kind::Text
        })
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Hypotheses => "hypotheses",
            Kind::Alignments => "alignments",
            Kind::Json => "JSON lines with an id each",
            Kind::Ctm => "CTM",
            Kind::Text => "other lines",
        }
    }
}

/// `recording channel start duration word [confidence]`
fn is_ctm(line: &str) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    (5..=6).contains(&fields.len()) && fields[2..4].iter().all(|time| time.parse::<f64>().is_ok())
}

/// The lines of a part as objects.
fn objects<T: serde::de::DeserializeOwned>(path: &Path, text: &str, kind: Kind) -> Result<Vec<T>> {
    let read = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| another(path, kind, number, &error))
    };
    (1..).zip(text.lines()).map(read).collect()
}

fn another(path: &Path, kind: Kind, line: usize, error: &serde_json::Error) -> Error {
    Error::Part {
        path: path.to_owned(),
        expected: format!("{} in every line", kind.name()),
        found: format!("another line {line}: {error}"),
    }
}

impl Parts {
    /// What all of them are.
    fn of(paths: &[PathBuf], texts: &[String]) -> Result<Self> {
        let mut first: Option<(Kind, &Path)> = None;
        for (path, text) in paths.iter().zip(texts) {
            match (Kind::of(text), first) {
                (None, _) => {}
                (Some(Kind::Text), _) if text.starts_with('{') => {
                    return Err(Error::Part {
                        path: path.clone(),
                        expected: "hypotheses, alignments or lines, all of them".into(),
                        found: "JSON of another kind, or a piece of it".into(),
                    });
                }
                (Some(kind), None) => first = Some((kind, path)),
                (Some(kind), Some((all, _))) if kind == all => {}
                (Some(kind), Some((all, first))) => {
                    return Err(Error::Part {
                        path: path.clone(),
                        expected: format!("{}, as in {}", all.name(), first.display()),
                        found: kind.name().to_owned(),
                    });
                }
            }
        }
        let kind = first.map_or(Kind::Text, |(kind, _)| kind);
        let each = || paths.iter().zip(texts);
        Ok(match kind {
            Kind::Hypotheses => {
                let read = |(path, text): (&PathBuf, &String)| {
                    Evaluation::read(text).map_err(|(line, error)| another(path, kind, line, &error))
                };
                Parts::Hypotheses(each().map(read).collect::<Result<_>>()?)
            }
            Kind::Json => {
                let parts = each().map(|(path, text)| objects(path, text, kind));
                let parts = parts.collect::<Result<Vec<Vec<Named>>>>()?;
                let ids = |part: Vec<Named>| part.into_iter().map(|line| line.id).collect();
                Parts::Lines(Some(parts.into_iter().map(ids).collect()))
            }
            Kind::Alignments => {
                let read = |(path, text): (&PathBuf, &String)| {
                    let filled = Some(text).filter(|text| !text.trim().is_empty());
                    let parsed = filled.map(|text| serde_json::from_str(text)).transpose();
                    parsed.map_err(|error| Error::Part {
                        path: path.clone(),
                        expected: kind.name().to_owned(),
                        found: error.to_string(),
                    })
                };
                let parts: Vec<Option<Alignments>> = each().map(read).collect::<Result<_>>()?;
                let first = parts.iter().flatten().next().map_or(0.0, |part| part.frame_seconds);
                let none = || Alignments::of_frames(first);
                let parts: Vec<Alignments> =
                    parts.into_iter().map(|part| part.unwrap_or_else(none)).collect();
                if let Some(at) = parts.iter().position(|part| part.frame_seconds != first) {
                    return Err(Error::Part {
                        path: paths[at].clone(),
                        expected: format!("frames of {first} s, as in {}", paths[0].display()),
                        found: format!("frames of {} s", parts[at].frame_seconds),
                    });
                }
                Parts::Alignments(parts)
            }
            Kind::Ctm | Kind::Text => Parts::Lines(None),
        })
    }

    /// Ids of each part, in order, if it has some.
    fn ids(&self) -> Option<Vec<Vec<&str>>> {
        match self {
            Parts::Hypotheses(parts) => {
                let lists = parts.iter().map(|part| part.transcripts.iter());
                Some(lists.map(|list| list.map(|one| &*one.id).collect()).collect())
            }
            Parts::Alignments(parts) => {
                Some(parts.iter().map(|part| part.utterances.iter().map(|one| &*one.id).collect()).collect())
            }
            Parts::Lines(ids) => {
                let ids = ids.as_ref()?.iter();
                Some(ids.map(|part| part.iter().map(String::as_str).collect()).collect())
            }
        }
    }

    /// Ids of utterances that were looked at and left out.
    fn left_out(&self) -> Vec<&str> {
        match self {
            Parts::Alignments(parts) => {
                let without_path = parts.iter().flat_map(|part| part.without_path.iter().map(|id| &**id));
                let left_out = parts.iter().flat_map(|part| part.bad.left_out.iter().map(|one| &*one.id));
                without_path.chain(left_out).collect()
            }
            Parts::Hypotheses(parts) => {
                parts.iter().flat_map(|part| part.bad.left_out.iter().map(|one| &*one.id)).collect()
            }
            Parts::Lines(_) => Vec::new(),
        }
    }
}

/// Joins the parts, and prints the error rates of hypotheses.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let inputs: Vec<&Path> =
        arguments.parts.iter().chain(&arguments.manifest).map(PathBuf::as_path).collect();
    let output = Output::new(&arguments.out, &inputs)?;
    let read = |path: &PathBuf| {
        speech::files::read_given_text(path).map_err(|source| training::Error::Io {
            path: path.clone(),
            action: "read the part",
            source,
        })
    };
    let texts = arguments.parts.iter().map(read).collect::<std::result::Result<Vec<_>, _>>()?;
    let parts = Parts::of(&arguments.parts, &texts)?;
    check(&parts, arguments)?;
    match parts {
        Parts::Lines(_) => output.write(texts.concat().as_bytes())?,
        Parts::Alignments(parts) => {
            let all = Alignments::joined(parts).expect("at least one part");
            output.write(all.json().as_bytes())?;
        }
        Parts::Hypotheses(parts) => {
            let evaluation = Evaluation::joined(parts);
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
    if arguments.speakers && !matches!(parts, Parts::Hypotheses(_)) {
        let expected = "hypotheses, for --speakers".into();
        return Err(error(&arguments.parts[0], expected, "others".into()));
    }
    let Some(ids) = parts.ids() else {
        let mut each = arguments.parts.iter().enumerate();
        if let Some((_, path)) = each.find(|(at, path)| arguments.parts[..*at].contains(path)) {
            return Err(error(path, "every part once".into(), "it twice".into()));
        }
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
