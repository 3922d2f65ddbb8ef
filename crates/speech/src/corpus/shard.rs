//! Shards: tar files in the layout of WebDataset.
//!
//! ```text
//! utt1.flac  utt1.json  utt2.flac  utt2.json  ...     members of a sample one after another, in any order
//! ```
//! The key of a member is its name up to the last dot of the file's name. WebDataset itself cuts at the first dot, so that
//! `sp0.9-a.wav` would be a member `9-a.wav` of `sp0`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use kernels::Excerpt;

use super::bytes;
use super::index::{self, IndexEntry, MOST_TEXT, Member};
use super::members::{self, BLOCK, MAX_HEADERS, Members};
use super::source_report::{BadSample, LengthMismatch, SourceReport};
use crate::audio::{self, Channel, DurationLimit, FileRange};
use crate::files::open_regular;
use crate::{Error, Result, Span, Utterance, error, manifest};

/// A member of a sample.
#[derive(Clone, Copy)]
struct MemberRange {
    /// Its headers, those of long names included.
    header: u64,
    start: u64,
    length: u64,
}

/// The members of a sample so far.
#[derive(Default)]
struct Sample {
    key: String,
    sound: Option<MemberRange>,
    json: Option<MemberRange>,
    txt: Option<MemberRange>,
    /// Name of the text without JSON.
    txt_name: String,
    /// Why the sample cannot be used.
    problem: Option<String>,
}

/// The samples of a shard so far.
struct Samples<'a> {
    path: &'a Path,
    file: File,
    entries: Vec<IndexEntry>,
    notes: SourceReport,
    /// The number of each id.
    seen: HashMap<String, usize>,
}

/// The entries of a shard, and what of it is not used.
pub(super) fn entries(path: &Path) -> Result<(Vec<IndexEntry>, SourceReport)> {
    let broken = |found: std::io::Error| match found.kind() {
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::Other => {
            wrong(path, "a whole tar file", found.to_string())
        }
        _ => Error::Io { path: path.into(), source: found },
    };
    let file = open(path)?;
    let whole = file.metadata().map_err(broken)?.len();
    let mut members = Members::new(open(path)?);
    let (entries, notes, seen) = (Vec::new(), SourceReport::default(), HashMap::new());
    let mut samples = Samples { path, file, entries, notes, seen };
    let mut sample = Sample::default();
    while let Some(member) = members.next().map_err(broken)? {
        let name = Excerpt(&member.name).to_string();
        if member.is_sparse {
            return Err(wrong(path, &format!("{name}: all of its bytes"), "a sparse file"));
        }
        if member.start.saturating_add(member.length) > whole {
            let expected = format!("{name} of {} bytes", member.length);
            return Err(wrong(path, &expected, format!("{whole} bytes in all: truncated")));
        }
        if member.kind.is_dir() || member.kind.is_pax_global_extensions() {
            continue;
        }
        let Some((key, ending)) = split(&member.name) else {
            samples.notes.add_unused(&member.name);
            continue;
        };
        let ending = ending.to_ascii_lowercase();
        if !(ending == "json" || ending == "txt" || audio::EXTENSIONS.contains(&ending.as_str())) {
            samples.notes.add_unused(&member.name);
            continue;
        }
        if key != sample.key {
            let next = Sample { key: key.to_owned(), ..Sample::default() };
            samples.close(std::mem::replace(&mut sample, next))?;
        }
        sample.add(&member, &ending);
    }
    samples.close(sample)?;
    ended(path, &samples.file, members.end())?;
    let Samples { mut entries, notes, .. } = samples;
    if entries.is_empty() && !notes.is_empty() {
        return Err(wrong(
            path,
            "samples of KEY.wav (or other sound) and KEY.json or KEY.txt",
            notes.reasons(),
        ));
    }
    entries.shrink_to_fit();
    Ok((entries, notes))
}

