//! Opens the output files of a command before its work begins.
//!
//! An output that cannot be written, or that is an input, is an error before hours of work.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use recognizer::TranscriptFormat;
use speech::Utterance;
use training::files::OutputFile;

use crate::error::{Error, Result};

/// Opens the given outputs.
///
/// # Errors
/// If an output is one of the inputs or their recordings, or if two outputs are the same file.
pub(crate) fn open<const N: usize>(
    paths: [&Option<PathBuf>; N],
    inputs: &[&PathBuf],
    utterances: &[Utterance],
) -> Result<[Option<OutputFile>; N]> {
    let recordings = utterances.iter().flat_map(Utterance::files);
    let inputs: Vec<&Path> = inputs.iter().map(|path| path.as_path()).chain(recordings).collect();
    let mut outputs = [const { None }; N];
    for index in 0..N {
        let Some(path) = paths[index] else { continue };
        let output = OutputFile::new(path, &inputs)?;
        outputs[..index].iter().flatten().try_for_each(|other| expect_distinct(&output, other))?;
        outputs[index] = Some(output);
    }
    Ok(outputs)
}

/// Opens one output per recording in a folder and creates the folder.
pub(crate) fn open_in_folder(
    folder: &Path,
    paths: &[TranscriptPath],
    inputs: &[&Path],
) -> Result<Vec<OutputFile>> {
    let io_error = |source| model::Error::Io { path: folder.to_owned(), action: "make the folder", source };
    std::fs::create_dir_all(folder).map_err(io_error)?;
    let mut outputs: Vec<OutputFile> = Vec::with_capacity(paths.len());
    // Recording of each output, by the file that is written.
    let mut recordings = HashMap::new();
    for TranscriptPath { recording, output } in paths {
        let output = OutputFile::new(output, inputs)?;
        // An output that is no link to another file is identified by its path.
        let target = output.resolved_path().unwrap_or_else(|| output.path().to_owned());
        if let Some(other) = recordings.insert(target, recording) {
            return Err(duplicate_name(output.path(), recording, other));
        }
        outputs.push(output);
    }
    Ok(outputs)
}

/// A recording and the path of its transcript.
#[derive(Debug, Clone)]
pub(crate) struct TranscriptPath {
    /// Recording, for messages.
    pub recording: PathBuf,
    /// Transcript file.
    pub output: PathBuf,
}

/// Returns the transcript path of each recording in a folder.
///
/// A path has the name of the recording and the extension of the format.
///
/// # Errors
/// [`Error::DuplicateName`] for two recordings with one output. [`open_in_folder`] also detects
/// outputs that are links to one file.
pub(crate) fn transcript_paths(
    folder: &Path,
    recordings: &[PathBuf],
    format: TranscriptFormat,
) -> Result<Vec<TranscriptPath>> {
    let mut outputs: HashMap<PathBuf, &PathBuf> = HashMap::new();
    let mut paths = Vec::with_capacity(recordings.len());
    for recording in recordings {
        let mut name = recording.file_stem().unwrap_or(recording.as_os_str()).to_owned();
        name.push(".");
        name.push(format.name());
        let output = folder.join(name);
        if let Some(other) = outputs.insert(output.clone(), recording) {
            return Err(duplicate_name(&output, recording, other));
        }
        paths.push(TranscriptPath { recording: recording.clone(), output });
    }
    Ok(paths)
}

/// Creates an error about two recordings with one output.
fn duplicate_name(output: &Path, file: &Path, other: &Path) -> Error {
    Error::DuplicateName { output: output.to_owned(), file: file.to_owned(), other: other.to_owned() }
}

/// Fails if two outputs are the same file.
pub(crate) fn expect_distinct(output: &OutputFile, other: &OutputFile) -> Result<()> {
    if output.resolved_path().is_none() || output.resolved_path() != other.resolved_path() {
        return Ok(());
    }
    let (output, other) = (output.path().to_owned(), other.path().to_owned());
    Err(training::Error::OutputTwice { output, other }.into())
}
