//! Reads the utterances of tar shards, in the layout of WebDataset.
//!
//! ```text
//! utt1.flac  utt1.json  utt2.flac  utt2.json  ...     members of a sample in any order
//! ```
//! The key of a member is its name up to the last dot of the file name. WebDataset itself cuts at
//! the first dot, so that `sp0.9-a.wav` would be a member `9-a.wav` of `sp0`.
//!
//! [`shard_indexing`](super::shard_indexing) creates the index entries of the samples.

use std::fs::File;
use std::io::{Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::index_file::{self, AudioMember, IndexEntry};
use super::tar_members::TarMembers;
use super::{MAX_EXCERPT_CHARACTERS, read_bytes};
use crate::audio::{self, FileRange};
use crate::files::open_regular;
use crate::{Error, Result, Span, Utterance, manifest};

/// Smallest difference in seconds between two lengths that is reported.
const MIN_LENGTH_DIFFERENCE: f64 = 0.1;
/// The same relative to the length of the audio.
const MIN_RELATIVE_LENGTH_DIFFERENCE: f64 = 0.02;

/// Reads the utterance of an indexed sample.
pub(super) fn read_utterance(
    path: &Path,
    index: usize,
    entry: &IndexEntry,
    member: AudioMember,
) -> Result<Utterance> {
    let index_error =
        |expected: String, found: String| Error::Index { path: path.into(), index, expected, found };
    let file = open(path)?;
    let text = read_bytes(path, &file, entry.start, entry.length as usize)?;
    let is_unchanged = index_file::metadata_crc32(&text) == entry.crc32;
    let text = String::from_utf8_lossy(&text);
    if !is_unchanged {
        let excerpt = text.chars().take(MAX_EXCERPT_CHARACTERS).collect();
        return Err(index_error(format!("a text with checksum {:08x}", entry.crc32), excerpt));
    }
    let Some(key) = read_key_before(path, &file, member)? else {
        return Err(index_error("the header of an audio file".into(), "other bytes".into()));
    };
    let in_utterance = |error: Error| Error::Utterance { utterance: key.clone(), source: Box::new(error) };
    let (samples, rate) =
        audio::declared_length(path, audio_range(path, &file, member)?).map_err(in_utterance)?;
    let audio_seconds = samples as f64 / f64::from(rate);
    if samples > 0 && lengths_differ(entry.seconds, audio_seconds) {
        return Err(index_error(format!("audio of {:.2} s", entry.seconds), format!("{audio_seconds:.2} s")));
    }
    // A length that the header lacks was determined when the shard was indexed.
    let seconds = if samples > 0 { audio_seconds } else { entry.seconds };
    let mut utterance = parse_utterance(path, member, &key, &metadata_json(&text, member), seconds, rate)
        .map_err(in_utterance)?;
    if lengths_differ(utterance.seconds, seconds) {
        utterance.seconds = seconds;
    }
    Ok(utterance)
}

/// Returns whether a length differs by more than 0.1 s and 2 %.
pub(super) fn lengths_differ(declared: f64, found: f64) -> bool {
    (found - declared).abs() > MIN_LENGTH_DIFFERENCE.max(MIN_RELATIVE_LENGTH_DIFFERENCE * found)
}

/// Returns the key in the headers before a member; `None` without such headers.
pub(super) fn read_key_before(path: &Path, mut file: &File, member: AudioMember) -> Result<Option<String>> {
    let io_error = |source| Error::Io { path: path.into(), source };
    let mut headers = vec![0; member.header_bytes as usize];
    let Some(headers_start) = member.start.checked_sub(u64::from(member.header_bytes)) else {
        return Ok(None);
    };
    file.seek(SeekFrom::Start(headers_start)).map_err(io_error)?;
    match file.read_exact(&mut headers) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(io_error(error)),
    }
    let Ok(Some(header)) = TarMembers::new(Cursor::new(headers)).next_member() else { return Ok(None) };
    let is_adjacent = header.start == u64::from(member.header_bytes);
    Ok(split_name(&header.name).filter(|_| is_adjacent).map(|(key, _)| key.to_owned()))
}

/// Splits a member name into key and extension.
///
/// The key extends to the last dot of the file name. `None` if either is empty, and for hidden
/// files.
pub(super) fn split_name(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let file_start = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = name[file_start..].rfind('.')? + file_start;
    let is_hidden = name[file_start..].starts_with('.');
    (!is_hidden && dot + 1 < name.len()).then(|| (&name[..dot], &name[dot + 1..]))
}

/// Returns the JSON of a sample, or wraps its text in JSON.
pub(super) fn metadata_json(text: &str, member: AudioMember) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match member.has_json {
        true => text.to_owned(),
        false => serde_json::json!({ "text": text.trim() }).to_string(),
    }
}

/// Parses the utterance of a sample.
///
/// `seconds` and `rate` are those of its audio.
pub(super) fn parse_utterance(
    path: &Path,
    member: AudioMember,
    key: &str,
    metadata: &str,
    seconds: f64,
    rate: u32,
) -> Result<Utterance> {
    let span = Span::Member { start: member.start, length: u64::from(member.length) };
    manifest::utterance_from_member(path, metadata, key, seconds, rate, span)
}

/// Returns the byte range of a sample's audio.
pub(super) fn audio_range(path: &Path, file: &File, member: AudioMember) -> Result<FileRange> {
    let range =
        file.try_clone().and_then(|file| FileRange::new(file, member.start, u64::from(member.length)));
    range.map_err(|source| Error::Io { path: path.into(), source })
}

pub(super) fn open(path: &Path) -> Result<File> {
    open_regular(path).map_err(|source| Error::Io { path: path.into(), source })
}

pub(super) fn shard_error(path: &Path, expected: &str, found: impl Into<String>) -> Error {
    Error::Shard { path: path.into(), expected: expected.to_owned(), found: found.into() }
}
