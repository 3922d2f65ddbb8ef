//! Indexes sources of speech corpora, or reads their indexes from the cache.
//!
//! A source is a manifest, which is indexed here, or a tar shard, which
//! [`shard_indexing`] indexes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::index_file::{self, Index, IndexEntry, MAX_METADATA_BYTES, metadata_crc32};
use super::shard_indexing;
use super::source_report::SourceReport;
use crate::files::open_regular;
use crate::{Error, Result, manifest};

/// Returns the index of a source.
///
/// The second value is the error of writing it to the cache, if any.
pub(super) fn read_or_build(path: &Path, cache: Option<&Path>) -> Result<(Index, Option<Error>)> {
    let Some(folder) = cache else { return Ok((build_index(path)?, None)) };
    let stamp = index_file::read_stamp(path)?;
    if let Some(index) = index_file::read(folder, path, stamp) {
        return Ok((index, None));
    }
    let index = build_index(path)?;
    // A source that changed while it was indexed must not be cached under its old stamp.
    if index_file::read_stamp(path)? != stamp {
        return Ok((index, None));
    }
    match index_file::write(folder, path, stamp, &index) {
        Err(error) if is_invalid_folder(&error) => Err(error),
        outcome => Ok((index, outcome.err())),
    }
}

/// Returns whether the cache path cannot be a folder.
///
/// This is a mistake in the recipe, not a lack of space or permissions.
fn is_invalid_folder(error: &Error) -> bool {
    use std::io::ErrorKind::{AlreadyExists, InvalidInput, NotADirectory};
    matches!(error, Error::Write { source, .. } if matches!(source.kind(), AlreadyExists | InvalidInput | NotADirectory))
}

/// Builds the index of a source.
fn build_index(path: &Path) -> Result<Index> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if name.ends_with(".tgz") || name.contains(".tar.") {
        let (expected, found) = ("a tar file that is not compressed".into(), name);
        return Err(Error::Shard { path: path.into(), expected, found });
    }
    if name.ends_with(".tar") {
        let (entries, report) = shard_indexing::index_shard(path)?;
        return Ok(Index { entries, has_recording_strings: false, report });
    }
    let index = index_manifest(path)?;
    if index.entries.is_empty() { Err(Error::EmptyManifest { path: path.into() }) } else { Ok(index) }
}

/// Builds the index of a manifest.
fn index_manifest(path: &Path) -> Result<Index> {
    let io_error = |source| Error::Io { path: path.into(), source };
    let mut file = BufReader::new(open_regular(path).map_err(io_error)?);
    let (mut entries, mut line_numbers_by_id, mut recordings) = (Vec::new(), HashMap::new(), None);
    // Byte offset and number of the current line.
    let (mut line_start, mut line_number, mut report) = (0, 0, SourceReport::default());
    let no_recordings = HashMap::new();
    let mut line = String::new();
    while (&mut file).take(MAX_METADATA_BYTES).read_line(&mut line).map_err(io_error)? > 0 {
        line_number += 1;
        if line.len() as u64 == MAX_METADATA_BYTES && !line.ends_with('\n') {
            let (expected, found) = (format!("at most {MAX_METADATA_BYTES} bytes"), "more".into());
            return Err(Error::ManifestValue {
                path: path.into(),
                line: line_number,
                field: "line",
                expected,
                found,
            });
        }
        let next_line_start = line_start + line.len() as u64;
        // The entry covers the line without byte order mark and line end.
        let content = line.strip_prefix('\u{feff}').filter(|_| line_number == 1).unwrap_or(&line);
        line_start += (line.len() - content.len()) as u64;
        let content = content.trim_end_matches(['\r', '\n']);
        if content.trim().is_empty() {
            report.blank_lines.add(line_number);
        } else {
            // Parses the line, as a check; only its position is stored.
            let fields = manifest::parse_line(path, line_number, content)?;
            if recordings.is_none() && fields.is_recording_string() {
                recordings = Some(manifest::read_recordings(path)?);
            }
            let utterance = manifest::utterance_from_line(
                path,
                line_number,
                fields,
                recordings.as_ref().unwrap_or(&no_recordings),
            )?;
            if let Some(first) = line_numbers_by_id.insert(utterance.id.clone(), line_number) {
                let (path, id) = (path.into(), utterance.id);
                return Err(Error::DuplicateId { path, line: line_number, id, first });
            }
            entries.push(IndexEntry {
                seconds: utterance.seconds,
                start: line_start,
                length: content.len() as u32,
                crc32: metadata_crc32(content.as_bytes()),
                line_or_headers: line_number as u32,
                audio_length: 0,
                audio_start: 0,
            });
        }
        line_start = next_line_start;
        line.clear();
    }
    entries.shrink_to_fit();
    Ok(Index { entries, has_recording_strings: recordings.is_some(), report })
}
