//! Reads manifests: JSON Lines, one utterance per line, with our fields or NeMo's.
//!
//! `ManifestLine` has the fields of a line; `build_utterance` checks them and converts them to an
//! [`Utterance`]. Shards use the same fields for their metadata.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kernels::ShortFloat;
use serde::Deserialize;

use crate::files::read_input;
use crate::{AudioSegment, BlankLines, Error, Result, Span, Utterance, names};

/// The fields of a line; unknown fields are ignored.
#[derive(Deserialize)]
pub(crate) struct ManifestLine {
    #[serde(default, deserialize_with = "names::optional_id")]
    id: Option<String>,
    file: Option<PathBuf>,
    offset_samples: Option<u64>,
    num_samples: Option<usize>,
    sample_rate: Option<u32>,
    seconds: Option<f64>,
    #[serde(default, deserialize_with = "names::report_name")]
    speaker: Option<String>,
    #[serde(default, deserialize_with = "names::report_name")]
    subset: Option<String>,
    #[serde(default, deserialize_with = "names::report_name")]
    split: Option<String>,
    text: Option<String>,
    crc32: Option<String>,
    // Fields of strings: recordings that are joined with silence between them.
    #[serde(default, deserialize_with = "names::id_list")]
    recordings: Option<Vec<String>>,
    gaps_ms: Option<Vec<u32>>,
    lead_ms: Option<u32>,
    tail_ms: Option<u32>,
    /// Whether this is noise or an impulse response, which needs fewer fields.
    #[serde(skip)]
    is_sound: bool,
    // NeMo's fields.
    audio_filepath: Option<PathBuf>,
    duration: Option<f64>,
    offset: Option<f64>,
}

impl ManifestLine {
    /// Returns whether the audio is a string of recordings.
    pub(crate) fn is_recording_string(&self) -> bool {
        self.recordings.is_some()
    }
}

/// The position of a line, for messages.
struct LinePosition<'a> {
    path: &'a Path,
    line: usize,
}

impl LinePosition<'_> {
    fn missing_field(&self, field: &'static str) -> Error {
        Error::ManifestField { path: self.path.into(), line: self.line, field }
    }

    fn invalid_value(&self, field: &'static str, expected: impl Into<String>, found: impl ToString) -> Error {
        let (expected, found) = (expected.into(), found.to_string());
        Error::ManifestValue { path: self.path.into(), line: self.line, field, expected, found }
    }
}

/// Name of the file that lists the recordings of strings.
const RECORDINGS_FILE: &str = "recordings.jsonl";
/// Longest utterance in seconds (31 years); a longer one is a mistake.
const MAX_SECONDS: f64 = 1e9;
/// Longest utterance in samples.
const MAX_SAMPLES: u64 = 1 << 39;
/// Longest silence in a string, an hour: a few bytes in a line, but much memory.
const MAX_SILENCE_MS: u64 = 3_600_000;

/// Reads a manifest: one JSON object per line.
///
/// Blank lines and a byte order mark are skipped; paths are relative to the folder of the manifest.
/// There are three kinds of lines:
/// * `id`, `text`, `file`; optionally `offset_samples` (with `num_samples`) for a segment of a
///   packed file;
/// * `id`, `text`, `recordings`, `gaps_ms`, `lead_ms`, `tail_ms`: recordings of `recordings.jsonl`
///   in the same folder, joined with silence between them;
/// * NeMo's `audio_filepath`, `duration`, `text`, optionally `offset` in seconds; the id defaults
///   to the path (and offset).
///
/// Optional fields of each kind: `seconds` (or `duration`, or `num_samples` and `sample_rate`: one
/// of the three is required), `num_samples`, `sample_rate`, `crc32`, `speaker`, `subset`, `split`.
/// Unknown fields are ignored. Ids may be numbers, whose text is then the id; so may `speaker`,
/// `subset` and `split`, for which any other value is replaced by its JSON text.
///
/// # Errors
/// An unreadable file, an invalid line, a missing field, an invalid value, an unknown recording, a
/// duplicate id, or no utterance. Each error names the file and line. Audio files are not opened.
///
/// Cost: O(bytes).
///
/// ```no_run
/// for utterance in speech::read_manifest("data/digits/test.jsonl".as_ref())? {
///     println!("{}: {:.1} s: {}", utterance.id, utterance.seconds, utterance.text);
/// }
/// # Ok::<(), speech::Error>(())
/// ```
pub fn read_manifest(path: &Path) -> Result<Vec<Utterance>> {
    Ok(Manifest::read(path)?.utterances)
}

