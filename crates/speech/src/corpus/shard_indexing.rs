//! Indexes tar shards: finds the samples and checks each one.
//!
//! Samples that cannot be used, and members that belong to no sample, are reported. The layout is
//! described in [`shard`](super::shard), which reads the samples later.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use kernels::Excerpt;

use super::index_file::{self, AudioMember, IndexEntry, MAX_METADATA_BYTES};
use super::read_bytes;
use super::shard::{
    audio_range, lengths_differ, metadata_json, open, parse_utterance, read_key_before, shard_error,
    split_name,
};
use super::source_report::{BadSample, LengthMismatch, SourceReport};
use super::tar_members::{BLOCK_BYTES, MAX_HEADER_BYTES, TarMember, TarMembers};
use crate::audio::{self, Channel, DurationLimit};
use crate::{Error, Result, Utterance, manifest};

/// Bytes read at a time after the last member.
const READ_BYTES: usize = 1 << 16;

/// The position of a sample's member.
#[derive(Clone, Copy)]
struct MemberRange {
    /// First byte of the headers, including long names.
    header_start: u64,
    /// First byte of the content.
    start: u64,
    /// Bytes of the content.
    length: u64,
}

/// The members of the current sample.
#[derive(Default)]
struct SampleMembers {
    /// Their common name without extension.
    key: String,
    /// The audio file.
    sound: Option<MemberRange>,
    /// The metadata.
    json: Option<MemberRange>,
    /// The transcript, used if there is no JSON.
    txt: Option<MemberRange>,
    /// Name of the `txt` member.
    txt_name: String,
    /// Why the sample cannot be used.
    problem: Option<String>,
}

/// The samples of a shard so far.
struct ShardIndexer<'a> {
    path: &'a Path,
    file: File,
    entries: Vec<IndexEntry>,
    report: SourceReport,
    /// Number of the sample with each id.
    sample_numbers_by_id: HashMap<String, usize>,
}

/// Returns the entries of a shard, and its unused parts.
pub(super) fn index_shard(path: &Path) -> Result<(Vec<IndexEntry>, SourceReport)> {
    let read_error = |error: std::io::Error| match error.kind() {
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::Other => {
            shard_error(path, "a complete tar file", error.to_string())
        }
        _ => Error::Io { path: path.into(), source: error },
    };
    // Two handles: one reads the headers in order, the other the contents of the samples.
    let file = open(path)?;
    let shard_bytes = file.metadata().map_err(read_error)?.len();
    let mut members = TarMembers::new(open(path)?);
    let (entries, report, sample_numbers_by_id) = (Vec::new(), SourceReport::default(), HashMap::new());
    let mut indexer = ShardIndexer { path, file, entries, report, sample_numbers_by_id };
    let mut sample = SampleMembers::default();
    while let Some(member) = members.next_member().map_err(read_error)? {
        let name = Excerpt(&member.name).to_string();
        if member.is_sparse {
            return Err(shard_error(path, &format!("{name}: all of its bytes"), "a sparse file"));
        }
        if member.start.saturating_add(member.length) > shard_bytes {
            let expected = format!("{name} of {} bytes", member.length);
            return Err(shard_error(path, &expected, format!("{shard_bytes} bytes in all: truncated")));
        }
        if member.kind.is_dir() || member.kind.is_pax_global_extensions() {
            continue;
        }
        // Assigns the member to the sample of its key.
        let Some((key, extension)) = split_name(&member.name) else {
            indexer.report.add_unused(&member.name);
            continue;
        };
        let extension = extension.to_ascii_lowercase();
        if !(extension == "json" || extension == "txt" || audio::EXTENSIONS.contains(&extension.as_str())) {
            indexer.report.add_unused(&member.name);
            continue;
        }
        if key != sample.key {
            let next = SampleMembers { key: key.to_owned(), ..SampleMembers::default() };
            indexer.finish_sample(std::mem::replace(&mut sample, next))?;
        }
        sample.add(&member, &extension);
    }
    indexer.finish_sample(sample)?;
    check_end(path, &indexer.file, members.end())?;
    let ShardIndexer { mut entries, report, .. } = indexer;
    if entries.is_empty() && !report.is_empty() {
        return Err(shard_error(
            path,
            "samples of KEY.wav (or other audio) and KEY.json or KEY.txt",
            report.describe(),
        ));
    }
    entries.shrink_to_fit();
    Ok((entries, report))
}

