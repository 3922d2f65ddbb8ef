//! JSON Lines manifests: one utterance a line, in our fields or in NeMo's.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use kernels::Brief;
use serde::Deserialize;

use crate::files::read_input;
use crate::{AudioSegment, BlankLines, Error, Result, Span, Utterance, names};

/// The fields that we know; others are allowed and ignored.
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
    // Strings of recordings.
    #[serde(default, deserialize_with = "names::id_list")]
    recordings: Option<Vec<String>>,
    gaps_ms: Option<Vec<u32>>,
    lead_ms: Option<u32>,
    tail_ms: Option<u32>,
    /// Noise or an impulse response, of which less is asked.
    #[serde(skip)]
    is_sound: bool,
    // NeMo.
    audio_filepath: Option<PathBuf>,
    duration: Option<f64>,
    offset: Option<f64>,
}

impl ManifestLine {
    /// Whether it is a string of recordings.
    pub fn is_string(&self) -> bool {
        self.recordings.is_some()
    }
}

/// Where a line is, for messages.
struct LinePlace<'a> {
    path: &'a Path,
    line: usize,
}

impl LinePlace<'_> {
    fn missing(&self, field: &'static str) -> Error {
        Error::ManifestField { path: self.path.into(), line: self.line, field }
    }

    fn value(&self, field: &'static str, expected: impl Into<String>, found: impl ToString) -> Error {
        let (expected, found) = (expected.into(), found.to_string());
        Error::ManifestValue { path: self.path.into(), line: self.line, field, expected, found }
    }
}

/// Name of the file that lists the recordings of which strings are made.
const RECORDINGS: &str = "recordings.jsonl";
/// The longest utterance, in seconds (31 years) and in samples: what is longer is a slip of the pen.
const MOST_SECONDS: f64 = 1e9;
const MOST_SAMPLES: u64 = 1 << 39;
/// The longest silence of a string, an hour: it costs a line a few bytes, and memory much more.
const MOST_SILENCE_MS: u64 = 3_600_000;

/// Reads a manifest: one JSON object a line, blank lines skipped, paths relative to the manifest's folder. A byte order mark is
/// passed over.
///
/// A line is of one of three kinds:
/// * `id`, `text`, `file`; optionally `offset_samples` (with `num_samples`) for a segment of a packed file;
/// * `id`, `text`, `recordings`, `gaps_ms`, `lead_ms`, `tail_ms`: recordings of `recordings.jsonl` in the same folder, joined
///   with silence between them;
/// * NeMo's `audio_filepath`, `duration`, `text`, optionally `offset` in seconds; the id defaults to the path (and offset).
///
/// Optional in each: `seconds` (or `duration`, or `num_samples` and `sample_rate`: one of the three is needed), `num_samples`,
/// `sample_rate`, `crc32`, `speaker`, `subset`, `split`. Unknown fields are ignored. Ids may be numbers, whose text is then the id;
/// so may `speaker`, `subset` and `split`, for which any other value is taken by its JSON text.
///
/// # Errors
/// Unreadable file, a line that is no such object, a missing field, a senseless value, an unknown recording, an id used twice, no
/// utterance at all. Each names the file and line. Audio files are not opened here.
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

/// The utterances of a manifest with their lines.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Manifest {
    /// The utterances, in their order.
    pub utterances: Vec<Utterance>,
    /// The line of each, from 1.
    pub lines: Vec<usize>,
    /// Lines that are skipped.
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
        Ok(Self { utterances: read(path, lines)?, lines: numbers, blank_lines })
    }
}

/// Reads a manifest of sounds without words, of which `file` (or NeMo's `audio_filepath`) is enough. A length that is not given is 0.
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
    read(path, lines)
}

fn read(path: &Path, lines: Vec<(usize, ManifestLine)>) -> Result<Vec<Utterance>> {
    let strings = lines.iter().any(|(_, line)| line.recordings.is_some());
    let recordings = if strings { read_recordings(path)? } else { HashMap::new() };
    let mut seen = HashMap::new();
    let mut utterances = Vec::with_capacity(lines.len());
    for (number, line) in lines {
        let one = utterance(&LinePlace { path, line: number }, line, &recordings)?;
        if let Some(first) = seen.insert(one.id.clone(), number) {
            return Err(Error::DuplicateId { path: path.into(), line: number, id: one.id, first });
        }
        utterances.push(one);
    }
    if utterances.is_empty() {
        return Err(Error::EmptyManifest { path: path.into() });
    }
    Ok(utterances)
}

