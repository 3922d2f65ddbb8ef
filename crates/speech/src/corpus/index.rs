//! Where the utterances of a source are, and how long.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::notes::Notes;
use super::{cache, shard};
use crate::files::open_regular;
use crate::{Error, Result, manifest};

/// An utterance's place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry {
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

impl Entry {
    /// The sound of a shard's sample; none in a manifest.
    pub fn member(&self) -> Option<Member> {
        let Entry { sound: start, sound_length: length, line, .. } = *self;
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
    pub entries: Vec<Entry>,
    /// Whether they are strings of recordings.
    pub are_strings: bool,
    pub notes: Notes,
}

/// The index of a source, and why it could not be written to the cache.
pub(super) fn of(path: &Path, cache: Option<&Path>) -> Result<(Index, Option<Error>)> {
    let Some(folder) = cache else { return Ok((find(path)?, None)) };
    let stamp = cache::stamp(path)?;
    if let Some(known) = cache::read(folder, path, stamp) {
        return Ok((known, None));
    }
    let found = find(path)?;
    // What has changed in the meantime would pass for what is there now.
    if cache::stamp(path)? != stamp {
        return Ok((found, None));
    }
    match cache::write(folder, path, stamp, &found) {
        Err(error) if is_misplaced(&error) => Err(error),
        written => Ok((found, written.err())),
    }
}

/// Whether a folder of a cache cannot be one: a mistake of the recipe, not a lack of space or rights.
fn is_misplaced(error: &Error) -> bool {
    use std::io::ErrorKind::{AlreadyExists, InvalidInput, NotADirectory};
    matches!(error, Error::Write { source, .. } if matches!(source.kind(), AlreadyExists | InvalidInput | NotADirectory))
}

fn find(path: &Path) -> Result<Index> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if name.ends_with(".tgz") || name.contains(".tar.") {
        let (expected, found) = ("a tar file that is not compressed".into(), name);
        return Err(Error::Shard { path: path.into(), expected, found });
    }
    if name.ends_with(".tar") {
        let (entries, notes) = shard::entries(path)?;
        return Ok(Index { entries, are_strings: false, notes });
    }
    let index = lines(path)?;
    if index.entries.is_empty() { Err(Error::EmptyManifest { path: path.into() }) } else { Ok(index) }
}

/// The index of a manifest.
fn lines(path: &Path) -> Result<Index> {
    let io = |source| Error::Io { path: path.into(), source };
    let mut file = BufReader::new(open_regular(path).map_err(io)?);
    let (mut entries, mut seen, mut recordings) = (Vec::new(), HashMap::new(), None);
    let (mut start, mut number, mut notes) = (0, 0, Notes::default());
    let none = HashMap::new();
    let mut line = String::new();
    while (&mut file).take(MOST_TEXT).read_line(&mut line).map_err(io)? > 0 {
        number += 1;
        if line.len() as u64 == MOST_TEXT && !line.ends_with('\n') {
            let (expected, found) = (format!("at most {MOST_TEXT} bytes"), "more".into());
            return Err(Error::ManifestValue {
                path: path.into(),
                line: number,
                field: "line",
                expected,
                found,
            });
        }
        let next = start + line.len() as u64;
        let inside = line.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(&line);
        start += (line.len() - inside.len()) as u64;
        let inside = inside.trim_end_matches(['\r', '\n']);
        if inside.trim().is_empty() {
            notes.blank_lines.add(number);
        } else {
            let parsed = manifest::parse(path, number, inside)?;
            if recordings.is_none() && parsed.is_string() {
                recordings = Some(manifest::read_recordings(path)?);
            }
            let one = manifest::of_line(path, number, parsed, recordings.as_ref().unwrap_or(&none))?;
            if let Some(first) = seen.insert(one.id.clone(), number) {
                return Err(Error::DuplicateId { path: path.into(), line: number, id: one.id, first });
            }
            entries.push(Entry {
                seconds: one.seconds,
                start,
                length: inside.len() as u32,
                sum: sum(inside.as_bytes()),
                line: number as u32,
                sound_length: 0,
                sound: 0,
            });
        }
        start = next;
        line.clear();
    }
    entries.shrink_to_fit();
    Ok(Index { entries, are_strings: recordings.is_some(), notes })
}
