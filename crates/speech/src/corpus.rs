//! Utterances of manifests and shards, one at a time: what is in memory does not grow with texts and sound.

mod index;
mod members;
mod name_range;
mod scan;
mod shard;
mod source_report;

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use index::{Index, IndexEntry};
use name_range::NameRange;
pub use source_report::{BadSample, LengthMismatch};

use crate::files::open_regular;
use crate::{Error, Result, Utterance, manifest};

/// Utterances by number, read when they are wanted.
///
/// A source is a manifest as [`read_manifest`](crate::read_manifest) knows it, or, where its name ends in `.tar`, a shard in the
/// layout of WebDataset: members `KEY.wav`, or sound in another format that [`read_audio`](crate::read_audio) reads, next to
/// `KEY.json` (fields of a manifest, without a file) or `KEY.txt` (the text, where there is no JSON), one after another. A key
/// reaches up to the last dot of the file's name. Ids are unique in a source; sources may repeat each other. `{000..012}` in a name
/// stands for all numbers from 0 to 12, with as many digits; a range has at most 1,000,000 names.
///
/// Samples that cannot be used are left out and are in [`Corpus::bad_samples`]; other members that are not used are counted and
/// named in [`Corpus::warnings`].
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
    sources: Vec<CorpusSource>,
    entries: Vec<IndexEntry>,
    warnings: Vec<String>,
    bad: Vec<BadSample>,
    other_length: Vec<LengthMismatch>,
}

/// Shards whose members that are not used are named; those of others are counted.
const MAX_NAMED_SHARDS: usize = 20;

#[derive(Debug)]
struct CorpusSource {
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
    /// Those of [`read_manifest`](crate::read_manifest); [`Error::Shard`] for a damaged one, or one of which nothing can be used;
    /// [`Error::NameRange`] for a range of too many names; [`Error::EmptyManifest`] for a manifest without utterances, or if no
    /// source has any.
    ///
    /// Cost: one pass over manifests; over the headers of shards' members and of their sound, which is decoded if it does not tell its
    /// length.
    pub fn open(paths: &[PathBuf], cache: Option<&Path>) -> Result<Self> {
        let (sources, entries, warnings) = (Vec::new(), Vec::new(), Vec::new());
        let mut corpus = Corpus { sources, entries, warnings, bad: Vec::new(), other_length: Vec::new() };
        let (mut cache, mut shards_with_unused, mut more_unused) = (cache, 0, 0);
        for path in paths {
            for path in NameRange::new(path)? {
                let (Index { entries, are_strings, notes }, refused) = scan::read_or_build(&path, cache)?;
                if let Some(error) = refused {
                    corpus.warnings.push(format!("data.cache: {error}; no index is kept there"));
                    cache = None;
                }
                let shown = path.display();
                // A manifest may be listed several times.
                let blank = notes.blank_lines.warning(&path);
                corpus.warnings.extend(blank.filter(|warning| !corpus.warnings.contains(warning)));
                if let Some(unused) = notes.unused() {
                    shards_with_unused += 1;
                    match shards_with_unused <= MAX_NAMED_SHARDS {
                        true => corpus.warnings.push(format!("{shown}: {unused}")),
                        false => more_unused += notes.unused,
                    }
                }
                if entries.is_empty() {
                    corpus.warnings.push(format!("{shown}: a shard without members"));
                }
                corpus.bad.extend(notes.bad.into_iter().map(|bad| bad.within(&path)));
                corpus.other_length.extend(notes.other_length);
                let recordings = if are_strings { manifest::read_recordings(&path)? } else { HashMap::new() };
                corpus.sources.push(CorpusSource { path, first: corpus.entries.len(), recordings });
                corpus.entries.extend(entries);
            }
        }
        if more_unused > 0 {
            let shards = shards_with_unused - MAX_NAMED_SHARDS;
            corpus.warnings.push(format!("{more_unused} members of {shards} more shards are not used"));
        }
        if let Some(first) = corpus.sources.first().filter(|_| corpus.entries.is_empty()) {
            return Err(Error::EmptyManifest { path: first.path.clone() });
        }
        corpus.entries.shrink_to_fit();
        Ok(corpus)
    }

    /// Samples of shards that cannot be used: they are not among the utterances.
    pub fn bad_samples(&self) -> &[BadSample] {
        &self.bad
    }

    /// Samples of shards whose sound is not as long as their JSON says.
    pub fn length_mismatches(&self) -> &[LengthMismatch] {
        &self.other_length
    }

    /// Members of shards and lines of manifests that are not used, and what happened to the cache, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
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
        self.entries.capacity() * size_of::<IndexEntry>()
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
