//! Index file of a speech corpus: the position of each utterance in its source.
//!
//! A source is a manifest or a tar shard. The file is in the cache folder, so that a corpus is
//! scanned only once:
//!
//! ```text
//! "panda index 3\n"   stamp of the source (4 x u64)
//! 1 if lines of the manifest have the key `recordings`, else 0 (u64)   number of entries (u64)
//! entries (40 bytes each)   report in JSON   CRC-32 of all bytes before (u32)
//! ```
//! All numbers are little-endian. A damaged index, or one that does not match its source, is
//! rebuilt.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::source_report::SourceReport;
use crate::{Error, Result, files};

/// Position and length of an utterance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct IndexEntry {
    /// Length of the audio in seconds.
    pub seconds: f64,
    /// First byte of the metadata.
    pub start: u64,
    /// Bytes of the metadata.
    pub length: u32,
    /// CRC-32 of the metadata.
    pub crc32: u32,
    /// In a manifest: line number, from 1. In a shard: [`AudioMember::encode_headers`].
    pub line_or_headers: u32,
    /// In a shard: bytes of the audio file, at most 4 GiB.
    pub audio_length: u32,
    /// In a shard: first byte of the audio file; 0 in a manifest.
    pub audio_start: u64,
}

impl IndexEntry {
    /// Returns the audio of a shard's sample; `None` in a manifest.
    pub(super) fn audio_member(&self) -> Option<AudioMember> {
        let IndexEntry { audio_start: start, audio_length: length, line_or_headers, .. } = *self;
        (start > 0).then_some(AudioMember {
            start,
            length,
            header_bytes: line_or_headers & !JSON_FLAG,
            has_json: line_or_headers & JSON_FLAG != 0,
        })
    }
}

/// The audio of a shard's sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AudioMember {
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub length: u32,
    /// Bytes of the preceding headers, including long names; even, as headers are blocks.
    pub header_bytes: u32,
    /// Whether the metadata is JSON.
    pub has_json: bool,
}

impl AudioMember {
    /// Encodes `header_bytes` and `has_json` as [`IndexEntry::line_or_headers`].
    pub(super) fn encode_headers(&self) -> u32 {
        self.header_bytes | if self.has_json { JSON_FLAG } else { 0 }
    }
}

/// Lowest bit of [`IndexEntry::line_or_headers`] in a shard: the metadata is JSON.
const JSON_FLAG: u32 = 1;

/// Largest size of a line or a metadata member in bytes.
pub(super) const MAX_METADATA_BYTES: u64 = 1 << 24;

/// Returns the CRC-32 of the metadata.
pub(super) fn metadata_crc32(text: &[u8]) -> u32 {
    crc32fast::hash(text)
}

/// The index of a source.
#[derive(Debug, PartialEq)]
pub(super) struct Index {
    pub entries: Vec<IndexEntry>,
    /// Whether utterances are strings of recordings: the manifest has the key `recordings`.
    pub has_recording_strings: bool,
    pub report: SourceReport,
}

/// First bytes of an index file: raise the number when the layout changes.
const MAGIC: &[u8] = b"panda index 3\n";
/// Bytes at either end of a source that its stamp covers.
const STAMP_END_BYTES: u64 = 1 << 16;
/// Bytes of the three 64-bit fields, which are encoded first.
const LONG_FIELD_BYTES: usize = 3 * size_of::<u64>();
/// Bytes of an encoded entry: three 64-bit and four 32-bit fields.
const ENTRY_BYTES: usize = LONG_FIELD_BYTES + 4 * size_of::<u32>();

/// Values that change with a source.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct SourceStamp {
    bytes: u64,
    /// Modification time in nanoseconds since 1970; 0 if unknown.
    modified: u64,
    /// CRC-32 of the first and the last [`STAMP_END_BYTES`] bytes.
    ends_crc32: u32,
    /// CRC-32 of the absolute path.
    path_crc32: u32,
}

impl SourceStamp {
    /// Returns the stamp as it is stored in an index file.
    fn to_words(self) -> [u64; 4] {
        [self.bytes, self.modified, u64::from(self.ends_crc32), u64::from(self.path_crc32)]
    }
}

