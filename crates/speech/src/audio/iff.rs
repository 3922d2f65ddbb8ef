//! Reads the chunks of WAV, AIFF and CAF audio files.

use std::borrow::Cow;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use super::file_range::FileRange;

/// Largest chunk that is read into memory, in bytes; its length is a field of the file.
pub(super) const MAX_CHUNK_BYTES: u64 = 1 << 16;

/// The byte order of a file's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// Decodes the number in the first `N` bytes, at most 8.
    pub(super) fn decode<const N: usize>(self, bytes: &[u8]) -> u64 {
        let append_byte = |number: u64, &byte: &u8| (number << 8) | u64::from(byte);
        let bytes = bytes.iter().take(N);
        if self == ByteOrder::Big { bytes.fold(0, append_byte) } else { bytes.rev().fold(0, append_byte) }
    }
}

/// Reads the next `N` bytes.
pub(super) fn read_array<const N: usize>(reader: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads the next `length` bytes, at most [`MAX_CHUNK_BYTES`].
pub(super) fn read_bytes(reader: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = reader.take(length.min(MAX_CHUNK_BYTES)).read_to_end(&mut bytes)? as u64;
    if read < length.min(MAX_CHUNK_BYTES) { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

/// Skips `length` bytes, at most to the end of the file.
pub(super) fn skip_bytes(file: &mut BufReader<FileRange>, length: u64) -> io::Result<()> {
    let remaining = file.get_ref().len().saturating_sub(file.stream_position()?);
    match i64::try_from(length) {
        Ok(length) if length as u64 <= remaining => file.seek_relative(length),
        _ => file.seek(SeekFrom::End(0)).map(|_| ()),
    }
}

/// Decodes UTF-8, with replacement characters for invalid bytes.
pub(super) fn lossy_text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
