//! The file of an encoder cache: writer, and reader with checksums.
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use half::bf16;
use speech::files::open_regular;

use crate::recipe::RowFormat;
use crate::{Error, Result};

/// First bytes of a file, with the version of the format.
const FILE_SIGNATURE: &[u8] = b"panda encoder rows 1\n";
/// Bytes of a hash.
const HASH_BYTES: usize = 16;
/// Bytes of the header.
const HEADER_BYTES: usize = FILE_SIGNATURE.len() + HASH_BYTES + 2 * size_of::<u32>();
/// Bytes of an entry of the index.
const ENTRY_BYTES: usize = HASH_BYTES + 8 + 4 + 4 + 8;
/// Bytes after the index.
const FOOTER_BYTES: usize = 8 + 4;

/// Identifies the contents of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EncoderCacheKey {
    /// Hash of encoder and front end.
    pub settings: [u8; HASH_BYTES],
    pub format: RowFormat,
    /// Width W of the rows.
    pub width: usize,
    /// Hash of each utterance.
    pub contents: Vec<[u8; HASH_BYTES]>,
}

/// Why the file at the path of a cache is not used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mismatch {
    Missing,
    Unreadable(String),
    Damaged,
    /// Another encoder, other weights, another front end or number format.
    OtherSettings,
    OtherUtterances,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("the file does not exist"),
            Self::Unreadable(error) => write!(f, "the file cannot be read: {error}"),
            Self::Damaged => f.write_str("the file is damaged"),
            Self::OtherSettings => {
                f.write_str("the file has rows of another encoder, other [features] or another number format")
            }
            Self::OtherUtterances => f.write_str("the file has rows of other utterances"),
        }
    }
}

/// The encoder rows of an utterance.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EncoderRows {
    /// `[rows, W]`
    pub values: Vec<f32>,
    pub rows: usize,
    /// Length of a recording that differs from its manifest.
    pub other_seconds: Option<f64>,
}

/// The place of an utterance's rows in the file.
#[derive(Debug, Clone, Copy)]
struct EncoderCacheEntry {
    content: [u8; HASH_BYTES],
    /// 0 for an utterance without rows.
    offset: u64,
    rows: u32,
    checksum: u32,
    /// See [`EncoderRows::other_seconds`]; NaN for none.
    seconds: f64,
}

impl EncoderCacheEntry {
    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..16].copy_from_slice(&self.content);
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.rows.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[32..].copy_from_slice(&self.seconds.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let (content, rest) = bytes.split_first_chunk::<HASH_BYTES>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let (rows, rest) = rest.split_first_chunk::<4>()?;
        let (checksum, rest) = rest.split_first_chunk::<4>()?;
        let seconds = rest.first_chunk::<8>()?;
        Some(EncoderCacheEntry {
            content: *content,
            offset: u64::from_le_bytes(*offset),
            rows: u32::from_le_bytes(*rows),
            checksum: u32::from_le_bytes(*checksum),
            seconds: f64::from_le_bytes(*seconds),
        })
    }
}

/// Encodes the header of a file.
fn header(key: &EncoderCacheKey) -> Vec<u8> {
    let mut bytes = FILE_SIGNATURE.to_vec();
    bytes.extend(key.settings);
    for number in [key.format.bytes(), key.width] {
        bytes.extend((number as u32).to_le_bytes());
    }
    bytes
}

/// Writes the rows of a cache, in any order of utterances.
pub(super) struct EncoderCacheWriter<'a> {
    file: &'a mut dyn Write,
    header: Vec<u8>,
    format: RowFormat,
    width: usize,
    position: u64,
    entries: Vec<EncoderCacheEntry>,
}

impl<'a> EncoderCacheWriter<'a> {
    /// Writes the header.
    ///
    /// # Errors
    /// Those of the file.
    pub(super) fn new(file: &'a mut dyn Write, key: &EncoderCacheKey) -> io::Result<Self> {
        let header = header(key);
        file.write_all(&header)?;
        let absent =
            |&content| EncoderCacheEntry { content, offset: 0, rows: 0, checksum: 0, seconds: f64::NAN };
        let entries = key.contents.iter().map(absent).collect();
        let position = header.len() as u64;
        Ok(EncoderCacheWriter { file, header, format: key.format, width: key.width, position, entries })
    }

    /// Writes the rows of an utterance, `values [rows, W]`.
    ///
    /// # Errors
    /// Those of the file.
    pub(super) fn add(&mut self, index: usize, values: &[f32], other_seconds: Option<f64>) -> io::Result<()> {
        let bytes: Vec<u8> = match self.format {
            RowFormat::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            RowFormat::Bf16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        };
        self.file.write_all(&bytes)?;
        let entry = &mut self.entries[index];
        entry.offset = self.position;
        entry.rows = (values.len() / self.width.max(1)) as u32;
        entry.checksum = crc32fast::hash(&bytes);
        entry.seconds = other_seconds.unwrap_or(f64::NAN);
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Writes the index, and ends the file.
    ///
    /// # Errors
    /// Those of the file.
    pub(super) fn finish(self) -> io::Result<()> {
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&self.header);
        for entry in self.entries {
            let bytes = entry.to_bytes();
            checksum.update(&bytes);
            self.file.write_all(&bytes)?;
        }
        self.file.write_all(&self.position.to_le_bytes())?;
        self.file.write_all(&checksum.finalize().to_le_bytes())
    }
}