/// The recordings that the strings of a manifest are made of, by their ids.
pub(crate) fn read_recordings(manifest: &Path) -> Result<HashMap<String, Utterance>> {
    let path = manifest.with_file_name(RECORDINGS);
    let mut known: HashMap<String, (usize, Utterance)> = HashMap::new();
    for (number, line) in read_lines(&path)?.0 {
        let one = utterance(&LinePlace { path: &path, line: number }, line, &HashMap::new())?;
        if let Some(&(first, _)) = known.get(&one.id) {
            return Err(Error::DuplicateId { path, line: number, id: one.id, first });
        }
        known.insert(one.id.clone(), (number, one));
    }
    Ok(known.into_iter().map(|(id, (_, one))| (id, one)).collect())
}

/// The utterance of one line.
pub(crate) fn read_line(
    path: &Path,
    number: usize,
    line: &str,
    recordings: &HashMap<String, Utterance>,
) -> Result<Utterance> {
    of_line(path, number, parse(path, number, line)?, recordings)
}

/// The utterance of one line that has been parsed.
pub(crate) fn of_line(
    path: &Path,
    number: usize,
    line: ManifestLine,
    recordings: &HashMap<String, Utterance>,
) -> Result<Utterance> {
    utterance(&LinePlace { path, line: number }, line, recordings)
}

/// The utterance of a member of a shard: what is said about it has no `file`, and may lack what the sound file itself says.
pub(crate) fn of_member(
    path: &Path,
    about: &str,
    key: &str,
    (seconds, rate): (f64, u32),
    span: Span,
) -> Result<Utterance> {
    let mut line = parse(path, 1, about)?;
    line.file = Some(path.into());
    (line.recordings, line.audio_filepath, line.offset_samples) = (None, None, None);
    line.id.get_or_insert_with(|| key.to_owned());
    line.sample_rate.get_or_insert(rate);
    if line.seconds.or(line.duration).is_none() {
        line.seconds = Some(seconds);
    }
    let mut one = utterance(&LinePlace { path, line: 1 }, line, &HashMap::new())?;
    one.segments = vec![AudioSegment::Sound { path: path.into(), span }];
    Ok(one)
}

/// The seconds that the JSON of a shard's sample gives, if it does.
pub(crate) fn declared_seconds(path: &Path, about: &str) -> Result<Option<f64>> {
    let line = parse(path, 1, about)?;
    let counted = || Some(line.num_samples? as f64 / f64::from(line.sample_rate?));
    Ok(line
        .seconds
        .or(line.duration)
        .or_else(counted)
        .filter(|seconds| (0.0..=MOST_SECONDS).contains(seconds)))
}

pub(crate) fn parse(path: &Path, number: usize, line: &str) -> Result<ManifestLine> {
    let wrong = |source| Error::ManifestSyntax { path: path.into(), line: number, source };
    serde_json::from_str(line).map_err(wrong)
}

