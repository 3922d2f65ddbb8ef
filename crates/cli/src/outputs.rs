//! Where a command writes to, looked at before its work begins.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use recognizer::TranscriptFormat;
use speech::Utterance;
use training::files::Output;

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
    for at in 0..N {
        let Some(path) = wanted[at] else { continue };
        let output = Output::new(path, &inputs)?;
        outputs[..at].iter().flatten().try_for_each(|other| expect_apart(&output, other))?;
        outputs[at] = Some(output);
    }
    Ok(outputs)
}

/// A file for each recording in a folder, which is made if need be.
pub fn in_folder(folder: &Path, places: &[TranscriptPath], inputs: &[&Path]) -> Result<Vec<Output>> {
    let io = |source| model::Error::Io { path: folder.to_owned(), action: "make the folder", source };
    std::fs::create_dir_all(folder).map_err(io)?;
    let mut outputs: Vec<Output> = Vec::with_capacity(places.len());
    let mut taken = HashMap::new();
    for TranscriptPath { recording, output } in places {
        let output = Output::new(output, inputs)?;
        // What leads nowhere else is a place of its own.
        let place = output.place().unwrap_or_else(|| output.path().to_owned());
        if let Some(other) = taken.insert(place, recording) {
            return Err(same_name(output.path(), recording, other));
        }
        outputs.push(output);
    }
    Ok(outputs)
}

/// A recording and where its text goes.
#[derive(Debug, Clone)]
pub struct TranscriptPath {
    /// The recording, for messages.
    pub recording: PathBuf,
    /// The file.
    pub output: PathBuf,
}

/// The places of a list of recordings in a folder: the recording's name with the ending of the format.
///
/// # Errors
/// [`Error::SameName`] for two recordings with one output; [`in_folder`] finds outputs that are links to one file.
pub fn places(
    folder: &Path,
    recordings: &[PathBuf],
    format: TranscriptFormat,
) -> Result<Vec<TranscriptPath>> {
    let mut taken: HashMap<PathBuf, &PathBuf> = HashMap::new();
    let mut places = Vec::with_capacity(recordings.len());
    for recording in recordings {
        let mut name = recording.file_stem().unwrap_or(recording.as_os_str()).to_owned();
        name.push(".");
        name.push(format.name());
        let output = folder.join(name);
        if let Some(other) = taken.insert(output.clone(), recording) {
            return Err(same_name(&output, recording, other));
        }
        places.push(TranscriptPath { recording: recording.clone(), output });
    }
    Ok(places)
}

fn same_name(output: &Path, file: &Path, other: &Path) -> Error {
    Error::SameName { output: output.to_owned(), file: file.to_owned(), other: other.to_owned() }
}

/// Fails where two outputs are going to be one file.
pub fn expect_apart(output: &Output, other: &Output) -> Result<()> {
    if output.place().is_none() || output.place() != other.place() {
        return Ok(());
    }
    let (output, other) = (output.path().to_owned(), other.path().to_owned());
    Err(training::Error::OutputTwice { output, other }.into())
}