impl Sample {
    fn add(&mut self, member: &members::Member, ending: &str) {
        let name = Excerpt(&member.name).to_string();
        if !(member.kind.is_file() || member.kind.is_contiguous()) {
            let found = format!("{name}: expected a file of its own, found {:?}", member.kind);
            self.problem.get_or_insert(found);
            return;
        }
        let place = MemberRange { header: member.header, start: member.start, length: member.length };
        let (what, to) = match ending {
            "json" => (ending, &mut self.json),
            "txt" => (ending, &mut self.txt),
            _ => ("sound", &mut self.sound),
        };
        if to.replace(place).is_some() {
            self.problem.get_or_insert(format!("{name}: expected one {what}, found a second one"));
        }
        if ending == "txt" {
            self.txt_name = member.name.clone();
        }
    }
}

impl Samples<'_> {
    /// Adds a sample that is complete.
    ///
    /// # Errors
    /// [`Error::DuplicateId`], and errors that are not about the sample.
    fn close(&mut self, sample: Sample) -> Result<()> {
        let Sample { key, sound, json, txt, txt_name, problem } = sample;
        if json.is_some() && txt.is_some() {
            self.notes.add_unused(&txt_name);
        }
        let named = Excerpt(&key).to_string();
        let found = match (problem, sound, json.or(txt)) {
            (Some(problem), ..) => Err(problem),
            (None, None, None) => return Ok(()),
            (None, Some(_), None) => Err(format!("expected {named}.json or {named}.txt, found sound alone")),
            (None, None, Some(_)) => {
                Err(format!("expected {named}.wav, {named}.flac or other sound, found a text alone"))
            }
            (None, Some(sound), Some(about)) => {
                match entry(self.path, &self.file, &key, sound, about, json.is_some()) {
                    Ok(found) => Ok(found),
                    Err(error) if is_system_error(&error) => return Err(error),
                    Err(error) => Err(reason(error)),
                }
            }
        };
        match found {
            Err(reason) => self.notes.bad.push(BadSample { key: named, reason }),
            Ok((one, entry, found)) => {
                let number = self.entries.len() + 1;
                if let Some(first) = self.seen.insert(one.id.clone(), number) {
                    return Err(Error::DuplicateId {
                        path: self.path.into(),
                        line: number,
                        id: one.id,
                        first,
                    });
                }
                if differs(one.seconds, found) {
                    let (expected_seconds, found_seconds) = (one.seconds, found);
                    self.notes.other_length.push(LengthMismatch {
                        id: one.id,
                        expected_seconds,
                        found_seconds,
                    });
                }
                self.entries.push(entry);
            }
        }
        Ok(())
    }
}

/// Whether an error is one of the machine, and not of a sample.
fn is_system_error(found: &Error) -> bool {
    match found {
        Error::Utterance { source, .. } | Error::File { source, .. } => is_system_error(source),
        Error::Io { source, .. } => error::is_system_error(source),
        _ => false,
    }
}