/// Returns the stamp of a source.
pub(super) fn read_stamp(path: &Path) -> Result<SourceStamp> {
    let io_error = |source| Error::Io { path: path.into(), source };
    let mut file = files::open_regular(path).map_err(io_error)?;
    let metadata = file.metadata().map_err(io_error)?;
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let mut both_ends = Vec::new();
    (&mut file).take(STAMP_END_BYTES).read_to_end(&mut both_ends).map_err(io_error)?;
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(STAMP_END_BYTES))).map_err(io_error)?;
    file.take(STAMP_END_BYTES).read_to_end(&mut both_ends).map_err(io_error)?;
    let full_path = path.canonicalize().map_err(io_error)?;
    Ok(SourceStamp {
        bytes: metadata.len(),
        modified: modified.map_or(0, |time| time.as_nanos() as u64),
        ends_crc32: crc32fast::hash(&both_ends),
        path_crc32: crc32fast::hash(full_path.as_os_str().as_encoded_bytes()),
    })
}

/// Returns the path of a source's index.
fn index_path(folder: &Path, source: &Path, stamp: SourceStamp) -> PathBuf {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    folder.join(format!("{name}-{:08x}.index", stamp.path_crc32))
}

/// Reads the index of a source, if it matches the stamp.
pub(super) fn read(folder: &Path, source: &Path, stamp: SourceStamp) -> Option<Index> {
    parse(&files::read_regular(&index_path(folder, source, stamp)).ok()?, stamp)
}

/// Parses an index file; `None` if it is damaged or has another stamp.
fn parse(bytes: &[u8], stamp: SourceStamp) -> Option<Index> {
    let (body, crc32) = bytes.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc32) {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let mut read_word = || {
        let (word, unread) = rest.split_first_chunk::<8>()?;
        rest = unread;
        Some(u64::from_le_bytes(*word))
    };
    if [read_word()?, read_word()?, read_word()?, read_word()?] != stamp.to_words() {
        return None;
    }
    let (has_recording_strings, count) = (read_word()? == 1, usize::try_from(read_word()?).ok()?);
    let (entries, report) = rest.split_at_checked(count.checked_mul(ENTRY_BYTES)?)?;
    let entries = entries.as_chunks::<ENTRY_BYTES>().0.iter().map(decode_entry).collect();
    Some(Index { entries, has_recording_strings, report: serde_json::from_slice(report).ok()? })
}

/// Writes the index of a source atomically.
///
/// Concurrent writers do not corrupt the file.
pub(super) fn write(folder: &Path, source: &Path, stamp: SourceStamp, index: &Index) -> Result<()> {
    let Index { entries, has_recording_strings, report } = index;
    let path = index_path(folder, source, stamp);
    let mut bytes = MAGIC.to_vec();
    let header =
        stamp.to_words().into_iter().chain([u64::from(*has_recording_strings), entries.len() as u64]);
    header.for_each(|word| bytes.extend(word.to_le_bytes()));
    entries.iter().for_each(|entry| bytes.extend(encode_entry(entry)));
    let write_error = |path: &Path, source| Error::Write { path: path.into(), source };
    serde_json::to_writer(&mut bytes, report).map_err(|error| write_error(&path, error.into()))?;
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    files::make_folder(folder)?;
    files::write_atomically(&path, &bytes).map_err(|source| write_error(&path, source))
}

/// Encodes an entry: three numbers of 8 bytes, then four of 4 bytes.
fn encode_entry(entry: &IndexEntry) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    let (u64_bytes, u32_bytes) = bytes.split_at_mut(LONG_FIELD_BYTES);
    let IndexEntry { seconds, start, length, crc32, line_or_headers, audio_length, audio_start } = *entry;
    let u64_fields = u64_bytes.as_chunks_mut::<8>().0.iter_mut();
    u64_fields
        .zip([seconds.to_bits(), start, audio_start])
        .for_each(|(field, value)| *field = value.to_le_bytes());
    let u32_fields = u32_bytes.as_chunks_mut::<4>().0.iter_mut();
    u32_fields
        .zip([length, crc32, line_or_headers, audio_length])
        .for_each(|(field, value)| *field = value.to_le_bytes());
    bytes
}

/// Inverts [`encode_entry`].
fn decode_entry(bytes: &[u8; ENTRY_BYTES]) -> IndexEntry {
    let u64_field = |index: usize| u64::from_le_bytes(bytes.as_chunks::<8>().0[index]);
    let u32_field = |index: usize| u32::from_le_bytes(bytes[LONG_FIELD_BYTES..].as_chunks::<4>().0[index]);
    IndexEntry {
        seconds: f64::from_bits(u64_field(0)),
        start: u64_field(1),
        length: u32_field(0),
        crc32: u32_field(1),
        line_or_headers: u32_field(2),
        audio_length: u32_field(3),
        audio_start: u64_field(2),
    }
}