/// An open cache, whose header and index are valid.
#[derive(Debug)]
pub(super) struct EncoderCache {
    path: PathBuf,
    file: Mutex<File>,
    format: RowFormat,
    width: usize,
    entries: Vec<EncoderCacheEntry>,
}

impl EncoderCache {
    /// Opens a file, and compares it with a key.
    pub(super) fn open(path: &Path, key: &EncoderCacheKey) -> std::result::Result<Self, Mismatch> {
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Mismatch::Missing,
            io::ErrorKind::UnexpectedEof => Mismatch::Damaged,
            _ => Mismatch::Unreadable(error.to_string()),
        };
        let mut file = open_regular(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        // 1. The header.
        let mut found_header = vec![0; HEADER_BYTES];
        file.read_exact(&mut found_header).map_err(unreadable)?;
        if !found_header.starts_with(FILE_SIGNATURE) {
            return Err(Mismatch::Damaged);
        }
        if found_header != header(key) {
            return Err(Mismatch::OtherSettings);
        }
        // 2. The index, from its offset at the end of the file.
        let Some(footer) = length.checked_sub(FOOTER_BYTES as u64) else { return Err(Mismatch::Damaged) };
        file.seek(SeekFrom::Start(footer)).map_err(unreadable)?;
        let (mut offset, mut checksum) = ([0; 8], [0; 4]);
        file.read_exact(&mut offset).map_err(unreadable)?;
        file.read_exact(&mut checksum).map_err(unreadable)?;
        let offset = u64::from_le_bytes(offset);
        let index_bytes = footer.checked_sub(offset).filter(|_| offset >= HEADER_BYTES as u64);
        let Some(index_bytes) = index_bytes else { return Err(Mismatch::Damaged) };
        file.seek(SeekFrom::Start(offset)).map_err(unreadable)?;
        let mut index = vec![0; index_bytes as usize];
        file.read_exact(&mut index).map_err(unreadable)?;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&found_header);
        hasher.update(&index);
        let (chunks, remainder) = index.as_chunks::<ENTRY_BYTES>();
        if hasher.finalize() != u32::from_le_bytes(checksum) || !remainder.is_empty() {
            return Err(Mismatch::Damaged);
        }
        // 3. The utterances.
        let entries: Option<Vec<EncoderCacheEntry>> =
            chunks.iter().map(EncoderCacheEntry::from_bytes).collect();
        let Some(entries) = entries else { return Err(Mismatch::Damaged) };
        let row_bytes = (key.width * key.format.bytes()) as u64;
        let is_inside = |entry: &EncoderCacheEntry| {
            let end = entry.offset.checked_add(u64::from(entry.rows).saturating_mul(row_bytes));
            end.is_some_and(|end| end <= offset)
        };
        if !entries.iter().all(is_inside) {
            return Err(Mismatch::Damaged);
        }
        if !entries.iter().map(|entry| &entry.content).eq(&key.contents) {
            return Err(Mismatch::OtherUtterances);
        }
        let EncoderCacheKey { format, width, .. } = *key;
        Ok(EncoderCache { path: path.to_owned(), file: Mutex::new(file), format, width, entries })
    }

    /// Returns the width W of the rows.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Reads the rows of an utterance; none for one that cannot be used.
    ///
    /// # Errors
    /// [`Error::EncoderCache`] for damaged rows; [`Error::Io`](model::Error::Io).
    pub(super) fn read(&self, index: usize) -> Result<Option<EncoderRows>> {
        let damaged = |found: &'static str| Error::EncoderCache {
            path: self.path.clone(),
            expected: format!("rows of utterance {} as they were written", index + 1),
            found: found.into(),
        };
        let entry = *self.entries.get(index).ok_or_else(|| damaged("no entry"))?;
        if entry.offset == 0 {
            return Ok(None);
        }
        let rows = entry.rows as usize;
        let mut bytes = vec![0; rows * self.width * self.format.bytes()];
        let io_error = |error| Error::io(&self.path, "read encoder rows")(error);
        {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(entry.offset)).map_err(io_error)?;
            file.read_exact(&mut bytes).map_err(io_error)?;
        }
        if crc32fast::hash(&bytes) != entry.checksum {
            return Err(damaged("another CRC-32"));
        }
        let values = match self.format {
            RowFormat::F32 => {
                bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
            }
            RowFormat::Bf16 => {
                bytes.as_chunks::<2>().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32()).collect()
            }
        };
        let other_seconds = Some(entry.seconds).filter(|seconds| !seconds.is_nan());
        Ok(Some(EncoderRows { values, rows, other_seconds }))
    }
}

#[cfg(test)]
mod tests;