/// What an error says, without the names of the sample and the shard.
fn reason(found: Error) -> String {
    match found {
        Error::Utterance { source, .. } => reason(*source),
        Error::Format { expected, found, .. } => format!("expected {expected}, found {found}"),
        Error::Shard { expected, found, .. } => format!("expected {expected}, found {found}"),
        Error::ManifestSyntax { source, .. } => {
            format!("expected a JSON object of manifest fields: {source}")
        }
        other => other.to_string(),
    }
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

/// What is said about a sample, its entry, and the seconds of its sound.
fn entry(
    path: &Path,
    file: &File,
    key: &str,
    sound: MemberRange,
    about: MemberRange,
    is_json: bool,
) -> Result<(Utterance, IndexEntry, f64)> {
    if about.length > MOST_TEXT {
        let expected = format!("a text of at most {MOST_TEXT} bytes");
        return Err(wrong(path, &expected, about.length.to_string()));
    }
    let headers = sound.start.saturating_sub(sound.header);
    if headers > MAX_HEADERS {
        let expected = format!("headers of at most {MAX_HEADERS} bytes");
        return Err(wrong(path, &expected, headers.to_string()));
    }
    let Ok(sound_length) = u32::try_from(sound.length) else {
        return Err(wrong(path, "sound of less than 4 GiB", format!("{} bytes", sound.length)));
    };
    let said = bytes(path, file, about.start, about.length as usize)?;
    let sum = index::sum(&said);
    let Ok(said) = String::from_utf8(said) else {
        let ending = if is_json { "json" } else { "txt" };
        return Err(wrong(path, &format!("{}.{ending}: text in UTF-8", Excerpt(key)), "other bytes"));
    };
    let member = Member { start: sound.start, length: sound_length, headers: headers as u32, json: is_json };
    let mut entry = IndexEntry {
        seconds: 0.0,
        start: about.start,
        length: about.length as u32,
        sum,
        line: member.line(),
        sound_length,
        sound: sound.start,
    };
    if key_before(path, file, member)?.as_deref() != Some(key) {
        return Err(wrong(path, "a header with the name of the sample", "another one"));
    }
    let about = json_of(&said, member);
    let (mut samples, rate) = audio::header(path, part(path, file, member)?)?;
    if samples == 0 {
        // The header does not tell: once, the sound does.
        let limit =
            manifest::declared_seconds(path, &about)?.map_or(DurationLimit::None, DurationLimit::near);
        samples = audio::count(path, part(path, file, member)?, Channel::Mix, limit)?.0;
    }
    entry.seconds = samples as f64 / f64::from(rate);
    let found = entry.seconds;
    Ok((utterance_of(path, member, key, &about, (found, rate))?, entry, found))
}

/// Reads what a shard says about a sample.
pub(super) fn utterance(path: &Path, index: usize, entry: &IndexEntry, member: Member) -> Result<Utterance> {
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
    // A header that does not tell has been asked once.
    let seconds = if samples > 0 { found } else { entry.seconds };
    let mut one =
        utterance_of(path, member, &key, &json_of(&said, member), (seconds, rate)).map_err(named)?;
    if differs(one.seconds, seconds) {
        one.seconds = seconds;
    }
    Ok(one)
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
    let Ok(Some(found)) = Members::new(Cursor::new(headers)).next() else { return Ok(None) };
    let is_own = found.start == u64::from(member.headers);
    Ok(split(&found.name).filter(|_| is_own).map(|(key, _)| key.to_owned()))
}

/// Key and ending of a member: up to the last dot of the file's name, and behind it. None without either, and of hidden files.
fn split(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let file = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = name[file..].rfind('.')? + file;
    let is_hidden = name[file..].starts_with('.');
    (!is_hidden && dot + 1 < name.len()).then(|| (&name[..dot], &name[dot + 1..]))
}

/// The JSON of a sample, made of its text where it has only that.
fn json_of(said: &str, member: Member) -> String {
    let said = said.strip_prefix('\u{feff}').unwrap_or(said);
    match member.json {
        true => said.to_owned(),
        false => serde_json::json!({ "text": said.trim() }).to_string(),
    }
}

/// An utterance from the JSON of its sample, and from seconds and rate of its sound.
fn utterance_of(path: &Path, member: Member, key: &str, about: &str, found: (f64, u32)) -> Result<Utterance> {
    let span = Span::Member { start: member.start, length: u64::from(member.length) };
    manifest::of_member(path, about, key, found, span)
}

/// The sound of a sample.
fn part(path: &Path, file: &File, member: Member) -> Result<FileRange> {
    let part = file.try_clone().and_then(|file| FileRange::new(file, member.start, u64::from(member.length)));
    part.map_err(|source| Error::Io { path: path.into(), source })
}

fn open(path: &Path) -> Result<File> {
    open_regular(path).map_err(|source| Error::Io { path: path.into(), source })
}

fn wrong(path: &Path, expected: &str, found: impl Into<String>) -> Error {
    Error::Shard { path: path.into(), expected: expected.to_owned(), found: found.into() }
}
