//! Shards: tar files in the layout of WebDataset.
//!
//! ```text
//! utt1.flac  utt1.json  utt2.flac  utt2.json  ...     members of a sample side by side, in any order; other endings are passed over
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::bytes;
use super::index::{self, Entry, MOST_TEXT, Member};
use crate::audio::{self, Channel, Limit, Part};
use crate::files::open_regular;
use crate::{Error, Result, Span, Utterance, manifest};

/// Bytes of a tar header, and what all members are rounded up to.
const BLOCK: u64 = 512;
/// Bytes of the headers before a sound at most: names are not longer.
const MOST_HEADERS: u64 = 1 << 16;

/// A member of a sample.
#[derive(Clone, Copy)]
struct Place {
    /// Its headers, those of long names included.
    header: u64,
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
    let file = open(path)?;
    let whole = file.metadata().map_err(broken)?.len();
    let mut archive = tar::Archive::new(open(path)?);
    let (mut found, mut sample) = (Vec::new(), Sample::default());
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut close = |sample: Sample| -> Result<()> {
        if let Some((id, entry)) = entry(path, &file, &sample)? {
            if let Some(first) = seen.insert(id.clone(), found.len() + 1) {
                let (path, line) = (path.into(), found.len() + 1);
                return Err(Error::DuplicateId { path, line, id, first });
            }
            found.push(entry);
        }
        Ok(())
    };
    let mut end = 0;
    for member in archive.entries_with_seek().map_err(broken)? {
        let member = member.map_err(broken)?;
        let name = String::from_utf8_lossy(&member.path_bytes()).into_owned();
        let place = Place { header: end, start: member.raw_file_position(), length: member.size() };
        let kind = member.header().entry_type();
        if kind.is_gnu_sparse() {
            return Err(wrong(path, &format!("{name}: all of its bytes"), "a sparse file"));
        }
        end = place.start.saturating_add(place.length).div_ceil(BLOCK).saturating_mul(BLOCK);
        let Some((key, ending)) = split(&name) else { continue };
        let ending = ending.to_ascii_lowercase();
        if !matches!(ending.as_str(), "wav" | "flac" | "json" | "txt") || kind.is_dir() {
            continue;
        }
        if !(kind.is_file() || kind.is_contiguous()) {
            return Err(wrong(path, &format!("{name}: a file of its own"), format!("{kind:?}")));
        }
        if place.start.saturating_add(place.length) > whole {
            let expected = format!("{name} of {} bytes", place.length);
            return Err(wrong(path, &expected, format!("{whole} bytes in all: truncated")));
        }
        if key != sample.key {
            close(std::mem::replace(&mut sample, Sample { key: key.to_owned(), ..Sample::default() }))?;
        }
        let to = match ending.as_str() {
            "json" => &mut sample.json,
            "txt" => &mut sample.txt,
            _ => &mut sample.sound,
        };
        if to.replace(place).is_some() {
            let what = if ending == "json" || ending == "txt" { &ending } else { "sound" };
            return Err(wrong(path, &format!("{key}: one {what}"), "two, side by side"));
        }
    }
    close(sample)?;
    found.shrink_to_fit();
    ended(path, &file, end)?;
    Ok(found)
}

/// Behind the last member there are zeros: nothing would mean that the file was cut, something else that a second one was appended,
/// which would not be read.
fn ended(path: &Path, mut file: &File, end: u64) -> Result<()> {
    let io = |source| Error::Io { path: path.into(), source };
    file.seek(SeekFrom::Start(end)).map_err(io)?;
    let (mut bytes, mut zeros) = (vec![0; 1 << 16], 0);
    loop {
        match file.read(&mut bytes).map_err(io)? {
            0 if zeros < BLOCK => return Err(wrong(path, "an end mark of zeros", "none: truncated")),
            0 => return Ok(()),
            count if bytes[..count].iter().any(|&byte| byte != 0) => {
                return Err(wrong(path, "one tar file, up to its end mark", "other bytes behind it"));
            }
            count => zeros += count as u64,
        }
    }
}

/// Id and entry of a sample; none where there is neither sound nor text.
fn entry(path: &Path, file: &File, sample: &Sample) -> Result<Option<(String, Entry)>> {
    let Sample { key, sound, json, txt } = sample;
    let (sound, about) = match (sound, json.or(*txt)) {
        (Some(sound), Some(about)) => (sound, about),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(wrong(path, &format!("{key}.json or {key}.txt"), "sound alone")),
        (None, Some(_)) => return Err(wrong(path, &format!("{key}.wav or {key}.flac"), "a text alone")),
    };
    if about.length > MOST_TEXT {
        let expected = format!("{key}: a text of at most {MOST_TEXT} bytes");
        return Err(wrong(path, &expected, about.length.to_string()));
    }
    let headers = sound.start.saturating_sub(sound.header);
    if headers > MOST_HEADERS {
        let expected = format!("{key}: headers of at most {MOST_HEADERS} bytes");
        return Err(wrong(path, &expected, headers.to_string()));
    }
    let Ok(sound_length) = u32::try_from(sound.length) else {
        let expected = format!("{key}: sound of less than 4 GiB");
        return Err(wrong(path, &expected, format!("{} bytes", sound.length)));
    };
    let said = bytes(path, file, about.start, about.length as usize)?;
    let sum = index::sum(&said);
    let Ok(said) = String::from_utf8(said) else {
        let ending = if json.is_some() { "json" } else { "txt" };
        return Err(wrong(path, &format!("{key}.{ending}: text in UTF-8"), "other bytes"));
    };
    let member =
        Member { start: sound.start, length: sound_length, headers: headers as u32, json: json.is_some() };
    let mut entry = Entry {
        seconds: 0.0,
        start: about.start,
        length: about.length as u32,
        sum,
        line: member.line(),
        sound_length,
        sound: sound.start,
    };
    if key_before(path, file, member)?.as_ref() != Some(key) {
        return Err(wrong(path, &format!("{key}: a header that says so"), "another one"));
    }
    let named = |error: Error| Error::Utterance { utterance: key.clone(), source: Box::new(error) };
    let (mut samples, rate) = audio::header(path, part(path, file, member)?).map_err(named)?;
    if samples == 0 {
        // The header does not tell: once, the sound does.
        let counted = audio::count(path, part(path, file, member)?, Channel::Mix, Limit::None);
        samples = counted.map_err(named)?.0;
    }
    let one = said_of(path, &entry, member, key, &said, (samples, rate))?;
    let found = samples as f64 / f64::from(rate);
    if differs(one.seconds, found) {
        return Err(named(Error::Duration { utterance: one.id, expected: one.seconds, found }));
    }
    entry.seconds = one.seconds;
    Ok(Some((one.id, entry)))
}

