//! Manifests and shards, under temporary names until all of them are written.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::TempPath;

use super::check::{ends, wrong};
use super::list::{Item, List, Sound, Summary};
use super::strings::Drawn;
use super::{Prepare, an4};
use crate::files::{make, persist, temporary};
use crate::{Error, Result};

/// A line of a manifest, or what a shard says about a sample.
#[derive(Serialize)]
struct Line<'a> {
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

impl<'a> Line<'a> {
    fn of(item: &'a Item, file: Option<String>) -> Self {
        Line {
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
pub(super) fn lists(prepare: &Prepare, lists: &[List], strings: &[Drawn]) -> Result<Vec<Summary>> {
    if prepare.shards == Some(0) {
        let (expected, found) = ("at least one utterance".into(), "0".into());
        return Err(Error::Setting { field: "shards", expected, found });
    }
    let mut files = Files::new(&prepare.output)?;
    let mut summaries = Vec::new();
    for list in lists {
        let path = match prepare.shards {
            Some(_) if list.joined => continue,
            Some(size) => files.shards(list, size)?,
            None => files.manifest(list)?,
        };
        summaries.push(Summary { path, ..list.summary() });
    }
    for drawn in strings {
        let path = files.folder.join(format!("{}.jsonl", drawn.name));
        files.lines(&path, drawn.lines.iter())?;
        let said =
            drawn.lines.iter().map(|line| ((line.id.clone(), line.seconds), &*line.text, &*line.speaker));
        summaries.push(Summary { path, ..Summary::of(drawn.name, said) });
    }
    files.commit()?;
    Ok(summaries)
}

/// Files that are not in their places yet. What is not committed is removed.
struct Files {
    folder: PathBuf,
    /// Those with sound before those that tell of it.
    sounds: Vec<(TempPath, PathBuf)>,
    tables: Vec<(TempPath, PathBuf)>,
}

impl Files {
    fn new(folder: &Path) -> Result<Self> {
        make(folder)?;
        Ok(Files { folder: folder.to_owned(), sounds: Vec::new(), tables: Vec::new() })
    }

    fn manifest(&mut self, list: &List) -> Result<PathBuf> {
        let path = self.folder.join(format!("{}.jsonl", list.name));
        let mut files = Vec::with_capacity(list.items.len());
        for item in &list.items {
            files.push(match &item.sound {
                Sound::Known(path) => self.seen_from_here(path)?,
                Sound::Foreign(path) => {
                    let file = format!("audio/{}/{}.wav", item.split, item.id);
                    let to = self.folder.join(&file);
                    let bytes = an4::wav(path)?;
                    let written = temporary(&to, |mut writer| writer.write_all(&bytes))?;
                    self.sounds.push((written, to));
                    file
                }
            });
        }
        self.lines(&path, list.items.iter().zip(files).map(|(item, file)| Line::of(item, Some(file))))?;
        Ok(path)
    }

    /// A path relative to the folder, where it is in it; else a full one.
    fn seen_from_here(&self, path: &Path) -> Result<String> {
        let io = |source| Error::Io { path: path.into(), source };
        let found = match path.strip_prefix(&self.folder) {
            Ok(inside) => inside.to_owned(),
            Err(_) => {
                let (whole, folder) =
                    (path.canonicalize().map_err(io)?, self.folder.canonicalize().map_err(io)?);
                whole.strip_prefix(&folder).map(Path::to_owned).unwrap_or(whole)
            }
        };
        found.to_str().map(str::to_owned).ok_or_else(|| wrong(path, "a path in UTF-8", "other bytes"))
    }

    fn lines(&mut self, path: &Path, mut lines: impl Iterator<Item = impl Serialize>) -> Result<()> {
        let written = temporary(path, |mut writer| {
            lines.try_for_each(|line| {
                serde_json::to_writer(&mut writer, &line)?;
                writer.write_all(b"\n")
            })?;
            writer.flush()
        })?;
        self.tables.push((written, path.to_owned()));
        Ok(())
    }

    /// `NAME-000000.tar` and so on.
    fn shards(&mut self, list: &List, size: usize) -> Result<PathBuf> {
        let name = |n: &str| self.folder.join(format!("{}-{n}.tar", list.name));
        let (mut last, mut done) = (0, Vec::new());
        // What belongs together is found by what names have before their first dot.
        if let Some(item) = list.items.iter().find(|item| item.id.contains('.')) {
            return Err(wrong(&self.folder, "ids without a dot, as shards need", &*item.id));
        }
        for (n, items) in list.items.chunks(size).enumerate() {
            let path = name(&format!("{n:06}"));
            let mut failed = Ok(());
            let written = temporary(&path, |writer| {
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
                    let said = serde_json::to_vec(&Line::of(item, None))?;
                    append(&mut archive, &format!("{}.json", item.id), &said)?;
                }
                archive.into_inner()?.flush()
            })?;
            failed?;
            done.push((written, path));
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
        all.try_for_each(|(temporary, path)| persist(temporary, &path))
    }
}

/// Ending and bytes of a sound file.
fn sound(item: &Item) -> Result<(&'static str, Vec<u8>)> {
    match &item.sound {
        Sound::Foreign(path) => Ok(("wav", an4::wav(path)?)),
        Sound::Known(path) => {
            let bytes = fs::read(path).map_err(|source| Error::Io { path: path.into(), source })?;
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
