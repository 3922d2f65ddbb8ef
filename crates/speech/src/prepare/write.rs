//! Writes manifests and shards of a prepared corpus; incomplete ones keep temporary names.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::check::{has_extension, path_error};
use super::list::{AudioSource, CheckedUtterance, CorpusList, CorpusSummary};
use super::strings::StringList;
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
    created: Vec<PathBuf>,
}

impl OutputFolder {
    /// Creates and locks the folder, before the corpus is read.
    ///
    /// # Errors
    /// [`Error::Corpus`] if another process prepares a corpus in it; [`Error::Write`].
    pub fn new(prepare: &PrepareOptions, corpus: &Path) -> Result<Self> {
        std::fs::metadata(corpus).map_err(|source| Error::Io { path: corpus.into(), source })?;
        let path = &prepare.output;
        let missing = path.ancestors().filter(|folder| *folder != Path::new(""));
        let created = missing.take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        let mut folder = OutputFolder { path: path.clone(), corpus: corpus.to_owned(), lock: None, created };
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
        let _ = self.created.iter().try_for_each(std::fs::remove_dir);
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
    fn new(item: &'a CheckedUtterance, file: Option<String>) -> Self {
        OutputLine {
            id: &item.id,
            file,
            num_samples: item.samples,
            sample_rate: item.rate,
            seconds: item.seconds(),
            speaker: &item.speaker,
            text: &item.text,
            split: item.split,
            subset: item.subset,
            crc32: item.crc32.map(|sum| format!("{sum:08x}")),
        }
    }
}

/// Writes lists and strings, and returns their summaries.
pub(super) fn write_lists(
    folder: OutputFolder,
    prepare: &PrepareOptions,
    lists: &[CorpusList],
    strings: &[StringList],
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
        let mut files = Vec::with_capacity(list.items.len());
        for item in &list.items {
            files.push(match &item.sound {
                AudioSource::Supported(path) => self.relative_path(path)?,
                AudioSource::Convert(path) => {
                    let file = format!("audio/{}/{}.wav", item.split, item.id);
                    let to = self.folder.path.join(&file);
                    let bytes = sphere::wav_bytes(path)?;
                    let staged = self.stage(&to, |writer| writer.write_all(&bytes))?;
                    self.audio_files.push(staged);
                    file
                }
            });
        }
        self.stage_lines(
            &path,
            list.items.iter().zip(files).map(|(item, file)| OutputLine::new(item, Some(file))),
        )?;
        Ok(path)
    }

    /// Returns a path relative to the output folder.
    ///
    /// Paths outside the folder are returned in full.
    fn relative_path(&self, path: &Path) -> Result<String> {
        let io = |source| Error::Io { path: path.into(), source };
        let folder = &self.folder.path;
        let relative = match path.strip_prefix(folder) {
            Ok(relative) => relative.to_owned(),
            Err(_) => {
                let (full_path, folder) =
                    (path.canonicalize().map_err(io)?, folder.canonicalize().map_err(io)?);
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
    fn stage_shards(&mut self, list: &CorpusList, size: usize) -> Result<PathBuf> {
        let folder = &self.folder.path;
        let shard_path = |number: &str| folder.join(format!("{}-{number}.tar", list.name));
        let (mut last_number, mut staged_shards) = (0, Vec::new());
        // WebDataset groups members by their names up to the first dot.
        if let Some(item) = list.items.iter().find(|item| item.id.contains('.')) {
            return Err(path_error(folder, "ids without a dot, as shards need", &*item.id));
        }
        for (number, items) in list.items.chunks(size).enumerate() {
            let path = shard_path(&format!("{number:06}"));
            let mut result = Ok(());
            let staged = self.stage(&path, |writer| {
                let mut archive = tar::Builder::new(writer);
                for item in items {
                    let (extension, sound) = match read_sound(item) {
                        Ok(file) => file,
                        Err(error) => {
                            result = Err(error);
                            return Ok(());
                        }
                    };
                    append_member(&mut archive, &format!("{}.{extension}", item.id), &sound)?;
                    let metadata = serde_json::to_vec(&OutputLine::new(item, None))?;
                    append_member(&mut archive, &format!("{}.json", item.id), &metadata)?;
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
fn read_sound(item: &CheckedUtterance) -> Result<(&'static str, Vec<u8>)> {
    match &item.sound {
        AudioSource::Convert(path) => Ok(("wav", sphere::wav_bytes(path)?)),
        AudioSource::Supported(path) => {
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