/// The utterances of a manifest with their line numbers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Manifest {
    /// The utterances, in order.
    pub utterances: Vec<Utterance>,
    /// The line number of each utterance, from 1.
    pub lines: Vec<usize>,
    /// Blank lines, which are skipped.
    pub blank_lines: BlankLines,
}

impl Manifest {
    /// Reads a manifest as [`read_manifest`] does.
    ///
    /// # Errors
    /// Those of [`read_manifest`].
    pub fn read(path: &Path) -> Result<Self> {
        let (lines, blank_lines) = read_lines(path)?;
        let numbers = lines.iter().map(|(number, _)| *number).collect();
        Ok(Self { utterances: convert_lines(path, lines)?, lines: numbers, blank_lines })
    }
}

/// Reads a manifest of noise or impulse responses.
///
/// Only `file` (or NeMo's `audio_filepath`) is required. A missing length is 0.
pub(crate) fn read_sounds(path: &Path) -> Result<Vec<Utterance>> {
    let (mut lines, _) = read_lines(path)?;
    for (number, line) in &mut lines {
        line.is_sound = true;
        if line.offset.is_none() {
            line.file = line.file.take().or(line.audio_filepath.take());
        }
        line.text.get_or_insert_default();
        line.id.get_or_insert_with(|| format!("{}:{number}", path.display()));
    }
    convert_lines(path, lines)
}

/// Converts the lines of a manifest, which have unique ids.
fn convert_lines(path: &Path, lines: Vec<(usize, ManifestLine)>) -> Result<Vec<Utterance>> {
    let has_strings = lines.iter().any(|(_, line)| line.recordings.is_some());
    let recordings = if has_strings { read_recordings(path)? } else { HashMap::new() };
    let mut line_numbers_by_id = HashMap::new();
    let mut utterances = Vec::with_capacity(lines.len());
    for (number, line) in lines {
        let utterance = build_utterance(&LinePosition { path, line: number }, line, &recordings)?;
        if let Some(first) = line_numbers_by_id.insert(utterance.id.clone(), number) {
            return Err(Error::DuplicateId { path: path.into(), line: number, id: utterance.id, first });
        }
        utterances.push(utterance);
    }
    if utterances.is_empty() {
        return Err(Error::EmptyManifest { path: path.into() });
    }
    Ok(utterances)
}

/// Reads the recordings of a manifest's strings, by id.
pub(crate) fn read_recordings(manifest: &Path) -> Result<HashMap<String, Utterance>> {
    let path = manifest.with_file_name(RECORDINGS_FILE);
    let mut recordings: HashMap<String, (usize, Utterance)> = HashMap::new();
    for (number, line) in read_lines(&path)?.0 {
        let recording = build_utterance(&LinePosition { path: &path, line: number }, line, &HashMap::new())?;
        if let Some(&(first, _)) = recordings.get(&recording.id) {
            return Err(Error::DuplicateId { path, line: number, id: recording.id, first });
        }
        recordings.insert(recording.id.clone(), (number, recording));
    }
    Ok(recordings.into_iter().map(|(id, (_, recording))| (id, recording)).collect())
}

/// Parses the utterance of a line.
pub(crate) fn parse_utterance(
    path: &Path,
    number: usize,
    line: &str,
    recordings: &HashMap<String, Utterance>,
) -> Result<Utterance> {
    utterance_from_line(path, number, parse_line(path, number, line)?, recordings)
}

/// Converts a parsed line to its utterance.
pub(crate) fn utterance_from_line(
    path: &Path,
    number: usize,
    line: ManifestLine,
    recordings: &HashMap<String, Utterance>,
) -> Result<Utterance> {
    build_utterance(&LinePosition { path, line: number }, line, recordings)
}

