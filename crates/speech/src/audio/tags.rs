//! Metadata tags before and after the audio: ID3 version 1 and 2, APE version 2, Lyrics3.
//!
//! ```text
//! before: "ID3" version (2) flags size (4 x 7 bits) ... [footer of 10 bytes]
//! after:  ["TAG+" 227] "TAG" 128 in all;
//!         ... "APETAGEX" version (4) size (4) count (4) flags (4) 0 (8);
//!         "LYRICSBEGIN" ... size (6 digits) "LYRICS200"
//! ```

use std::io::{self, Read, Seek, SeekFrom};

use super::file_range::FileRange;

/// Largest number of tags of each kind that are skipped.
const MAX_TAGS: usize = 16;

/// Returns the file after its ID3v2 tags.
pub(super) fn without_leading_tags(mut range: FileRange) -> io::Result<FileRange> {
    let mut start = 0;
    for _ in 0..MAX_TAGS {
        let Some(header) = bytes::<10>(&mut range, start)? else { break };
        let Some(length) = id3v2_length(&header) else { break };
        if start + length > range.len() {
            break;
        }
        start += length;
    }
    let length = range.len() - start;
    range.within(start, length)
}

/// Returns the length of a tag with header and footer; `None` without a header.
fn id3v2_length(header: &[u8; 10]) -> Option<u64> {
    let [b'I', b'D', b'3', major, minor, flags, size @ ..] = header else { return None };
    if *major == 0xff || *minor == 0xff || size.iter().any(|&byte| byte > 0x7f) {
        return None;
    }
    let size = size.iter().fold(0, |size, &byte| (size << 7) | u64::from(byte));
    let footer = if flags & 0x10 != 0 { 10 } else { 0 };
    Some(10 + size + footer)
}

/// Returns the file before its trailing tags.
pub(super) fn without_trailing_tags(mut range: FileRange) -> io::Result<FileRange> {
    let mut length = range.len();
    for _ in 0..MAX_TAGS {
        match trailing_tag_length(&mut range, length)? {
            Some(tag) if tag > 0 && tag <= length => length -= tag,
            _ => break,
        }
    }
    range.within(0, length)
}

/// Returns the length of the tag that ends at byte `end`.
fn trailing_tag_length(range: &mut FileRange, end: u64) -> io::Result<Option<u64>> {
    const ID3V1: u64 = 128;
    const ID3V1_EXTENDED: u64 = 227;
    if let Some(offset) = end.checked_sub(ID3V1)
        && bytes::<3>(range, offset)?.as_ref() == Some(b"TAG")
    {
        let extended = offset.checked_sub(ID3V1_EXTENDED);
        return Ok(match extended.map(|offset| bytes::<4>(range, offset)).transpose()?.flatten() {
            Some([b'T', b'A', b'G', b'+']) => Some(ID3V1 + ID3V1_EXTENDED),
            _ => Some(ID3V1),
        });
    }
    if let Some(offset) = end.checked_sub(32)
        && let Some(footer) = bytes::<32>(range, offset)?
        && footer.starts_with(b"APETAGEX")
    {
        let number = |offset: usize| {
            footer[offset..offset + 4].iter().rev().fold(0, |n, &byte| (n << 8) | u64::from(byte))
        };
        let has_header = number(20) >> 31 != 0;
        return Ok(Some(number(12) + if has_header { 32 } else { 0 }));
    }
    if let Some(offset) = end.checked_sub(15)
        && let Some(footer) = bytes::<15>(range, offset)?
        && footer.ends_with(b"LYRICS200")
    {
        let size = std::str::from_utf8(&footer[..6]).ok().and_then(|digits| digits.parse::<u64>().ok());
        return Ok(size.map(|size| size + 15));
    }
    Ok(None)
}

/// Reads `N` bytes at `offset`; `None` if the file ends before.
fn bytes<const N: usize>(range: &mut FileRange, offset: u64) -> io::Result<Option<[u8; N]>> {
    if offset.checked_add(N as u64).is_none_or(|end| end > range.len()) {
        return Ok(None);
    }
    range.seek(SeekFrom::Start(offset))?;
    let mut bytes = [0; N];
    range.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}
