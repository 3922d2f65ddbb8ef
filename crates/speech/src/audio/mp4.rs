//! Parses the edit list of MP4 audio files.
//!
//! symphonia does not apply it. It declares the encoder delay: the samples that
//! [`packets`](super::packets) drops at the start.
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

/// A time of a track: `units / timescale` seconds.
#[derive(Clone, Copy)]
pub(super) struct MediaTime {
    pub units: u64,
    /// Units per second, above 0.
    pub timescale: u64,
}

/// Returns the media time at which the first audio track starts.
///
/// `None` without an edit list.
pub(super) fn read_audio_start(file: &mut FileRange) -> io::Result<Option<MediaTime>> {
    let root = Atom { name: *b"file", start: 0, end: file.len() };
    let Some(moov) = find_child(file, root, b"moov")? else { return Ok(None) };
    for track in read_children(file, moov)?.into_iter().filter(|atom| atom.name == *b"trak") {
        let Some(media) = find_child(file, track, b"mdia")? else { continue };
        let handler = find_child(file, media, b"hdlr")?;
        let Some(handler) = handler.map(|atom| read_start::<12>(file, atom)).transpose()?.flatten() else {
            continue;
        };
        if &handler[8..] != b"soun" {
            continue;
        }
        let Some(header) = find_child(file, media, b"mdhd")? else { return Ok(None) };
        // Version 1 has times of 64 bits before the timescale.
        let timescale = match read_start::<24>(file, header)? {
            Some(header) if header[0] == 1 => parse_number(&header[20..24]),
            Some(header) => parse_number(&header[12..16]),
            None => return Ok(None),
        };
        let Some(edits) = find_child(file, track, b"edts")? else { return Ok(None) };
        let Some(list) = find_child(file, edits, b"elst")? else { return Ok(None) };
        let start = read_first_media_time(file, list)?.zip(Some(timescale).filter(|&scale| scale > 0));
        return Ok(start.map(|(units, timescale)| MediaTime { units, timescale }));
    }
    Ok(None)
}

/// Returns the media time of the first edit that is not empty.
fn read_first_media_time(file: &mut FileRange, list: Atom) -> io::Result<Option<u64>> {
    let Some(header) = read_start::<8>(file, list)? else { return Ok(None) };
    // Version 1 has times of 64 bits.
    let is_long = header[0] == 1;
    let entry_bytes = if is_long { 20 } else { 12 };
    for index in 0..parse_number(&header[4..8]).min(MAX_ATOMS as u64) {
        let edit = Atom { start: list.start + 8 + index * entry_bytes, ..list };
        let time = match is_long {
            true => read_start::<16>(file, edit)?.map(|edit| parse_number(&edit[8..16]) as i64),
            false => read_start::<8>(file, edit)?.map(|edit| i64::from(parse_number(&edit[4..8]) as i32)),
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

/// Returns the first child of that name.
fn find_child(file: &mut FileRange, parent: Atom, name: &[u8; 4]) -> io::Result<Option<Atom>> {
    Ok(read_children(file, parent)?.into_iter().find(|atom| atom.name == *name))
}

/// Returns the atoms within an atom.
fn read_children(file: &mut FileRange, parent: Atom) -> io::Result<Vec<Atom>> {
    // An atom begins with a length of 4 bytes (1: 8 bytes follow; 0: up to the end) and a name.
    let (mut atoms, mut offset) = (Vec::new(), parent.start);
    while offset < parent.end && atoms.len() < MAX_ATOMS {
        let Some(header) = read_start::<8>(file, Atom { start: offset, ..parent })? else { break };
        let (header_bytes, length) = match parse_number(&header[..4]) {
            0 => (8, parent.end - offset),
            1 => match read_start::<16>(file, Atom { start: offset, ..parent })? {
                Some(header) => (16, parse_number(&header[8..])),
                None => break,
            },
            length => (8, length),
        };
        let Some(end) = offset.checked_add(length).filter(|&end| length >= header_bytes && end <= parent.end)
        else {
            break;
        };
        atoms.push(Atom {
            name: [header[4], header[5], header[6], header[7]],
            start: offset + header_bytes,
            end,
        });
        offset = end;
    }
    Ok(atoms)
}

/// Reads the first bytes of an atom; `None` if it is shorter.
fn read_start<const N: usize>(file: &mut FileRange, atom: Atom) -> io::Result<Option<[u8; N]>> {
    if atom.start.checked_add(N as u64).is_none_or(|end| end > atom.end) {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(atom.start))?;
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

/// Parses a big-endian number.
fn parse_number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| (value << 8) | u64::from(byte))
}
