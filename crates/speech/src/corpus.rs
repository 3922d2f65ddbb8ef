//! `Corpus`: reads the utterances of manifests and tar shards one at a time.
//!
//! [`Corpus::open`] indexes the sources; [`Corpus::utterance`] seeks to one utterance and parses
//! it. Memory does not grow with the transcripts and the audio. Training reads its data through
//! this type.

mod index_file;
mod indexing;
mod name_range;
mod shard;
mod shard_indexing;
mod source_report;
pub mod tar_members;

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use index_file::{Index, IndexEntry};
use name_range::NameRange;
pub use source_report::{BadSample, LengthMismatch};

use crate::files::open_regular;
use crate::{Error, Result, Utterance, manifest};

/// Indexed utterances of manifests and tar shards, read on demand.
///
/// A source is a manifest that [`read_manifest`](crate::read_manifest) accepts or, if its name ends
/// in `.tar`, a shard in the layout of WebDataset: members `KEY.wav`, or audio in another format
/// that [`read_audio`](crate::read_audio) reads, next to `KEY.json` (fields of a manifest, without
/// a file) or `KEY.txt` (the text, if there is no JSON), one after another. A key extends to the
/// last dot of the file name. Ids are unique in a source; different sources may repeat them.
/// `{000..012}` in a name is expanded to all numbers from 0 to 12 with the same number of digits; a
/// range has at most 1,000,000 names.
///
/// Unusable samples are excluded and listed in [`Corpus::bad_samples`]; other unused members are
/// counted and named in [`Corpus::warnings`].
///
/// The position and length of each utterance, 40 bytes each, are determined once. With a `cache`
/// folder they are written there with a checksum and reused while the source does not change.
/// Strings of recordings keep the list of recordings in memory.
///
/// ```no_run
/// let corpus = speech::Corpus::open(&["train-{0000..0099}.tar".into()], Some("cache".as_ref()))?;
/// let first = corpus.utterance(0)?;
/// println!("{} utterances, the first: {:.1} s: {}", corpus.len(), corpus.seconds(0), first.text);
/// # Ok::<(), speech::Error>(())
/// ```
#[derive(Debug)]
pub struct Corpus {
    sources: Vec<CorpusSource>,
    entries: Vec<IndexEntry>,
    warnings: Vec<String>,
    bad_samples: Vec<BadSample>,
    length_mismatches: Vec<LengthMismatch>,
}

/// Number of shards whose unused members are named; those of further shards are counted.
const MAX_NAMED_SHARDS: usize = 20;

/// Characters of changed metadata that an error quotes.
const MAX_EXCERPT_CHARACTERS: usize = 40;

/// A manifest or shard.
#[derive(Debug)]
struct CorpusSource {
    path: PathBuf,
    /// Index of its first utterance in the corpus.
    first_index: usize,
    /// Recordings of its strings, by id; empty without strings.
    recordings: HashMap<String, Utterance>,
}

