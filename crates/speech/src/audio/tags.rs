//! Tags in front of and behind the sound: ID3 version 1 and 2, APE version 2, Lyrics3.
//!
//! ```text
//! in front: "ID3" version (2) flags size (4 x 7 bits) ... [footer of 10 bytes]
//! behind:   ["TAG+" 227] "TAG" 128 in all;  ... "APETAGEX" version (4) size (4) count (4) flags (4) 0 (8);
//!           "LYRICSBEGIN" ... size (6 digits) "LYRICS200"
//! ```

use std::io::{self, Read, Seek, SeekFrom};

use super::file_range::FileRange;

/// Tags of each kind that are passed over; more are no sound file.
const MAX_TAGS: usize = 16;

/// The part of a file behind its ID3v2 tags.
pub(super) fn without_front(mut part: FileRange) -> io::Result<FileRange> {
    let mut start = 0;
    for _ in 0..MAX_TAGS {
        let Some(header) = bytes::<10>(&mut part, start)? else { break };
        let Some(length) = id3v2_length(&header) else { break };
        if start + length > part.len() {
            break;
        }
        start += length;
    }
    let length = part.len() - start;
    part.within(start, length)
}

/// Bytes of a tag with its header and footer; none if the first bytes are no header.
fn id3v2_length(header: &[u8; 10]) -> Option<u64> {
    let [b'I', b'D', b'3', major, minor, flags, size @ ..] = header else { return None };
    if *major == 0xff || *minor == 0xff || size.iter().any(|&byte| byte > 0x7f) {
        return None;
    }
    let size = size.iter().fold(0, |size, &byte| (size << 7) | u64::from(byte));
    let footer = if flags & 0x10 != 0 { 10 } else { 0 };
    Some(10 + size + footer)
}

/// The part of a file in front of the tags at its end.
pub(super) fn without_end(mut part: FileRange) -> io::Result<FileRange> {
    let mut length = part.len();
    for _ in 0..MAX_TAGS {
        match tag_at_end(&mut part, length)? {
            Some(tag) if tag > 0 && tag <= length => length -= tag,
            _ => break,
        }
    }
    part.within(0, length)
}

/// Bytes of the tag that ends at byte `end`.
fn tag_at_end(part: &mut FileRange, end: u64) -> io::Result<Option<u64>> {
    const ID3V1: u64 = 128;
    const ID3V1_EXTENDED: u64 = 227;
    if let Some(at) = end.checked_sub(ID3V1)
        && bytes::<3>(part, at)?.as_ref() == Some(b"TAG")
    {
        let extended = at.checked_sub(ID3V1_EXTENDED);
        return Ok(match extended.map(|at| bytes::<4>(part, at)).transpose()?.flatten() {
            Some([b'T', b'A', b'G', b'+']) => Some(ID3V1 + ID3V1_EXTENDED),
            _ => Some(ID3V1),
        });
    }
    if let Some(at) = end.checked_sub(32)
        && let Some(footer) = bytes::<32>(part, at)?
        && footer.starts_with(b"APETAGEX")
    {
        let number =
            |at: usize| footer[at..at + 4].iter().rev().fold(0, |n, &byte| (n << 8) | u64::from(byte));
        let has_header = number(20) >> 31 != 0;
        return Ok(Some(number(12) + if has_header { 32 } else { 0 }));
    }
    if let Some(at) = end.checked_sub(15)
        && let Some(footer) = bytes::<15>(part, at)?
        && footer.ends_with(b"LYRICS200")
    {
        let size = std::str::from_utf8(&footer[..6]).ok().and_then(|digits| digits.parse::<u64>().ok());
        return Ok(size.map(|size| size + 15));
    }
    Ok(None)
}

/// Some bytes of a file; none if it ends before.
fn bytes<const N: usize>(part: &mut FileRange, at: u64) -> io::Result<Option<[u8; N]>> {
    if at.checked_add(N as u64).is_none_or(|end| end > part.len()) {
        return Ok(None);
    }
    part.seek(SeekFrom::Start(at))?;
    let mut bytes = [0; N];
    part.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}