/// Parses the utterance of a shard member.
///
/// `seconds` and `rate` are those of its audio.
/// The metadata has no `file`, and may lack what the audio file contains.
pub(crate) fn utterance_from_member(
    path: &Path,
    metadata: &str,
    key: &str,
    seconds: f64,
    rate: u32,
    span: Span,
) -> Result<Utterance> {
    let mut line = parse_line(path, 1, metadata)?;
    line.file = Some(path.into());
    (line.recordings, line.audio_filepath, line.offset_samples) = (None, None, None);
    line.id.get_or_insert_with(|| key.to_owned());
    line.sample_rate.get_or_insert(rate);
    if line.seconds.or(line.duration).is_none() {
        line.seconds = Some(seconds);
    }
    let mut utterance = build_utterance(&LinePosition { path, line: 1 }, line, &HashMap::new())?;
    utterance.segments = vec![AudioSegment::Sound { path: path.into(), span }];
    Ok(utterance)
}

/// Returns the seconds that the JSON of a sample declares, if any.
pub(crate) fn declared_seconds(path: &Path, metadata: &str) -> Result<Option<f64>> {
    let line = parse_line(path, 1, metadata)?;
    let from_samples = || Some(line.num_samples? as f64 / f64::from(line.sample_rate?));
    Ok(line
        .seconds
        .or(line.duration)
        .or_else(from_samples)
        .filter(|seconds| (0.0..=MAX_SECONDS).contains(seconds)))
}

/// Parses the fields of a line.
pub(crate) fn parse_line(path: &Path, number: usize, line: &str) -> Result<ManifestLine> {
    let invalid = |source| Error::ManifestSyntax { path: path.into(), line: number, source };
    serde_json::from_str(line).map_err(invalid)
}

