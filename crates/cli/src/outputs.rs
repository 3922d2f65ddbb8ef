//! Where a command writes to, looked at before its work begins.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use speech::Utterance;
use training::Format;
use training::files::{Output, same_file};

use crate::error::{Error, Result};

/// Opens the outputs that are wanted; none may be one of the inputs or their recordings, and no two the same.
pub fn open<const N: usize>(
    wanted: [&Option<PathBuf>; N],
    inputs: &[&PathBuf],
    utterances: &[Utterance],
) -> Result<[Option<Output>; N]> {
    let recordings = utterances.iter().flat_map(Utterance::files);
    let inputs: Vec<&Path> = inputs.iter().map(|path| path.as_path()).chain(recordings).collect();
    let mut outputs = [const { None }; N];
    for (at, output) in outputs.iter_mut().enumerate() {
        let Some(path) = wanted[at] else { continue };
        if let Some(other) = wanted[..at].iter().copied().flatten().find(|other| one_place(path, other)) {
            return Err(training::Error::OutputTwice { output: path.clone(), other: other.clone() }.into());
        }
        *output = Some(Output::new(path, &inputs)?);
    }
    Ok(outputs)
}

/// A file for each recording in a folder, which is made if need be: its name, and the ending of the format.
pub fn in_folder(
    folder: &Path,
    recordings: &[PathBuf],
    format: Format,
    inputs: &[&Path],
) -> Result<Vec<Output>> {
    let io = |source| training::Error::Io { path: folder.to_owned(), action: "make the folder", source };
    std::fs::create_dir_all(folder).map_err(io)?;
    let (mut outputs, mut taken) = (Vec::with_capacity(recordings.len()), HashMap::new());
    for recording in recordings {
        let mut name = recording.file_stem().unwrap_or(recording.as_os_str()).to_owned();
        name.push(".");
        name.push(format.name());
        let output = folder.join(name);
        // By whatever link.
        let place = output.canonicalize().unwrap_or_else(|_| output.clone());
        if let Some(other) = taken.insert(place, recording) {
            let (file, other) = (recording.clone(), other.clone());
            return Err(Error::SameName { output, file, other });
        }
        outputs.push(Output::new(&output, inputs)?);
    }
    Ok(outputs)
}

/// Fails where an output is one of some others, too.
pub fn expect_apart(output: &Path, others: &[Output]) -> Result<()> {
    match others.iter().find(|other| one_place(output, other.path())) {
        None => Ok(()),
        Some(other) => {
            let (output, other) = (output.to_owned(), other.path().to_owned());
            Err(training::Error::OutputTwice { output, other }.into())
        }
    }
}

/// Whether two paths lead to one file, or to a place where one is going to be.
fn one_place(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| {
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        folder.canonicalize().ok().map(|folder| folder.join(path.file_name().unwrap_or_default()))
    };
    same_file(a, b) || place(a).is_some() && place(a) == place(b) && !a.exists()
}
