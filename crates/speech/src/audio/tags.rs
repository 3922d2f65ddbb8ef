//! Skips metadata tags before and after the audio of a file: ID3, APE, Lyrics3.
//!
//! ```text
//! before: "ID3" version (2) flags size (4 x 7 bits) ... [footer of 10 bytes]
//! after:  ["TAG+" 227] "TAG" 128 in all;
//!         ... "APETAGEX" version (4) size (4) count (4) flags (4) 0 (8);
//!         "LYRICSBEGIN" ... size (6 digits) "LYRICS200"
//! ```

use std::io::{self, Read, Seek, SeekFrom};

use super::file_range::FileRange;

/// Bytes of an ID3v2 header or footer.
const ID3V2_HEADER_BYTES: u64 = 10;
/// Bytes of an APE header or footer.
const APE_HEADER_BYTES: u64 = 32;
/// Bytes of the size and the end mark of Lyrics3.
const LYRICS3_END_BYTES: u64 = 15;
/// Largest number of tags of each kind that are skipped.
const MAX_TAGS: usize = 16;

/// Returns the file after its ID3v2 tags.
pub(super) fn without_leading_tags(mut file: FileRange) -> io::Result<FileRange> {
    let mut start = 0;
    for _ in 0..MAX_TAGS {
        let Some(header) = read_bytes_at::<10>(&mut file, start)? else { break };
        let Some(length) = id3v2_length(&header) else { break };
        if start + length > file.len() {
            break;
        }
        start += length;
    }
    let length = file.len() - start;
    file.within(start, length)
}

/// Returns the length of a tag with header and footer; `None` without a header.
fn id3v2_length(header: &[u8; 10]) -> Option<u64> {
    let [b'I', b'D', b'3', major, minor, flags, size @ ..] = header else { return None };
    if *major == 0xff || *minor == 0xff || size.iter().any(|&byte| byte > 0x7f) {
        return None;
    }
    // Seven bits a byte.
    let size = size.iter().fold(0, |size, &byte| (size << 7) | u64::from(byte));
    let footer_bytes = if flags & 0x10 != 0 { ID3V2_HEADER_BYTES } else { 0 };
    Some(ID3V2_HEADER_BYTES + size + footer_bytes)
}

/// Returns the file before its trailing tags.
pub(super) fn without_trailing_tags(mut file: FileRange) -> io::Result<FileRange> {
    let mut length = file.len();
    for _ in 0..MAX_TAGS {
        match trailing_tag_length(&mut file, length)? {
            Some(tag_length) if tag_length > 0 && tag_length <= length => length -= tag_length,
            _ => break,
        }
    }
    file.within(0, length)
}

/// Returns the length of the tag that ends at byte `end`.
fn trailing_tag_length(file: &mut FileRange, end: u64) -> io::Result<Option<u64>> {
    const ID3V1_BYTES: u64 = 128;
    const ID3V1_EXTENSION_BYTES: u64 = 227;
    if let Some(offset) = end.checked_sub(ID3V1_BYTES)
        && read_bytes_at::<3>(file, offset)?.as_ref() == Some(b"TAG")
    {
        let extension = offset.checked_sub(ID3V1_EXTENSION_BYTES);
        return Ok(match extension.map(|offset| read_bytes_at::<4>(file, offset)).transpose()?.flatten() {
            Some([b'T', b'A', b'G', b'+']) => Some(ID3V1_BYTES + ID3V1_EXTENSION_BYTES),
            _ => Some(ID3V1_BYTES),
        });
    }
    if let Some(offset) = end.checked_sub(APE_HEADER_BYTES)
        && let Some(footer) = read_bytes_at::<32>(file, offset)?
        && footer.starts_with(b"APETAGEX")
    {
        let field = |offset: usize| {
            footer[offset..offset + 4].iter().rev().fold(0, |number, &byte| (number << 8) | u64::from(byte))
        };
        let (size, flags) = (field(12), field(20));
        let has_header = flags >> 31 != 0;
        return Ok(Some(size + if has_header { APE_HEADER_BYTES } else { 0 }));
    }
    if let Some(offset) = end.checked_sub(LYRICS3_END_BYTES)
        && let Some(footer) = read_bytes_at::<15>(file, offset)?
        && footer.ends_with(b"LYRICS200")
    {
        let size = std::str::from_utf8(&footer[..6]).ok().and_then(|digits| digits.parse::<u64>().ok());
        return Ok(size.map(|size| size + LYRICS3_END_BYTES));
    }
    Ok(None)
}

/// Reads `N` bytes at `offset`; `None` if the file ends before.
fn read_bytes_at<const N: usize>(file: &mut FileRange, offset: u64) -> io::Result<Option<[u8; N]>> {
    if offset.checked_add(N as u64).is_none_or(|end| end > file.len()) {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}