/// Reads the lines of a manifest with their numbers.
fn read_lines(path: &Path) -> Result<(Vec<(usize, ManifestLine)>, BlankLines)> {
    let name = path.extension().unwrap_or_default().to_string_lossy();
    let invalid = |found: String| Error::Format {
        path: path.into(),
        expected: "a manifest, one JSON object per line",
        found,
    };
    if ["tar", "gz", "tgz"].contains(&&*name) {
        return Err(invalid(
            "an archive; only recipes accept shards, other commands accept their manifests".into(),
        ));
    }
    let bytes = read_input(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let text = String::from_utf8(bytes).map_err(|_| invalid("bytes that are not UTF-8".into()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let (mut lines, mut blank_lines) = (Vec::new(), BlankLines::default());
    for (number, line) in (1..).zip(text.lines()) {
        match line.trim().is_empty() {
            true => blank_lines.add(number),
            false => lines.push((number, parse_line(path, number, line)?)),
        }
    }
    Ok((lines, blank_lines))
}

/// Checks the fields of a line and converts them to an utterance.
fn build_utterance(
    position: &LinePosition,
    line: ManifestLine,
    recordings: &HashMap<String, Utterance>,
) -> Result<Utterance> {
    let nemo_id = line.audio_filepath.as_ref().map(|file| match line.offset {
        Some(offset) => format!("{}@{offset}", file.display()),
        None => file.display().to_string(),
    });
    if line.sample_rate == Some(0) {
        return Err(position.invalid_value("sample_rate", "a rate above 0", 0));
    }
    let counts =
        [("offset_samples", line.offset_samples), ("num_samples", line.num_samples.map(|n| n as u64))];
    for (field, count) in counts {
        if let Some(count) = count.filter(|&n| n > MAX_SAMPLES) {
            return Err(position.invalid_value(
                field,
                format!("at most {MAX_SAMPLES} samples"),
                ShortFloat(count),
            ));
        }
    }
    Ok(Utterance {
        seconds: utterance_seconds(position, &line)?,
        crc32: parse_crc32(position, line.crc32.as_deref())?,
        segments: audio_segments(position, &line, recordings)?,
        id: line.id.or(nemo_id).ok_or_else(|| position.missing_field("id"))?,
        text: line.text.ok_or_else(|| position.missing_field("text"))?,
        speaker: line.speaker,
        subset: line.subset,
        split: line.split,
        sample_rate: line.sample_rate,
        num_samples: line.num_samples,
    })
}

/// Returns the length of an utterance.
fn utterance_seconds(position: &LinePosition, line: &ManifestLine) -> Result<f64> {
    let from_samples = || Some(line.num_samples? as f64 / f64::from(line.sample_rate?));
    let (field, seconds) = match (line.seconds, line.duration) {
        (Some(seconds), _) => ("seconds", seconds),
        (None, Some(duration)) => ("duration", duration),
        (None, None) if line.is_sound => return Ok(0.0),
        (None, None) => ("num_samples", from_samples().ok_or_else(|| position.missing_field("seconds"))?),
    };
    if seconds > 0.0 && seconds <= MAX_SECONDS {
        Ok(seconds)
    } else {
        Err(position.invalid_value(field, "a length above 0 and at most 1e9 seconds", ShortFloat(seconds)))
    }
}

fn parse_crc32(position: &LinePosition, crc32: Option<&str>) -> Result<Option<u32>> {
    let parse = |text: &str| {
        let has_digits = text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let value = has_digits.then(|| u32::from_str_radix(text, 16).ok()).flatten();
        value.ok_or_else(|| position.invalid_value("crc32", "8 hexadecimal digits", format!("{text:?}")))
    };
    crc32.map(parse).transpose()
}

/// Returns the audio segments of an utterance.
fn audio_segments(
    position: &LinePosition,
    line: &ManifestLine,
    recordings: &HashMap<String, Utterance>,
) -> Result<Vec<AudioSegment>> {
    let folder = position.path.parent().unwrap_or(Path::new(""));
    if let Some(ids) = &line.recordings {
        return join_recordings(position, line, ids, recordings);
    }
    let (file, span) = match (&line.file, &line.audio_filepath) {
        (Some(file), _) => {
            let count = || line.num_samples.ok_or_else(|| position.missing_field("num_samples"));
            let sample_span = |start| Ok(Span::Samples { start, count: count()? as u64 });
            (file, line.offset_samples.map(sample_span).transpose()?)
        }
        (None, Some(file)) => {
            let length = line.duration.ok_or_else(|| position.missing_field("duration"))?;
            let second_span = |start: f64| {
                if !(0.0..=MAX_SECONDS).contains(&start) {
                    return Err(position.invalid_value("offset", "0 to 1e9 seconds", ShortFloat(start)));
                }
                if !(length > 0.0 && length <= MAX_SECONDS) {
                    let expected = "a length above 0 and at most 1e9 seconds";
                    return Err(position.invalid_value("duration", expected, ShortFloat(length)));
                }
                Ok(Span::Seconds { start, length })
            };
            (file, line.offset.map(second_span).transpose()?)
        }
        (None, None) => return Err(position.missing_field("file")),
    };
    Ok(vec![AudioSegment::Sound { path: folder.join(file), span: span.unwrap_or(Span::Whole) }])
}

/// Joins recordings: `lead ++ rec[0] ++ gaps[0] ++ rec[1] ++ ... ++ rec[n-1] ++ tail`
fn join_recordings(
    position: &LinePosition,
    line: &ManifestLine,
    ids: &[String],
    recordings: &HashMap<String, Utterance>,
) -> Result<Vec<AudioSegment>> {
    let gaps = line.gaps_ms.as_ref().ok_or_else(|| position.missing_field("gaps_ms"))?;
    let lead = line.lead_ms.ok_or_else(|| position.missing_field("lead_ms"))?;
    let tail = line.tail_ms.ok_or_else(|| position.missing_field("tail_ms"))?;
    if ids.is_empty() {
        return Err(position.invalid_value("recordings", "at least one recording", "none"));
    }
    if gaps.len() + 1 != ids.len() {
        return Err(position.invalid_value("gaps_ms", format!("{} gaps", ids.len() - 1), gaps.len()));
    }
    let silence: u64 = gaps.iter().chain([&lead, &tail]).map(|&ms| u64::from(ms)).sum();
    if silence > MAX_SILENCE_MS {
        let expected = format!("at most {MAX_SILENCE_MS} ms of silence, lead and tail included");
        return Err(position.invalid_value("gaps_ms", expected, format!("{} ms", ShortFloat(silence))));
    }
    let mut segments = vec![AudioSegment::Silence { ms: lead }];
    for (id, &gap) in ids.iter().zip(gaps.iter().chain([&tail])) {
        let recording = recordings.get(id).ok_or_else(|| Error::UnknownRecording {
            path: position.path.into(),
            line: position.line,
            id: id.clone(),
            recordings: position.path.with_file_name(RECORDINGS_FILE),
        })?;
        segments.extend(recording.segments.iter().cloned());
        segments.push(AudioSegment::Silence { ms: gap });
    }
    Ok(segments)
}
