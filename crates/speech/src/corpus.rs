//! Utterances of manifests and shards, one at a time: what is in memory does not grow with texts and sound.

mod cache;
mod index;
mod shard;

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use index::Entry;

use crate::files::open_regular;
use crate::{Error, Result, Utterance, manifest};

/// Utterances by number, read when they are wanted.
///
/// A source is a manifest as [`read_manifest`](crate::read_manifest) knows it, or, where its name ends in `.tar`, a shard in the
/// layout of WebDataset: members `KEY.wav` or `KEY.flac` beside `KEY.json` (fields of a manifest, without a file) or `KEY.txt` (the
/// text, where there is no JSON), one after another. Ids are unique in a source; sources may repeat each other. `{000..012}` in a name stands for all numbers from 0 to 12, with as many digits.
///
/// Where each utterance lies and how long it is, 40 bytes each, is found out once; with a `cache` folder, it is written there, with a
/// checksum, and read again while the source is as it was. Strings of recordings keep the list of recordings in memory.
///
/// ```no_run
/// let corpus = speech::Corpus::open(&["train-{0000..0099}.tar".into()], Some("cache".as_ref()))?;
/// let first = corpus.utterance(0)?;
/// println!("{} utterances, the first one: {:.1} s: {}", corpus.len(), corpus.seconds(0), first.text);
/// # Ok::<(), speech::Error>(())
/// ```
#[derive(Debug)]
pub struct Corpus {
    sources: Vec<Source>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Source {
    path: PathBuf,
    /// Number of its first utterance.
    first: usize,
    /// Of strings.
    recordings: HashMap<String, Utterance>,
}

impl Corpus {
    /// Finds out where the utterances are.
    ///
    /// # Errors
    /// Those of [`read_manifest`](crate::read_manifest); [`Error::Shard`] for a damaged one, or a sample without sound or text;
    /// [`Error::Duration`] for sound of another length than is said; [`Error::EmptyManifest`] for a source without utterances.
    ///
    /// Cost: one pass over manifests; over the headers of shards' members and of their sound, which is decoded if it does not tell its
    /// length.
    pub fn open(paths: &[PathBuf], cache: Option<&Path>) -> Result<Self> {
        let (mut sources, mut entries) = (Vec::new(), Vec::new());
        for path in paths.iter().flat_map(|path| expanded(path)) {
            let (found, strings) = index::of(&path, cache)?;
            if found.is_empty() {
                return Err(Error::EmptyManifest { path });
            }
            let recordings = if strings { manifest::read_recordings(&path)? } else { HashMap::new() };
            sources.push(Source { path, first: entries.len(), recordings });
            entries.extend(found);
        }
        entries.shrink_to_fit();
        Ok(Corpus { sources, entries })
    }

    /// Number of utterances.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Length of an utterance, as its manifest or its sound file's header says.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn seconds(&self, index: usize) -> f64 {
        self.entries[index].seconds
    }

    /// Reads what is known about an utterance; its sound stays where it is.
    ///
    /// # Errors
    /// Those of the source; [`Error::Index`] if it is no longer what was indexed.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn utterance(&self, index: usize) -> Result<Utterance> {
        let at = self.sources.partition_point(|source| source.first <= index) - 1;
        let (source, entry) = (&self.sources[at], &self.entries[index]);
        let index = index - source.first;
        match entry.member() {
            Some(member) => shard::utterance(&source.path, index, entry, member),
            None => {
                let io = |error| Error::Io { path: source.path.clone(), source: error };
                let file = open_regular(&source.path).map_err(io)?;
                let line = bytes(&source.path, &file, entry.start, entry.length as usize)?;
                let matches = !line.is_empty() && entry.sum == index::sum(&line);
                let line = String::from_utf8_lossy(&line);
                if !matches {
                    let found = line.chars().take(40).collect();
                    let expected = format!("the line with checksum {:08x}", entry.sum);
                    return Err(Error::Index { path: source.path.clone(), index, expected, found });
                }
                manifest::read_line(&source.path, entry.line as usize, &line, &source.recordings)
            }
        }
    }

    /// All utterances, one after another.
    pub fn utterances(&self) -> impl Iterator<Item = Result<Utterance>> + '_ {
        (0..self.len()).map(|index| self.utterance(index))
    }

    /// Bytes that it keeps in memory, but for lists of recordings.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }
}

/// Some bytes of a file; fewer if it ends before.
fn bytes(path: &Path, mut file: &File, start: u64, length: usize) -> Result<Vec<u8>> {
    let io = |source| Error::Io { path: path.into(), source };
    file.seek(SeekFrom::Start(start)).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(length as u64).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// Most files that a name may stand for.
const MOST: usize = 1_000_000;

/// The paths that `{a..b}` in a name stands for; the path itself without.
fn expanded(path: &Path) -> Vec<PathBuf> {
    let whole = || vec![path.to_owned()];
    let Some(text) = path.to_str() else { return whole() };
    let Some((before, (range, after))) =
        text.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return whole();
    };
    let Some((first, last)) = range.split_once("..") else { return whole() };
    let number = |text: &str| text.parse::<usize>().ok();
    match number(first).zip(number(last)) {
        Some((from, to)) if from <= to && to - from < MOST => {
            let digits = first.len();
            (from..=to).map(|n| PathBuf::from(format!("{before}{n:0digits$}{after}"))).collect()
        }
        _ => whole(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stand_for_numbers_with_as_many_digits() {
        let of = |text: &str| -> Vec<String> {
            expanded(Path::new(text)).iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(of("a/t-{008..011}.tar"), ["a/t-008.tar", "a/t-009.tar", "a/t-010.tar", "a/t-011.tar"]);
        assert_eq!(of("{3..3}.tar"), ["3.tar"]);
        for plain in ["a.tar", "{5..3}.tar", "{a..b}.tar", "{1,2}.tar", "{1..2", "{0..99999999}.tar"] {
            assert_eq!(of(plain), [plain]);
        }
    }
}
