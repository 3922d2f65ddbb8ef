//! Where the utterances of a source are, and how long.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::{cache, shard};
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
    /// Its line, from 1; in a shard, its sample.
    pub line: u32,
    /// In a shard: bytes of the sound file, at most 4 GiB.
    pub sound_length: u32,
    /// In a shard: first byte of it; 0 in a manifest, as there is a header before.
    pub sound: u64,
}

impl Entry {
    /// The sound of a shard's sample; none in a manifest.
    pub fn member(&self) -> Option<Member> {
        let Entry { sound: start, sound_length: length, .. } = *self;
        (start > 0).then_some(Member { start, length })
    }
}

/// The sound of a shard's sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Member {
    /// Its first byte; its tar header is in the 512 bytes before.
    pub start: u64,
    /// Its bytes.
    pub length: u32,
}

/// CRC-32 of a text.
pub(super) fn sum(text: &str) -> u32 {
    crc32fast::hash(text.as_bytes())
}

/// The entries of a source, and whether they are strings of recordings.
pub(super) fn of(path: &Path, cache: Option<&Path>) -> Result<(Vec<Entry>, bool)> {
    if let Some(folder) = cache {
        if let Some(known) = cache::read(folder, path)? {
            return Ok(known);
        }
        let found = find(path)?;
        cache::write(folder, path, &found)?;
        return Ok(found);
    }
    find(path)
}

fn find(path: &Path) -> Result<(Vec<Entry>, bool)> {
    match path.extension().is_some_and(|ending| ending == "tar") {
        true => Ok((shard::entries(path)?, false)),
        false => lines(path),
    }
}

/// Those of a manifest.
fn lines(path: &Path) -> Result<(Vec<Entry>, bool)> {
    let io = |source| Error::Io { path: path.into(), source };
    let mut file = BufReader::new(File::open(path).map_err(io)?);
    let (mut entries, mut seen, mut recordings) = (Vec::new(), HashMap::new(), None);
    let (mut start, mut number) = (0, 0);
    let mut line = String::new();
    while file.read_line(&mut line).map_err(io)? > 0 {
        number += 1;
        let next = start + line.len() as u64;
        let inside = line.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(&line);
        start += (line.len() - inside.len()) as u64;
        let inside = inside.trim_end_matches(['\r', '\n']);
        if !inside.trim().is_empty() {
            if recordings.is_none() && manifest::is_string(path, number, inside)? {
                recordings = Some(manifest::read_recordings(path)?);
            }
            let none = HashMap::new();
            let known = recordings.as_ref().unwrap_or(&none);
            let one = manifest::read_line(path, number, inside, known)?;
            if let Some(first) = seen.insert(one.id.clone(), number) {
                return Err(Error::DuplicateId { path: path.into(), line: number, id: one.id, first });
            }
            entries.push(Entry {
                seconds: one.seconds,
                start,
                length: inside.len() as u32,
                sum: sum(inside),
                line: number as u32,
                sound_length: 0,
                sound: 0,
            });
        }
        start = next;
        line.clear();
    }
    entries.shrink_to_fit();
    Ok((entries, recordings.is_some()))
}
