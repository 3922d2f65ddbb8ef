//! Where the utterances of a source are, and how long; the same on disk.
//!
//! ```text
//! "panda index 3\n"   stamp of the source: 3 x u64 and its path's checksum   strings: u64   count: u64
//! count x entry of 40 bytes        notes in JSON        CRC-32 of all before        all little-endian
//! ```
//! An index that does not fit its source, or is damaged, is built again.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::source_report::SourceReport;
use crate::{Error, Result, files};

/// An utterance's place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct IndexEntry {
    /// Length of its sound.
    pub seconds: f64,
    /// First byte of what is said about it.
    pub start: u64,
    /// Bytes of that.
    pub length: u32,
    /// CRC-32 of that.
    pub sum: u32,
    /// Its line, from 1; in a shard, [`Member::line`].
    pub line: u32,
    /// In a shard: bytes of the sound file, at most 4 GiB.
    pub sound_length: u32,
    /// In a shard: first byte of it; 0 in a manifest, as there is a header before.
    pub sound: u64,
}

impl IndexEntry {
    /// The sound of a shard's sample; none in a manifest.
    pub fn member(&self) -> Option<Member> {
        let IndexEntry { sound: start, sound_length: length, line, .. } = *self;
        (start > 0).then_some(Member { start, length, headers: line & !1, json: line & 1 == 1 })
    }
}

/// The sound of a shard's sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Member {
    /// Its first byte.
    pub start: u64,
    /// Its bytes.
    pub length: u32,
    /// Bytes of the headers before it, those of long names included; even, as they come in blocks.
    pub headers: u32,
    /// Whether what is said about it is JSON.
    pub json: bool,
}

impl Member {
    /// What an entry keeps of headers and JSON.
    pub fn line(&self) -> u32 {
        self.headers | u32::from(self.json)
    }
}

/// Bytes of a line or a text at most; what is longer is something else.
pub(super) const MOST_TEXT: u64 = 1 << 24;

/// CRC-32 of a text.
pub(super) fn sum(text: &[u8]) -> u32 {
    crc32fast::hash(text)
}

/// The index of a source.
#[derive(Debug, PartialEq)]
pub(super) struct Index {
    pub entries: Vec<IndexEntry>,
    /// Whether they are strings of recordings.
    pub are_strings: bool,
    pub notes: SourceReport,
}

const MAGIC: &[u8] = b"panda index 3\n";
/// Bytes at the beginning and at the end of a source that its stamp looks at.
const LOOK: u64 = 1 << 16;
const ENTRY: usize = 40;

/// What tells a changed source: size, time of change, and a checksum of its ends.
pub(super) fn stamp(path: &Path) -> Result<[u64; 4]> {
    let io = |source| Error::Io { path: path.into(), source };
    let mut file = files::open_regular(path).map_err(io)?;
    let about = file.metadata().map_err(io)?;
    let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let mut ends = Vec::new();
    (&mut file).take(LOOK).read_to_end(&mut ends).map_err(io)?;
    file.seek(SeekFrom::Start(about.len().saturating_sub(LOOK))).map_err(io)?;
    file.take(LOOK).read_to_end(&mut ends).map_err(io)?;
    let whole = path.canonicalize().map_err(io)?;
    let name = crc32fast::hash(whole.as_os_str().as_encoded_bytes());
    let nanoseconds = changed.map_or(0, |time| time.as_nanos() as u64);
    Ok([about.len(), nanoseconds, u64::from(crc32fast::hash(&ends)), u64::from(name)])
}

/// Where the index of a source is.
fn place(folder: &Path, source: &Path, stamp: [u64; 4]) -> PathBuf {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    folder.join(format!("{name}-{:08x}.index", stamp[3]))
}

/// The index of a source, if there is one that fits.
pub(super) fn read(folder: &Path, source: &Path, stamp: [u64; 4]) -> Option<Index> {
    parse(&files::read_regular(&place(folder, source, stamp)).ok()?, stamp)
}

fn parse(bytes: &[u8], stamp: [u64; 4]) -> Option<Index> {
    let (body, sum) = bytes.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let mut next = || {
        let (word, after) = rest.split_first_chunk::<8>()?;
        rest = after;
        Some(u64::from_le_bytes(*word))
    };
    if [next()?, next()?, next()?, next()?] != stamp {
        return None;
    }
    let (are_strings, count) = (next()? == 1, usize::try_from(next()?).ok()?);
    let (entries, notes) = rest.split_at_checked(count.checked_mul(ENTRY)?)?;
    let entries = entries.as_chunks::<ENTRY>().0.iter().map(entry).collect();
    Some(Index { entries, are_strings, notes: serde_json::from_slice(notes).ok()? })
}

/// Writes the index of a source; the file appears whole or not at all, whoever else writes it at the same time.
pub(super) fn write(folder: &Path, source: &Path, stamp: [u64; 4], index: &Index) -> Result<()> {
    let Index { entries, are_strings, notes } = index;
    let path = place(folder, source, stamp);
    let mut bytes = MAGIC.to_vec();
    let words = stamp.into_iter().chain([u64::from(*are_strings), entries.len() as u64]);
    words.for_each(|word| bytes.extend(word.to_le_bytes()));
    entries.iter().for_each(|entry| bytes.extend(of_entry(entry)));
    let failed = |path: &Path, source| Error::Write { path: path.into(), source };
    serde_json::to_writer(&mut bytes, notes).map_err(|error| failed(&path, error.into()))?;
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    files::make_folder(folder)?;
    files::write_atomically(&path, &bytes).map_err(|source| failed(&path, source))
}

fn of_entry(entry: &IndexEntry) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    let (words, halves) = bytes.split_at_mut(24);
    let IndexEntry { seconds, start, length, sum, line, sound_length, sound } = *entry;
    let words = words.as_chunks_mut::<8>().0.iter_mut();
    words.zip([seconds.to_bits(), start, sound]).for_each(|(to, word)| *to = word.to_le_bytes());
    let halves = halves.as_chunks_mut::<4>().0.iter_mut();
    halves.zip([length, sum, line, sound_length]).for_each(|(to, half)| *to = half.to_le_bytes());
    bytes
}

fn entry(bytes: &[u8; ENTRY]) -> IndexEntry {
    let word = |at: usize| u64::from_le_bytes(bytes.as_chunks::<8>().0[at]);
    let half = |at: usize| u32::from_le_bytes(bytes[24..].as_chunks::<4>().0[at]);
    IndexEntry {
        seconds: f64::from_bits(word(0)),
        start: word(1),
        length: half(0),
        sum: half(1),
        line: half(2),
        sound_length: half(3),
        sound: word(2),
    }
}