fn read_lines(path: &Path) -> Result<(Vec<(usize, ManifestLine)>, BlankLines)> {
    let name = path.extension().unwrap_or_default().to_string_lossy();
    let wrong = |found: String| Error::Format {
        path: path.into(),
        expected: "a manifest, a JSON object a line",
        found,
    };
    if ["tar", "gz", "tgz"].contains(&&*name) {
        return Err(wrong("an archive; recipes take shards of sound, other commands their manifests".into()));
    }
    let bytes = read_input(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("what is no text in UTF-8".into()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let (mut lines, mut blank) = (Vec::new(), BlankLines::default());
    for (number, line) in (1..).zip(text.lines()) {
        match line.trim().is_empty() {
            true => blank.add(number),
            false => lines.push((number, parse(path, number, line)?)),
        }
    }
    Ok((lines, blank))
}

fn utterance(
    place: &LinePlace,
    line: ManifestLine,
    recordings: &HashMap<String, Utterance>,
) -> Result<Utterance> {
    let nemo_id = line.audio_filepath.as_ref().map(|file| match line.offset {
        Some(offset) => format!("{}@{offset}", file.display()),
        None => file.display().to_string(),
    });
    if line.sample_rate == Some(0) {
        return Err(place.value("sample_rate", "a rate above 0", 0));
    }
    let counts =
        [("offset_samples", line.offset_samples), ("num_samples", line.num_samples.map(|n| n as u64))];
    for (field, count) in counts {
        if let Some(count) = count.filter(|&n| n > MOST_SAMPLES) {
            return Err(place.value(field, format!("at most {MOST_SAMPLES} samples"), Brief(count)));
        }
    }
    Ok(Utterance {
        seconds: seconds(place, &line)?,
        crc32: checksum(place, line.crc32.as_deref())?,
        segments: pieces(place, &line, recordings)?,
        id: line.id.or(nemo_id).ok_or_else(|| place.missing("id"))?,
        text: line.text.ok_or_else(|| place.missing("text"))?,
        speaker: line.speaker,
        subset: line.subset,
        split: line.split,
        sample_rate: line.sample_rate,
        num_samples: line.num_samples,
    })
}

fn seconds(place: &LinePlace, line: &ManifestLine) -> Result<f64> {
    let counted = || Some(line.num_samples? as f64 / f64::from(line.sample_rate?));
    let (field, seconds) = match (line.seconds, line.duration) {
        (Some(s), _) => ("seconds", s),
        (None, Some(d)) => ("duration", d),
        (None, None) if line.is_sound => return Ok(0.0),
        (None, None) => ("num_samples", counted().ok_or_else(|| place.missing("seconds"))?),
    };
    if seconds > 0.0 && seconds <= MOST_SECONDS {
        Ok(seconds)
    } else {
        Err(place.value(field, "a length above 0 and of at most 1e9 seconds", Brief(seconds)))
    }
}

fn checksum(place: &LinePlace, crc32: Option<&str>) -> Result<Option<u32>> {
    let parse = |text: &str| {
        let digits = text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let value = digits.then(|| u32::from_str_radix(text, 16).ok()).flatten();
        value.ok_or_else(|| place.value("crc32", "8 hexadecimal digits", format!("{text:?}")))
    };
    crc32.map(parse).transpose()
}

fn pieces(
    place: &LinePlace,
    line: &ManifestLine,
    recordings: &HashMap<String, Utterance>,
) -> Result<Vec<AudioSegment>> {
    let folder = place.path.parent().unwrap_or(Path::new(""));
    if let Some(ids) = &line.recordings {
        return joined(place, line, ids, recordings);
    }
    let (file, span) = match (&line.file, &line.audio_filepath) {
        (Some(file), _) => {
            let count = || line.num_samples.ok_or_else(|| place.missing("num_samples"));
            let samples = |start| Ok(Span::Samples { start, count: count()? as u64 });
            (file, line.offset_samples.map(samples).transpose()?)
        }
        (None, Some(file)) => {
            let length = line.duration.ok_or_else(|| place.missing("duration"))?;
            let seconds = |start: f64| {
                if !(0.0..=MOST_SECONDS).contains(&start) {
                    return Err(place.value("offset", "0 to 1e9 seconds", Brief(start)));
                }
                if !(length > 0.0 && length <= MOST_SECONDS) {
                    let expected = "a length above 0 and of at most 1e9 seconds";
                    return Err(place.value("duration", expected, Brief(length)));
                }
                Ok(Span::Seconds { start, length })
            };
            (file, line.offset.map(seconds).transpose()?)
        }
        (None, None) => return Err(place.missing("file")),
    };
    Ok(vec![AudioSegment::Sound { path: folder.join(file), span: span.unwrap_or(Span::Whole) }])
}

/// `lead ++ rec[0] ++ gaps[0] ++ rec[1] ++ ... ++ rec[n-1] ++ tail`
fn joined(
    place: &LinePlace,
    line: &ManifestLine,
    ids: &[String],
    recordings: &HashMap<String, Utterance>,
) -> Result<Vec<AudioSegment>> {
    let gaps = line.gaps_ms.as_ref().ok_or_else(|| place.missing("gaps_ms"))?;
    let lead = line.lead_ms.ok_or_else(|| place.missing("lead_ms"))?;
    let tail = line.tail_ms.ok_or_else(|| place.missing("tail_ms"))?;
    if ids.is_empty() {
        return Err(place.value("recordings", "at least one recording", "none"));
    }
    if gaps.len() + 1 != ids.len() {
        return Err(place.value("gaps_ms", format!("{} gaps", ids.len() - 1), gaps.len()));
    }
    let silence: u64 = gaps.iter().chain([&lead, &tail]).map(|&ms| u64::from(ms)).sum();
    if silence > MOST_SILENCE_MS {
        let expected = format!("at most {MOST_SILENCE_MS} ms of silence, lead and tail included");
        return Err(place.value("gaps_ms", expected, format!("{} ms", Brief(silence))));
    }
    let mut pieces = vec![AudioSegment::Silence { ms: lead }];
    for (id, &gap) in ids.iter().zip(gaps.iter().chain([&tail])) {
        let recording = recordings.get(id).ok_or_else(|| Error::UnknownRecording {
            path: place.path.into(),
            line: place.line,
            id: id.clone(),
            recordings: place.path.with_file_name(RECORDINGS),
        })?;
        pieces.extend(recording.segments.iter().cloned());
        pieces.push(AudioSegment::Silence { ms: gap });
    }
    Ok(pieces)
}