impl Corpus {
    /// Indexes the sources.
    ///
    /// # Errors
    /// Those of [`read_manifest`](crate::read_manifest); [`Error::Shard`] for a damaged shard or
    /// one without a usable sample; [`Error::NameRange`] for too large a range of names;
    /// [`Error::EmptyManifest`] for a manifest without utterances, or if no source has any.
    ///
    /// Cost: one pass over manifests, and over the headers of shard members and of their audio.
    /// Audio whose header has no length is decoded.
    pub fn open(paths: &[PathBuf], cache: Option<&Path>) -> Result<Self> {
        let (sources, entries, warnings) = (Vec::new(), Vec::new(), Vec::new());
        let mut corpus =
            Corpus { sources, entries, warnings, bad_samples: Vec::new(), length_mismatches: Vec::new() };
        // Indexes the sources one after the other.
        let (mut cache, mut num_reported_shards, mut num_unnamed_members) = (cache, 0, 0);
        for path in paths {
            for path in NameRange::new(path)? {
                let (Index { entries, has_recording_strings, report }, cache_error) =
                    indexing::read_or_build(&path, cache)?;
                if let Some(error) = cache_error {
                    corpus.warnings.push(format!("data.cache: {error}; no index is kept there"));
                    cache = None;
                }
                // Collects the warnings and reports of the source.
                let name = path.display();
                // A manifest may be listed several times.
                let warning = report.blank_lines.warning(&path);
                corpus.warnings.extend(warning.filter(|warning| !corpus.warnings.contains(warning)));
                if let Some(unused_warning) = report.unused_warning() {
                    num_reported_shards += 1;
                    match num_reported_shards <= MAX_NAMED_SHARDS {
                        true => corpus.warnings.push(format!("{name}: {unused_warning}")),
                        false => num_unnamed_members += report.num_unused,
                    }
                }
                if entries.is_empty() {
                    corpus.warnings.push(format!("{name}: a shard without members"));
                }
                corpus.bad_samples.extend(report.bad_samples.into_iter().map(|bad| bad.with_shard(&path)));
                corpus.length_mismatches.extend(report.length_mismatches);
                let recordings =
                    if has_recording_strings { manifest::read_recordings(&path)? } else { HashMap::new() };
                corpus.sources.push(CorpusSource { path, first_index: corpus.entries.len(), recordings });
                corpus.entries.extend(entries);
            }
        }
        if num_unnamed_members > 0 {
            let shards = num_reported_shards - MAX_NAMED_SHARDS;
            corpus
                .warnings
                .push(format!("{num_unnamed_members} members of {shards} further shards are not used"));
        }
        if let Some(source) = corpus.sources.first().filter(|_| corpus.entries.is_empty()) {
            return Err(Error::EmptyManifest { path: source.path.clone() });
        }
        corpus.entries.shrink_to_fit();
        Ok(corpus)
    }

    /// Returns the samples of shards that cannot be used and are excluded.
    pub fn bad_samples(&self) -> &[BadSample] {
        &self.bad_samples
    }

    /// Returns the samples of shards whose audio length differs from their JSON.
    pub fn length_mismatches(&self) -> &[LengthMismatch] {
        &self.length_mismatches
    }

    /// Returns warnings about unused members, skipped lines and the cache.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the number of utterances.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no utterances.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the length of an utterance, from its manifest or audio header.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn seconds(&self, index: usize) -> f64 {
        self.entries[index].seconds
    }

    /// Reads the metadata of an utterance, without its audio.
    ///
    /// # Errors
    /// Those of the source; [`Error::Index`] if the source has changed since it was indexed.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn utterance(&self, index: usize) -> Result<Utterance> {
        let source_index = self.sources.partition_point(|source| source.first_index <= index) - 1;
        let (source, entry) = (&self.sources[source_index], &self.entries[index]);
        let index_in_source = index - source.first_index;
        match entry.audio_member() {
            Some(member) => shard::read_utterance(&source.path, index_in_source, entry, member),
            None => {
                let io_error = |error| Error::Io { path: source.path.clone(), source: error };
                let file = open_regular(&source.path).map_err(io_error)?;
                let line = read_bytes(&source.path, &file, entry.start, entry.length as usize)?;
                let is_unchanged = !line.is_empty() && entry.crc32 == index_file::metadata_crc32(&line);
                let line = String::from_utf8_lossy(&line);
                if !is_unchanged {
                    let excerpt = line.chars().take(MAX_EXCERPT_CHARACTERS).collect();
                    let expected = format!("the line with checksum {:08x}", entry.crc32);
                    return Err(Error::Index {
                        path: source.path.clone(),
                        index: index_in_source,
                        expected,
                        found: excerpt,
                    });
                }
                manifest::parse_utterance(
                    &source.path,
                    entry.line_or_headers as usize,
                    &line,
                    &source.recordings,
                )
            }
        }
    }

    /// Iterates over all utterances.
    pub fn utterances(&self) -> impl Iterator<Item = Result<Utterance>> + '_ {
        (0..self.len()).map(|index| self.utterance(index))
    }

    /// Returns the memory of the index in bytes, without lists of recordings.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<IndexEntry>()
    }
}

/// Reads bytes of a file; fewer if the file ends before.
fn read_bytes(path: &Path, mut file: &File, start: u64, length: usize) -> Result<Vec<u8>> {
    let io_error = |source| Error::Io { path: path.into(), source };
    file.seek(SeekFrom::Start(start)).map_err(io_error)?;
    let mut bytes = Vec::new();
    file.take(length as u64).read_to_end(&mut bytes).map_err(io_error)?;
    Ok(bytes)
}
