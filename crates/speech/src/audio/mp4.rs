//! The edit list of an MP4 file, which symphonia does not apply: how many samples at its beginning are the encoder's delay.
//!
//! ```text
//! moov > trak > mdia > hdlr "soun", mdhd (timescale)        moov > trak > edts > elst: duration, media time, rate
//! ```

use std::io::{self, Read, Seek, SeekFrom};

use super::file_range::FileRange;

/// Atoms of one level that are looked at.
const MAX_ATOMS: usize = 1 << 10;

/// Where an atom's content lies.
#[derive(Clone, Copy)]
struct Atom {
    name: [u8; 4],
    start: u64,
    end: u64,
}

/// The media time at which the first sound track starts, and its timescale; none without an edit list.
pub(super) fn start(part: &mut FileRange) -> io::Result<Option<(u64, u64)>> {
    let whole = Atom { name: *b"file", start: 0, end: part.len() };
    let Some(moov) = child(part, whole, b"moov")? else { return Ok(None) };
    for track in children(part, moov)?.into_iter().filter(|atom| atom.name == *b"trak") {
        let Some(media) = child(part, track, b"mdia")? else { continue };
        let handler = child(part, media, b"hdlr")?;
        let Some(handler) = handler.map(|atom| content::<12>(part, atom)).transpose()?.flatten() else {
            continue;
        };
        if &handler[8..] != b"soun" {
            continue;
        }
        let Some(header) = child(part, media, b"mdhd")? else { return Ok(None) };
        let timescale = match content::<24>(part, header)? {
            Some(header) if header[0] == 1 => number(&header[20..24]),
            Some(header) => number(&header[12..16]),
            None => return Ok(None),
        };
        let Some(edits) = child(part, track, b"edts")? else { return Ok(None) };
        let Some(list) = child(part, edits, b"elst")? else { return Ok(None) };
        return Ok(media_time(part, list)?.zip(Some(timescale).filter(|&scale| scale > 0)));
    }
    Ok(None)
}

/// The media time of the first edit that is not empty.
fn media_time(part: &mut FileRange, list: Atom) -> io::Result<Option<u64>> {
    let Some(header) = content::<8>(part, list)? else { return Ok(None) };
    let is_long = header[0] == 1;
    let each = if is_long { 20 } else { 12 };
    for n in 0..number(&header[4..8]).min(MAX_ATOMS as u64) {
        let edit = Atom { start: list.start + 8 + n * each, ..list };
        let time = match is_long {
            true => content::<16>(part, edit)?.map(|edit| number(&edit[8..16]) as i64),
            false => content::<8>(part, edit)?.map(|edit| i64::from(number(&edit[4..8]) as i32)),
        };
        match time {
            None => break,
            // Silence before the sound, which is not added.
            Some(-1) => {}
            Some(time) => return Ok(u64::try_from(time).ok()),
        }
    }
    Ok(None)
}

fn child(part: &mut FileRange, parent: Atom, name: &[u8; 4]) -> io::Result<Option<Atom>> {
    Ok(children(part, parent)?.into_iter().find(|atom| atom.name == *name))
}

fn children(part: &mut FileRange, parent: Atom) -> io::Result<Vec<Atom>> {
    let (mut atoms, mut at) = (Vec::new(), parent.start);
    while at < parent.end && atoms.len() < MAX_ATOMS {
        let Some(header) = content::<8>(part, Atom { start: at, ..parent })? else { break };
        let (head, length) = match number(&header[..4]) {
            0 => (8, parent.end - at),
            1 => match content::<16>(part, Atom { start: at, ..parent })? {
                Some(header) => (16, number(&header[8..])),
                None => break,
            },
            length => (8, length),
        };
        let Some(end) = at.checked_add(length).filter(|&end| length >= head && end <= parent.end) else {
            break;
        };
        atoms.push(Atom { name: [header[4], header[5], header[6], header[7]], start: at + head, end });
        at = end;
    }
    Ok(atoms)
}

/// The first bytes of an atom; none if it is shorter.
fn content<const N: usize>(part: &mut FileRange, atom: Atom) -> io::Result<Option<[u8; N]>> {
    if atom.start.checked_add(N as u64).is_none_or(|end| end > atom.end) {
        return Ok(None);
    }
    part.seek(SeekFrom::Start(atom.start))?;
    let mut bytes = [0; N];
    part.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, &byte| (n << 8) | u64::from(byte))
}
