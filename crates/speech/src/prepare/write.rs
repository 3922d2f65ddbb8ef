//! Manifests and shards, under temporary names until all of them are written.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::check::{ends, wrong};
use super::list::{CorpusList, CorpusSummary, Item, Sound};
use super::strings::Drawn;
use super::{PrepareOptions, sphere};
use crate::files::{Destination, FileLock, StagedFile, make_folder, read_regular};
use crate::{Error, Result};

/// The file that a process locks while it prepares a corpus.
const LOCK: &str = ".prepare.lock";

/// The output folder, for one process at a time; dropped, it is left without the lock.
pub(super) struct OutputFolder {
    path: PathBuf,
    /// Folder of the corpus, which no link may lead into.
    corpus: PathBuf,
    lock: Option<FileLock>,
    /// Folders that were not there before, the outermost last.
    new: Vec<PathBuf>,
}

impl OutputFolder {
    /// Makes the folder and locks it, before the corpus is read.
    ///
    /// # Errors
    /// [`Error::Corpus`] while another process prepares a corpus in it; [`Error::Write`].
    pub fn new(prepare: &PrepareOptions, corpus: &Path) -> Result<Self> {
        std::fs::metadata(corpus).map_err(|source| Error::Io { path: corpus.into(), source })?;
        let path = &prepare.output;
        let new = path.ancestors().filter(|folder| *folder != Path::new(""));
        let new = new.take_while(|folder| !folder.exists()).map(Path::to_owned).collect();
        let mut folder = OutputFolder { path: path.clone(), corpus: corpus.to_owned(), lock: None, new };
        make_folder(path)?;
        let name = path.join(LOCK);
        folder.lock = FileLock::acquire(&name).map_err(|source| Error::Write { path: name, source })?;
        match folder.lock {
            Some(_) => Ok(folder),
            None => Err(wrong(path, "no other process that prepares a corpus in this folder", "one")),
        }
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take() {
            lock.remove();
        }
        // Those in which nothing was written.
        let _ = self.new.iter().try_for_each(std::fs::remove_dir);
    }
}

/// A line of a manifest, or what a shard says about a sample.
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
    fn of(item: &'a Item, file: Option<String>) -> Self {
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

/// Writes lists and strings as is wanted, and sums them up.
pub(super) fn lists(
    folder: OutputFolder,
    prepare: &PrepareOptions,
    lists: &[CorpusList],
    strings: &[Drawn],
) -> Result<Vec<CorpusSummary>> {
    if prepare.shards == Some(0) {
        let (expected, found) = ("at least one utterance".into(), "0".into());
        return Err(Error::Setting { field: "shards", expected, found });
    }
    let mut files = Files::new(&folder);
    let mut summaries = Vec::new();
    for list in lists {
        let path = match prepare.shards {
            Some(_) if list.joined => continue,
            Some(size) => files.shards(list, size)?,
            None => files.manifest(list)?,
        };
        summaries.push(CorpusSummary { path, ..list.summary() });
    }
    for drawn in strings {
        let path = folder.path.join(format!("{}.jsonl", drawn.name));
        files.lines(&path, drawn.lines.iter())?;
        let said =
            drawn.lines.iter().map(|line| ((line.id.clone(), line.seconds), &*line.text, &*line.speaker));
        summaries.push(CorpusSummary { path, ..CorpusSummary::of(drawn.name, said) });
    }
    files.commit()?;
    Ok(summaries)
}

/// Files that are not in their places yet. What is not committed is removed.
struct Files<'a> {
    folder: &'a OutputFolder,
    /// Those with sound before those that tell of it.
    sounds: Vec<(StagedFile, PathBuf)>,
    tables: Vec<(StagedFile, PathBuf)>,
    /// Places behind all links, and the names that lead there.
    taken: HashMap<PathBuf, PathBuf>,
}

impl<'a> Files<'a> {
    fn new(folder: &'a OutputFolder) -> Self {
        Files { folder, sounds: Vec::new(), tables: Vec::new(), taken: HashMap::new() }
    }