/// Reads what a shard says about a sample.
pub(super) fn utterance(path: &Path, index: usize, entry: &Entry, member: Member) -> Result<Utterance> {
    let stale = |expected: String, found: String| Error::Index { path: path.into(), index, expected, found };
    let file = open(path)?;
    let said = bytes(path, &file, entry.start, entry.length as usize)?;
    let matches = index::sum(&said) == entry.sum;
    let said = String::from_utf8_lossy(&said);
    if !matches {
        let found = said.chars().take(40).collect();
        return Err(stale(format!("a text with checksum {:08x}", entry.sum), found));
    }
    let Some(key) = key_before(path, &file, member)? else {
        return Err(stale("the header of a sound file".into(), "other bytes".into()));
    };
    let named = |error: Error| Error::Utterance { utterance: key.clone(), source: Box::new(error) };
    let (samples, rate) = audio::header(path, part(path, &file, member)?).map_err(named)?;
    let found = samples as f64 / f64::from(rate);
    if samples > 0 && differs(entry.seconds, found) {
        return Err(stale(format!("sound of {:.2} s", entry.seconds), format!("{found:.2} s")));
    }
    said_of(path, entry, member, &key, &said, (samples, rate))
}

/// Whether a length is wrong by more than batches are planned for.
fn differs(said: f64, found: f64) -> bool {
    (found - said).abs() > 0.1f64.max(0.02 * found)
}

/// The name, without its ending, in the headers before a member; none where there are no such headers.
fn key_before(path: &Path, mut file: &File, member: Member) -> Result<Option<String>> {
    let io = |source| Error::Io { path: path.into(), source };
    let mut headers = vec![0; member.headers as usize];
    let Some(first) = member.start.checked_sub(u64::from(member.headers)) else { return Ok(None) };
    file.seek(SeekFrom::Start(first)).map_err(io)?;
    match file.read_exact(&mut headers) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(io(error)),
    }
    let mut archive = tar::Archive::new(Cursor::new(headers));
    let Ok(members) = archive.entries() else { return Ok(None) };
    // Global headers come before it as members of their own.
    let own = members.flatten().find(|found| found.raw_file_position() == u64::from(member.headers));
    let name = own.map(|own| String::from_utf8_lossy(&own.path_bytes()).into_owned());
    Ok(name.as_deref().and_then(split).map(|(key, _)| key.to_owned()))
}

/// Key and ending of a member: up to the first dot of the file's name, and behind it. None without either, as of hidden files.
fn split(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let file = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = name[file..].find('.').filter(|&dot| dot > 0)? + file;
    Some((&name[..dot], &name[dot + 1..]))
}

/// An utterance from what is said about it, and from samples and rate of its sound.
fn said_of(
    path: &Path,
    entry: &Entry,
    member: Member,
    key: &str,
    said: &str,
    (samples, rate): (u64, u32),
) -> Result<Utterance> {
    let said = said.strip_prefix('\u{feff}').unwrap_or(said);
    let text = || serde_json::json!({ "text": said.trim() }).to_string();
    let about = if member.json { said.to_owned() } else { text() };
    let span = Span::Member { start: member.start, length: u64::from(member.length) };
    // A header that does not tell has been asked once.
    let seconds = if samples > 0 { samples as f64 / f64::from(rate) } else { entry.seconds };
    let named = |error: Error| Error::Utterance { utterance: key.to_owned(), source: Box::new(error) };
    manifest::of_member(path, &about, key, (seconds, rate), span).map_err(named)
}

/// The sound of a sample.
fn part(path: &Path, file: &File, member: Member) -> Result<Part> {
    let part = file.try_clone().and_then(|file| Part::new(file, member.start, u64::from(member.length)));
    part.map_err(|source| Error::Io { path: path.into(), source })
}

fn open(path: &Path) -> Result<File> {
    open_regular(path).map_err(|source| Error::Io { path: path.into(), source })
}

fn wrong(path: &Path, expected: &str, found: impl Into<String>) -> Error {
    Error::Shard { path: path.into(), expected: expected.to_owned(), found: found.into() }
}
