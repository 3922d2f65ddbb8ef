//! Parses the edit list of MP4 files, which symphonia does not apply.
//!
//! It declares the encoder delay: the samples to drop at the start.
//!
//! ```text
//! moov > trak > mdia > hdlr "soun", mdhd (timescale)
//! moov > trak > edts > elst: duration, media time, rate
//! ```

use std::io::{self, Read, Seek, SeekFrom};

use super::file_range::FileRange;

/// Largest number of atoms of one level that are read.
const MAX_ATOMS: usize = 1 << 10;

/// The name of an atom and the byte range of its content.
#[derive(Clone, Copy)]
struct Atom {
    name: [u8; 4],
    start: u64,
    end: u64,
}

/// Returns media time and timescale at which the first audio track starts.
///
/// `None` without an edit list.
pub(super) fn start(range: &mut FileRange) -> io::Result<Option<(u64, u64)>> {
    let file = Atom { name: *b"file", start: 0, end: range.len() };
    let Some(moov) = child(range, file, b"moov")? else { return Ok(None) };
    for track in children(range, moov)?.into_iter().filter(|atom| atom.name == *b"trak") {
        let Some(media) = child(range, track, b"mdia")? else { continue };
        let handler = child(range, media, b"hdlr")?;
        let Some(handler) = handler.map(|atom| content::<12>(range, atom)).transpose()?.flatten() else {
            continue;
        };
        if &handler[8..] != b"soun" {
            continue;
        }
        let Some(header) = child(range, media, b"mdhd")? else { return Ok(None) };
        let timescale = match content::<24>(range, header)? {
            Some(header) if header[0] == 1 => number(&header[20..24]),
            Some(header) => number(&header[12..16]),
            None => return Ok(None),
        };
        let Some(edits) = child(range, track, b"edts")? else { return Ok(None) };
        let Some(list) = child(range, edits, b"elst")? else { return Ok(None) };
        return Ok(media_time(range, list)?.zip(Some(timescale).filter(|&scale| scale > 0)));
    }
    Ok(None)
}

/// Returns the media time of the first edit that is not empty.
fn media_time(range: &mut FileRange, list: Atom) -> io::Result<Option<u64>> {
    let Some(header) = content::<8>(range, list)? else { return Ok(None) };
    let is_long = header[0] == 1;
    let entry_bytes = if is_long { 20 } else { 12 };
    for n in 0..number(&header[4..8]).min(MAX_ATOMS as u64) {
        let edit = Atom { start: list.start + 8 + n * entry_bytes, ..list };
        let time = match is_long {
            true => content::<16>(range, edit)?.map(|edit| number(&edit[8..16]) as i64),
            false => content::<8>(range, edit)?.map(|edit| i64::from(number(&edit[4..8]) as i32)),
        };
        match time {
            None => break,
            // An empty edit is silence before the audio, which is not added.
            Some(-1) => {}
            Some(time) => return Ok(u64::try_from(time).ok()),
        }
    }
    Ok(None)
}

fn child(range: &mut FileRange, parent: Atom, name: &[u8; 4]) -> io::Result<Option<Atom>> {
    Ok(children(range, parent)?.into_iter().find(|atom| atom.name == *name))
}

fn children(range: &mut FileRange, parent: Atom) -> io::Result<Vec<Atom>> {
    let (mut atoms, mut offset) = (Vec::new(), parent.start);
    while offset < parent.end && atoms.len() < MAX_ATOMS {
        let Some(header) = content::<8>(range, Atom { start: offset, ..parent })? else { break };
        let (head, length) = match number(&header[..4]) {
            0 => (8, parent.end - offset),
            1 => match content::<16>(range, Atom { start: offset, ..parent })? {
                Some(header) => (16, number(&header[8..])),
                None => break,
            },
            length => (8, length),
        };
        let Some(end) = offset.checked_add(length).filter(|&end| length >= head && end <= parent.end) else {
            break;
        };
        atoms.push(Atom { name: [header[4], header[5], header[6], header[7]], start: offset + head, end });
        offset = end;
    }
    Ok(atoms)
}

/// Reads the first bytes of an atom; `None` if it is shorter.
fn content<const N: usize>(range: &mut FileRange, atom: Atom) -> io::Result<Option<[u8; N]>> {
    if atom.start.checked_add(N as u64).is_none_or(|end| end > atom.end) {
        return Ok(None);
    }
    range.seek(SeekFrom::Start(atom.start))?;
    let mut bytes = [0; N];
    range.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, &byte| (n << 8) | u64::from(byte))
}
