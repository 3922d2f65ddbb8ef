//! Writes manifests and shards of a prepared speech corpus.
//!
//! All files are written under temporary names and moved into place at the end, so that an error
//! changes nothing. A lock excludes other processes from the output folder.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::check::path_error;
use super::corpus_files::has_extension;
use super::corpus_list::{AudioSource, CheckedUtterance, CorpusList, CorpusSummary};
use super::digit_strings::DigitStringList;
use super::{PrepareOptions, sphere};
use crate::files::{Destination, FileLock, StagedFile, make_folder, read_regular};
use crate::{Error, Result};

/// Name of the lock file of a preparation.
const LOCK_FILE: &str = ".prepare.lock";

/// The output folder, locked for this process.
pub(super) struct OutputFolder {
    path: PathBuf,
    /// Folder of the corpus, where no output link may lead.
    corpus: PathBuf,
    lock: Option<FileLock>,
    /// Folders that did not exist before, the outermost last.
    created_folders: Vec<PathBuf>,
}

impl OutputFolder {
    /// Creates and locks the folder, before the corpus is read.
    ///
    /// # Errors
    /// [`Error::Corpus`] if another process prepares a corpus in it; [`Error::Write`].
    pub(super) fn new(prepare: &PrepareOptions, corpus: &Path) -> Result<Self> {
        std::fs::metadata(corpus).map_err(|source| Error::Io { path: corpus.into(), source })?;
        let path = &prepare.output;
        let ancestors = path.ancestors().filter(|folder| *folder != Path::new(""));
        let created_folders = ancestors.take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        let mut folder =
            OutputFolder { path: path.clone(), corpus: corpus.to_owned(), lock: None, created_folders };
        make_folder(path)?;
        let name = path.join(LOCK_FILE);
        folder.lock = FileLock::acquire(&name).map_err(|source| Error::Write { path: name, source })?;
        match folder.lock {
            Some(_) => Ok(folder),
            None => Err(path_error(path, "no other process that prepares a corpus in this folder", "one")),
        }
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take() {
            lock.remove();
        }
        // Removes the created folders that are empty.
        let _ = self.created_folders.iter().try_for_each(std::fs::remove_dir);
    }
}

/// A manifest line, or the metadata of a shard's sample.
#[derive(Serialize)]
struct OutputLine<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    num_samples: u64,
    sample_rate: u32,
    seconds: f64,
    speaker: &'a str,
    text: &'a str,
    split: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subset: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crc32: Option<String>,
}

impl<'a> OutputLine<'a> {
    fn new(utterance: &'a CheckedUtterance, file: Option<String>) -> Self {
        OutputLine {
            id: &utterance.id,
            file,
            num_samples: utterance.num_samples,
            sample_rate: utterance.sample_rate,
            seconds: utterance.seconds(),
            speaker: &utterance.speaker,
            text: &utterance.text,
            split: utterance.split,
            subset: utterance.subset,
            crc32: utterance.crc32.map(|crc32| format!("{crc32:08x}")),
        }
    }
}

/// Writes lists and strings, and returns their summaries.
pub(super) fn write_lists(
    folder: OutputFolder,
    prepare: &PrepareOptions,
    lists: &[CorpusList],
    strings: &[DigitStringList],
) -> Result<Vec<CorpusSummary>> {
    if prepare.shards == Some(0) {
        let (expected, found) = ("at least one utterance".into(), "0".into());
        return Err(Error::Setting { field: "shards", expected, found });
    }
    let mut files = StagedFiles::new(&folder);
    let mut summaries = Vec::new();
    for list in lists {
        let path = match prepare.shards {
            Some(_) if list.is_union => continue,
            Some(size) => files.stage_shards(list, size)?,
            None => files.stage_manifest(list)?,
        };
        summaries.push(CorpusSummary { path, ..list.summary() });
    }
    for string_list in strings {
        let path = folder.path.join(format!("{}.jsonl", string_list.name));
        files.stage_lines(&path, string_list.lines.iter())?;
        let utterances = string_list
            .lines
            .iter()
            .map(|line| ((line.id.clone(), line.seconds), &*line.text, &*line.speaker));
        summaries
            .push(CorpusSummary { path, ..CorpusSummary::from_utterances(string_list.name, utterances) });
    }
    files.commit()?;
    Ok(summaries)
}

