//! Builds the index of a source, or reads it from the cache.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::index::{self, Index, IndexEntry, MOST_TEXT, sum};
use super::shard;
use super::source_report::SourceReport;
use crate::files::open_regular;
use crate::{Error, Result, manifest};

/// The index of a source, and why it could not be written to the cache.
pub(super) fn read_or_build(path: &Path, cache: Option<&Path>) -> Result<(Index, Option<Error>)> {
    let Some(folder) = cache else { return Ok((build(path)?, None)) };
    let stamp = index::stamp(path)?;
    if let Some(known) = index::read(folder, path, stamp) {
        return Ok((known, None));
    }
    let found = build(path)?;
    // What has changed in the meantime would pass for what is there now.
    if index::stamp(path)? != stamp {
        return Ok((found, None));
    }
    match index::write(folder, path, stamp, &found) {
        Err(error) if is_misplaced(&error) => Err(error),
        written => Ok((found, written.err())),
    }
}

/// Whether a folder of a cache cannot be one: a mistake of the recipe, not a lack of space or rights.
fn is_misplaced(error: &Error) -> bool {
    use std::io::ErrorKind::{AlreadyExists, InvalidInput, NotADirectory};
    matches!(error, Error::Write { source, .. } if matches!(source.kind(), AlreadyExists | InvalidInput | NotADirectory))
}

/// Builds the index of a source.
fn build(path: &Path) -> Result<Index> {
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
    let (mut start, mut number, mut notes) = (0, 0, SourceReport::default());
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
            entries.push(IndexEntry {
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
