//! Shards: tar files in the layout of WebDataset.
//!
//! ```text
//! utt1.flac  utt1.json  utt2.flac  utt2.json  ...     members of a sample side by side, in any order; other endings are passed over
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::index::{self, Entry, Member};
use super::text;
use crate::audio::{self, Part};
use crate::{Error, Result, Span, Utterance, manifest};

/// Bytes of a tar header.
const HEADER: u64 = 512;

/// A member of a sample.
#[derive(Clone, Copy)]
struct Place {
    start: u64,
    length: u64,
}

/// What a sample has so far.
#[derive(Default)]
struct Sample {
    key: String,
    sound: Option<Place>,
    json: Option<Place>,
    txt: Option<Place>,
}

/// The entries of a shard.
pub(super) fn entries(path: &Path) -> Result<Vec<Entry>> {
    let broken = |found: std::io::Error| match found.kind() {
        ErrorKind::NotFound | ErrorKind::PermissionDenied => Error::Io { path: path.into(), source: found },
        _ => wrong(path, "a whole tar file", found.to_string()),
    };
    let file = File::open(path).map_err(broken)?;
    let whole = file.metadata().map_err(broken)?.len();
    let mut archive = tar::Archive::new(file);
    let (mut found, mut sample) = (Vec::new(), Sample::default());
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut close = |sample: Sample| -> Result<()> {
        if let Some(entry) = entry(path, &sample, found.len())? {
            if let Some(first) = seen.insert(sample.key.clone(), found.len() + 1) {
                let (path, line) = (path.into(), found.len() + 1);
                return Err(Error::DuplicateId { path, line, id: sample.key, first });
            }
            found.push(entry);
        }
        Ok(())
    };
    for member in archive.entries_with_seek().map_err(broken)? {
        let member = member.map_err(broken)?;
        if !member.header().entry_type().is_file() {
            continue;
        }
        let name = String::from_utf8_lossy(&member.path_bytes()).into_owned();
        let place = Place { start: member.raw_file_position(), length: member.size() };
        if place.start.saturating_add(place.length) > whole {
            let expected = format!("{name} of {} bytes", place.length);
            return Err(wrong(path, &expected, format!("{whole} bytes in all: truncated")));
        }
        let Some((key, ending)) = split(&name) else { continue };
        if key != sample.key {
            close(std::mem::replace(&mut sample, Sample { key: key.to_owned(), ..Sample::default() }))?;
        }
        match ending.to_ascii_lowercase().as_str() {
            "wav" | "flac" => sample.sound = Some(place),
            "json" => sample.json = Some(place),
            "txt" => sample.txt = Some(place),
            _ => {}
        }
    }
    close(sample)?;
    found.shrink_to_fit();
    Ok(found)
}

/// The entry of a sample; none where there is neither sound nor text.
fn entry(path: &Path, sample: &Sample, index: usize) -> Result<Option<Entry>> {
    let Sample { key, sound, json, txt } = sample;
    let about = json.or(*txt);
    let (sound, about) = match (sound, about) {
        (Some(sound), Some(about)) => (sound, about),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(wrong(path, &format!("{key}.json or {key}.txt"), "sound alone")),
        (None, Some(_)) => return Err(wrong(path, &format!("{key}.wav or {key}.flac"), "a text alone")),
    };
    if key_at(path, sound.start)?.as_ref() != Some(key) {
        let expected = format!("{key}: a name that fits into a tar header, of at most 100 bytes or so");
        return Err(wrong(path, &expected, "a longer one"));
    }
    let short = |place: &Place, what: &str| {
        u32::try_from(place.length).map_err(|_| {
            wrong(path, &format!("{key}: {what} of less than 4 GiB"), format!("{} bytes", place.length))
        })
    };
    let (length, member) =
        (short(&about, "a text")?, Member { start: sound.start, length: short(sound, "sound")? });
    let said = text(path, about.start, length as usize)?;
    let mut entry = Entry {
        seconds: 0.0,
        start: about.start,
        length,
        sum: index::sum(&said),
        line: index as u32 + 1,
        sound_length: member.length,
        sound: member.start,
    };
    entry.seconds = read(path, &entry, member, key, &said)?.seconds;
    Ok(Some(entry))
}

/// Reads what a shard says about a sample.
pub(super) fn utterance(path: &Path, index: usize, entry: &Entry, member: Member) -> Result<Utterance> {
    let stale = |expected: String, found: String| Error::Index { path: path.into(), index, expected, found };
    let said = text(path, entry.start, entry.length as usize)?;
    if index::sum(&said) != entry.sum {
        let found = said.chars().take(40).collect();
        return Err(stale(format!("a text with checksum {:08x}", entry.sum), found));
    }
    let Some(key) = key_at(path, member.start)? else {
        return Err(stale("the header of a sound file".into(), "other bytes".into()));
    };
    read(path, entry, member, &key, &said)
}

/// The name, without its ending, in the header before a member; none where there is no such header.
fn key_at(path: &Path, start: u64) -> Result<Option<String>> {
    let io = |source| Error::Io { path: path.into(), source };
    let mut header = tar::Header::new_old();
    let mut file = File::open(path).map_err(io)?;
    file.seek(SeekFrom::Start(start.saturating_sub(HEADER))).map_err(io)?;
    match file.read_exact(header.as_mut_bytes()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(io(error)),
    }
    let sound = header.cksum().is_ok_and(|sum| sum == checksum(header.as_bytes()));
    let name = String::from_utf8_lossy(&header.path_bytes()).into_owned();
    Ok(split(&name).filter(|_| sound).map(|(key, _)| key.to_owned()))
}

/// The sum of a header's bytes, its own field taken as blanks.
fn checksum(header: &[u8; HEADER as usize]) -> u32 {
    let field = 148..156;
    header
        .iter()
        .enumerate()
        .map(|(at, &byte)| u32::from(if field.contains(&at) { b' ' } else { byte }))
        .sum()
}

/// Key and ending of a member: up to the first dot of the file's name, and behind it.
fn split(name: &str) -> Option<(&str, &str)> {
    let file = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = file + name[file..].find('.')?;
    Some((&name[..dot], &name[dot + 1..]))
}

/// An utterance from what is said about it, and the header of its sound.
fn read(path: &Path, entry: &Entry, member: Member, key: &str, said: &str) -> Result<Utterance> {
    let json = said.trim_start().starts_with('{');
    let about = if json { said.to_owned() } else { serde_json::json!({ "text": said.trim() }).to_string() };
    let Member { start, length } = member;
    let span = Span::Member { start, length: u64::from(length) };
    let named = |error: Error| Error::Utterance { utterance: key.to_owned(), source: Box::new(error) };
    let part = File::open(path).and_then(|file| Part::new(file, start, u64::from(length)));
    let part = part.map_err(|source| Error::Io { path: path.into(), source })?;
    let (samples, rate) = audio::header(path, part).map_err(named)?;
    if entry.seconds > 0.0 && samples > 0 {
        let found = samples as f64 / f64::from(rate);
        if (found - entry.seconds).abs() > 0.1f64.max(0.02 * found) {
            let (index, expected) = (entry.line as usize - 1, format!("sound of {:.2} s", entry.seconds));
            let found = format!("{found:.2} s");
            return Err(Error::Index { path: path.into(), index, expected, found });
        }
    }
    manifest::of_member(path, &about, key, (samples, rate), span).map_err(named)
}

fn wrong(path: &Path, expected: &str, found: impl Into<String>) -> Error {
    Error::Shard { path: path.into(), expected: expected.to_owned(), found: found.into() }
}