/// Written files that are not in place yet; they are removed unless committed.
struct StagedFiles<'a> {
    folder: &'a OutputFolder,
    /// Audio files and shards, which are committed first.
    audio_files: Vec<(StagedFile, PathBuf)>,
    /// Manifests.
    manifests: Vec<(StagedFile, PathBuf)>,
    /// Resolved output paths, and the names that refer to them.
    outputs: HashMap<PathBuf, PathBuf>,
}

impl<'a> StagedFiles<'a> {
    fn new(folder: &'a OutputFolder) -> Self {
        StagedFiles { folder, audio_files: Vec::new(), manifests: Vec::new(), outputs: HashMap::new() }
    }

    /// Writes a file that is moved into place later.
    fn stage(
        &mut self,
        path: &Path,
        mut write: impl FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(StagedFile, PathBuf)> {
        let write_error = |source| Error::Write { path: path.into(), source };
        if let Some(folder) = path.parent() {
            make_folder(folder)?;
        }
        let destination = Destination::open(path).map_err(write_error)?;
        if let Some(target) = destination.resolved_path() {
            self.check_target(path, &target)?;
            self.outputs.insert(target, path.to_owned());
        }
        Ok((destination.stage(&mut write).map_err(write_error)?, path.to_owned()))
    }

    /// Checks that an output does not overwrite other files.
    ///
    /// A link must not refer to another output or to a file of the corpus.
    fn check_target(&self, path: &Path, target: &Path) -> Result<()> {
        if let Some(other_path) = self.outputs.get(target) {
            let conflict = format!("that of {}, {}", other_path.display(), target.display());
            return Err(path_error(path, "a different target for each output", conflict));
        }
        let is_link = path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
        let corpus = self.folder.corpus.canonicalize();
        let is_inside = target.exists() && corpus.is_ok_and(|corpus| target.starts_with(corpus));
        // An existing manifest or shard is not part of the corpus.
        if is_link && is_inside && !["jsonl", "tar"].iter().any(|extension| has_extension(target, extension))
        {
            return Err(path_error(path, "no link into the corpus", format!("one to {}", target.display())));
        }
        Ok(())
    }

    /// Writes a manifest and the audio files that are converted.
    fn stage_manifest(&mut self, list: &CorpusList) -> Result<PathBuf> {
        let path = self.folder.path.join(format!("{}.jsonl", list.name));
        let mut files = Vec::with_capacity(list.utterances.len());
        for utterance in &list.utterances {
            files.push(match &utterance.audio_file {
                AudioSource::ReadableFile(path) => self.relative_path(path)?,
                AudioSource::FileToConvert(path) => {
                    let file = format!("audio/{}/{}.wav", utterance.split, utterance.id);
                    let target = self.folder.path.join(&file);
                    let bytes = sphere::wav_bytes(path)?;
                    let staged = self.stage(&target, |writer| writer.write_all(&bytes))?;
                    self.audio_files.push(staged);
                    file
                }
            });
        }
        self.stage_lines(
            &path,
            list.utterances.iter().zip(files).map(|(utterance, file)| OutputLine::new(utterance, Some(file))),
        )?;
        Ok(path)
    }

    /// Returns a path relative to the output folder.
    ///
    /// Paths outside the folder are returned in full.
    fn relative_path(&self, path: &Path) -> Result<String> {
        let io_error = |source| Error::Io { path: path.into(), source };
        let folder = &self.folder.path;
        let relative = match path.strip_prefix(folder) {
            Ok(relative) => relative.to_owned(),
            Err(_) => {
                let (full_path, folder) =
                    (path.canonicalize().map_err(io_error)?, folder.canonicalize().map_err(io_error)?);
                full_path.strip_prefix(&folder).map(Path::to_owned).unwrap_or(full_path)
            }
        };
        relative.to_str().map(str::to_owned).ok_or_else(|| path_error(path, "a path in UTF-8", "other bytes"))
    }

    /// Writes JSON Lines.
    fn stage_lines(&mut self, path: &Path, mut lines: impl Iterator<Item = impl Serialize>) -> Result<()> {
        let staged = self.stage(path, |writer| {
            lines.try_for_each(|line| {
                serde_json::to_writer(&mut *writer, &line)?;
                writer.write_all(b"\n")
            })
        })?;
        self.manifests.push(staged);
        Ok(())
    }

    /// Writes shards `NAME-000000.tar` and so on.
    fn stage_shards(&mut self, list: &CorpusList, utterances_per_shard: usize) -> Result<PathBuf> {
        let folder = &self.folder.path;
        let shard_path = |number: &str| folder.join(format!("{}-{number}.tar", list.name));
        let (mut last_number, mut staged_shards) = (0, Vec::new());
        // WebDataset groups members by their names up to the first dot.
        if let Some(utterance) = list.utterances.iter().find(|utterance| utterance.id.contains('.')) {
            return Err(path_error(folder, "ids without a dot, as shards need", &*utterance.id));
        }
        for (number, utterances) in list.utterances.chunks(utterances_per_shard).enumerate() {
            let path = shard_path(&format!("{number:06}"));
            let mut result = Ok(());
            let staged = self.stage(&path, |writer| {
                let mut archive = tar::Builder::new(writer);
                for utterance in utterances {
                    let (extension, audio) = match read_audio_file(utterance) {
                        Ok(file) => file,
                        Err(error) => {
                            result = Err(error);
                            return Ok(());
                        }
                    };
                    append_member(&mut archive, &format!("{}.{extension}", utterance.id), &audio)?;
                    let metadata = serde_json::to_vec(&OutputLine::new(utterance, None))?;
                    append_member(&mut archive, &format!("{}.json", utterance.id), &metadata)?;
                }
                archive.into_inner().map(drop)
            })?;
            result?;
            staged_shards.push(staged);
            last_number = number;
        }
        let next_shard = shard_path(&format!("{:06}", last_number + 1));
        if next_shard.exists() {
            return Err(path_error(
                &next_shard,
                "no shard after the last one, as an earlier, longer list leaves",
                "one",
            ));
        }
        let pattern = if last_number == 0 {
            shard_path("000000")
        } else {
            shard_path(&format!("{{000000..{last_number:06}}}"))
        };
        self.audio_files.extend(staged_shards);
        Ok(pattern)
    }

    /// Moves all files into place, manifests last.
    fn commit(self) -> Result<()> {
        let mut files = self.audio_files.into_iter().chain(self.manifests);
        files.try_for_each(|(staged, path)| staged.commit().map_err(|source| Error::Write { path, source }))
    }
}

/// Returns extension and bytes of an audio file.
fn read_audio_file(utterance: &CheckedUtterance) -> Result<(&'static str, Vec<u8>)> {
    match &utterance.audio_file {
        AudioSource::FileToConvert(path) => Ok(("wav", sphere::wav_bytes(path)?)),
        AudioSource::ReadableFile(path) => {
            let bytes = read_regular(path).map_err(|source| Error::Io { path: path.into(), source })?;
            Ok((if has_extension(path, "flac") { "flac" } else { "wav" }, bytes))
        }
    }
}

/// Appends a member without owner and time, so that shards are reproducible.
fn append_member(archive: &mut tar::Builder<impl Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    archive.append_data(&mut header, name, bytes)
}