impl SampleMembers {
    /// Adds a member; a second one of its kind is a problem of the sample.
    fn add(&mut self, member: &TarMember, extension: &str) {
        let name = Excerpt(&member.name).to_string();
        if !(member.kind.is_file() || member.kind.is_contiguous()) {
            let problem = format!("{name}: expected a separate file, found {:?}", member.kind);
            self.problem.get_or_insert(problem);
            return;
        }
        let range =
            MemberRange { header_start: member.header_start, start: member.start, length: member.length };
        let (kind, range_of_kind) = match extension {
            "json" => (extension, &mut self.json),
            "txt" => (extension, &mut self.txt),
            _ => ("audio file", &mut self.sound),
        };
        if range_of_kind.replace(range).is_some() {
            self.problem.get_or_insert(format!("{name}: expected one {kind}, found a second one"));
        }
        if extension == "txt" {
            self.txt_name = member.name.clone();
        }
    }
}

impl ShardIndexer<'_> {
    /// Adds a complete sample.
    ///
    /// # Errors
    /// [`Error::DuplicateId`], and errors that do not concern the sample.
    fn finish_sample(&mut self, sample: SampleMembers) -> Result<()> {
        let SampleMembers { key, sound, json, txt, txt_name, problem } = sample;
        if json.is_some() && txt.is_some() {
            self.report.add_unused(&txt_name);
        }
        let name = Excerpt(&key).to_string();
        // Indexes the sample, or determines why it cannot be used.
        let outcome = match (problem, sound, json.or(txt)) {
            (Some(problem), ..) => Err(problem),
            (None, None, None) => return Ok(()),
            (None, Some(_), None) => Err(format!("expected {name}.json or {name}.txt, found only audio")),
            (None, None, Some(_)) => {
                Err(format!("expected {name}.wav, {name}.flac or other audio, found only a text"))
            }
            (None, Some(sound), Some(metadata)) => {
                match index_sample(self.path, &self.file, &key, sound, metadata, json.is_some()) {
                    Ok(indexed) => Ok(indexed),
                    Err(error) if concerns_machine(&error) => return Err(error),
                    Err(error) => Err(short_message(error)),
                }
            }
        };
        match outcome {
            Err(reason) => self.report.bad_samples.push(BadSample { key: name, reason }),
            Ok(IndexedSample { utterance, entry, audio_seconds }) => {
                let number = self.entries.len() + 1;
                if let Some(first) = self.sample_numbers_by_id.insert(utterance.id.clone(), number) {
                    return Err(Error::DuplicateId {
                        path: self.path.into(),
                        line: number,
                        id: utterance.id,
                        first,
                    });
                }
                if lengths_differ(utterance.seconds, audio_seconds) {
                    let (expected_seconds, found_seconds) = (utterance.seconds, audio_seconds);
                    self.report.length_mismatches.push(LengthMismatch {
                        id: utterance.id,
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

/// Returns whether an error concerns the machine and not a sample.
fn concerns_machine(error: &Error) -> bool {
    match error {
        Error::Utterance { source, .. } | Error::File { source, .. } => concerns_machine(source),
        Error::Io { source, .. } => crate::error::is_system_error(source),
        _ => false,
    }
}

/// Returns an error message without sample and shard names.
fn short_message(error: Error) -> String {
    match error {
        Error::Utterance { source, .. } => short_message(*source),
        Error::Format { expected, found, .. } => format!("expected {expected}, found {found}"),
        Error::Shard { expected, found, .. } => format!("expected {expected}, found {found}"),
        Error::ManifestSyntax { source, .. } => {
            format!("expected a JSON object of manifest fields: {source}")
        }
        other => other.to_string(),
    }
}

/// Checks that only zeros follow the last member.
///
/// A missing end mark means a truncated file; other bytes mean that a second archive was appended,
/// which would not be read.
fn check_end(path: &Path, mut file: &File, end: u64) -> Result<()> {
    let io_error = |source| Error::Io { path: path.into(), source };
    file.seek(SeekFrom::Start(end)).map_err(io_error)?;
    let (mut buffer, mut num_zeros) = (vec![0; READ_BYTES], 0);
    loop {
        match file.read(&mut buffer).map_err(io_error)? {
            0 if num_zeros < BLOCK_BYTES => {
                return Err(shard_error(path, "an end mark of zeros", "none: truncated"));
            }
            0 => return Ok(()),
            count if buffer[..count].iter().any(|&byte| byte != 0) => {
                return Err(shard_error(path, "one tar file, up to its end mark", "other bytes after it"));
            }
            count => num_zeros += count as u64,
        }
    }
}

/// A sample that can be used.
struct IndexedSample {
    utterance: Utterance,
    entry: IndexEntry,
    /// Length of its audio, which may differ from that in its JSON.
    audio_seconds: f64,
}

/// Checks a sample and creates its index entry.
fn index_sample(
    path: &Path,
    file: &File,
    key: &str,
    sound: MemberRange,
    metadata: MemberRange,
    is_json: bool,
) -> Result<IndexedSample> {
    // Checks the limits of the index and of the memory.
    if metadata.length > MAX_METADATA_BYTES {
        let expected = format!("a text of at most {MAX_METADATA_BYTES} bytes");
        return Err(shard_error(path, &expected, metadata.length.to_string()));
    }
    let header_bytes = sound.start.saturating_sub(sound.header_start);
    if header_bytes > MAX_HEADER_BYTES {
        let expected = format!("headers of at most {MAX_HEADER_BYTES} bytes");
        return Err(shard_error(path, &expected, header_bytes.to_string()));
    }
    let Ok(audio_length) = u32::try_from(sound.length) else {
        return Err(shard_error(path, "audio of less than 4 GiB", format!("{} bytes", sound.length)));
    };
    // The text and the entry.
    let text = read_bytes(path, file, metadata.start, metadata.length as usize)?;
    let crc32 = index_file::metadata_crc32(&text);
    let Ok(text) = String::from_utf8(text) else {
        let extension = if is_json { "json" } else { "txt" };
        return Err(shard_error(
            path,
            &format!("{}.{extension}: text in UTF-8", Excerpt(key)),
            "other bytes",
        ));
    };
    let member = AudioMember {
        start: sound.start,
        length: audio_length,
        header_bytes: header_bytes as u32,
        has_json: is_json,
    };
    let mut entry = IndexEntry {
        seconds: 0.0,
        start: metadata.start,
        length: metadata.length as u32,
        crc32,
        line_or_headers: member.encode_headers(),
        audio_length,
        audio_start: sound.start,
    };
    if read_key_before(path, file, member)?.as_deref() != Some(key) {
        return Err(shard_error(path, "a header with the name of the sample", "another one"));
    }
    // Measures the audio and parses the utterance.
    let metadata = metadata_json(&text, member);
    let (mut samples, rate) = audio::declared_length(path, audio_range(path, file, member)?)?;
    if samples == 0 {
        // The header has no length: decode the audio once.
        let limit = manifest::declared_seconds(path, &metadata)?
            .map_or(DurationLimit::None, DurationLimit::approximately);
        samples = audio::count_samples(path, audio_range(path, file, member)?, Channel::Mix, limit)?.0;
    }
    let audio_seconds = samples as f64 / f64::from(rate);
    entry.seconds = audio_seconds;
    let utterance = parse_utterance(path, member, key, &metadata, audio_seconds, rate)?;
    Ok(IndexedSample { utterance, entry, audio_seconds })
}