    /// Writes a file as a whole, which is put in its place later.
    fn stage(
        &mut self,
        path: &Path,
        mut put: impl FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(StagedFile, PathBuf)> {
        let failed = |source| Error::Write { path: path.into(), source };
        if let Some(folder) = path.parent() {
            make_folder(folder)?;
        }
        let destination = Destination::open(path).map_err(failed)?;
        if let Some(place) = destination.resolved_path() {
            self.expect_free(path, &place)?;
            self.taken.insert(place, path.to_owned());
        }
        Ok((destination.stage(&mut put).map_err(failed)?, path.to_owned()))
    }

    /// Fails if a link leads to another output or to a file of the corpus.
    fn expect_free(&self, path: &Path, place: &Path) -> Result<()> {
        if let Some(other) = self.taken.get(place) {
            let found = format!("that of {}, {}", other.display(), place.display());
            return Err(wrong(path, "a place of its own for each output", found));
        }
        let is_link = path.symlink_metadata().is_ok_and(|found| found.is_symlink());
        let corpus = self.folder.corpus.canonicalize();
        let is_inside = place.exists() && corpus.is_ok_and(|corpus| place.starts_with(corpus));
        // An earlier manifest or shard may be there, which no corpus has.
        if is_link && is_inside && !["jsonl", "tar"].iter().any(|ending| ends(place, ending)) {
            return Err(wrong(path, "no link into the corpus", format!("one to {}", place.display())));
        }
        Ok(())
    }

    fn manifest(&mut self, list: &CorpusList) -> Result<PathBuf> {
        let path = self.folder.path.join(format!("{}.jsonl", list.name));
        let mut files = Vec::with_capacity(list.items.len());
        for item in &list.items {
            files.push(match &item.sound {
                Sound::Known(path) => self.seen_from_here(path)?,
                Sound::Foreign(path) => {
                    let file = format!("audio/{}/{}.wav", item.split, item.id);
                    let to = self.folder.path.join(&file);
                    let bytes = sphere::wav_bytes(path)?;
                    let staged = self.stage(&to, |writer| writer.write_all(&bytes))?;
                    self.sounds.push(staged);
                    file
                }
            });
        }
        self.lines(&path, list.items.iter().zip(files).map(|(item, file)| OutputLine::of(item, Some(file))))?;
        Ok(path)
    }

    /// A path relative to the folder, where it is in it; else a full one.
    fn seen_from_here(&self, path: &Path) -> Result<String> {
        let io = |source| Error::Io { path: path.into(), source };
        let folder = &self.folder.path;
        let found = match path.strip_prefix(folder) {
            Ok(inside) => inside.to_owned(),
            Err(_) => {
                let (whole, folder) = (path.canonicalize().map_err(io)?, folder.canonicalize().map_err(io)?);
                whole.strip_prefix(&folder).map(Path::to_owned).unwrap_or(whole)
            }
        };
        found.to_str().map(str::to_owned).ok_or_else(|| wrong(path, "a path in UTF-8", "other bytes"))
    }

    fn lines(&mut self, path: &Path, mut lines: impl Iterator<Item = impl Serialize>) -> Result<()> {
        let staged = self.stage(path, |writer| {
            lines.try_for_each(|line| {
                serde_json::to_writer(&mut *writer, &line)?;
                writer.write_all(b"\n")
            })
        })?;
        self.tables.push(staged);
        Ok(())
    }

    /// `NAME-000000.tar` and so on.
    fn shards(&mut self, list: &CorpusList, size: usize) -> Result<PathBuf> {
        let folder = &self.folder.path;
        let name = |n: &str| folder.join(format!("{}-{n}.tar", list.name));
        let (mut last, mut done) = (0, Vec::new());
        // What belongs together is found by what names have before their first dot.
        if let Some(item) = list.items.iter().find(|item| item.id.contains('.')) {
            return Err(wrong(folder, "ids without a dot, as shards need", &*item.id));
        }
        for (n, items) in list.items.chunks(size).enumerate() {
            let path = name(&format!("{n:06}"));
            let mut failed = Ok(());
            let staged = self.stage(&path, |writer| {
                let mut archive = tar::Builder::new(writer);
                for item in items {
                    let (ending, sound) = match sound(item) {
                        Ok(found) => found,
                        Err(error) => {
                            failed = Err(error);
                            return Ok(());
                        }
                    };
                    append(&mut archive, &format!("{}.{ending}", item.id), &sound)?;
                    let said = serde_json::to_vec(&OutputLine::of(item, None))?;
                    append(&mut archive, &format!("{}.json", item.id), &said)?;
                }
                archive.into_inner().map(drop)
            })?;
            failed?;
            done.push(staged);
            last = n;
        }
        let behind = name(&format!("{:06}", last + 1));
        if behind.exists() {
            return Err(wrong(&behind, "no shard behind the last one, of a longer list once written", "one"));
        }
        let pattern = if last == 0 { name("000000") } else { name(&format!("{{000000..{last:06}}}")) };
        self.sounds.extend(done);
        Ok(pattern)
    }

    fn commit(self) -> Result<()> {
        let mut all = self.sounds.into_iter().chain(self.tables);
        all.try_for_each(|(staged, path)| staged.commit().map_err(|source| Error::Write { path, source }))
    }
}

/// Ending and bytes of a sound file.
fn sound(item: &Item) -> Result<(&'static str, Vec<u8>)> {
    match &item.sound {
        Sound::Foreign(path) => Ok(("wav", sphere::wav_bytes(path)?)),
        Sound::Known(path) => {
            let bytes = read_regular(path).map_err(|source| Error::Io { path: path.into(), source })?;
            Ok((if ends(path, "flac") { "flac" } else { "wav" }, bytes))
        }
    }
}

/// The same bytes on every day: no owner, no time.
fn append(archive: &mut tar::Builder<impl Write>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    archive.append_data(&mut header, name, bytes)
}
