//! `Error`: errors of reading, preparing and scoring speech data.

use std::path::PathBuf;

use kernels::{Excerpt, ShortFloat};

use crate::memory;

/// An error of reading, preparing or scoring speech data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- audio files ----
    /// A file could not be opened or read.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("{}: cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file has another format than its reader supports.
    #[error("{}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Format {
        /// The file.
        path: PathBuf,
        /// The supported formats.
        expected: &'static str,
        /// The format of the file.
        found: String,
    },
    /// An audio file has another sample rate than requested.
    #[error("{}: expected audio at {expected} Hz, found {found} Hz", path.display())]
    FileRate {
        /// The file.
        path: PathBuf,
        /// Requested rate.
        expected: u32,
        /// Rate of the file.
        found: u32,
    },
    /// An audio file does not have the requested channel.
    #[error("{}: expected a file with a channel {channel}, found {found} channels", path.display())]
    Channel {
        /// The file.
        path: PathBuf,
        /// The channel, from 1.
        channel: u32,
        /// Its number of channels.
        found: u32,
    },
    /// The decoded samples of a FLAC file do not match its MD5.
    #[error("{}: expected samples with MD5 {expected}, as in its header, found {found}", path.display())]
    Md5 {
        /// The file.
        path: PathBuf,
        /// MD5 in the header.
        expected: String,
        /// MD5 of the decoded samples.
        found: String,
    },
    /// The content of a file is invalid.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem.
        source: Box<Error>,
    },
    /// The resampling library failed, which indicates a bug in this crate.
    #[error("resampling: {0}")]
    Resampling(String),
    /// An audio file has more than one channel.
    #[error("{}: expected mono audio (1 channel), found {found} channels", path.display())]
    Channels {
        /// The file.
        path: PathBuf,
        /// Its number of channels.
        found: u32,
    },
    /// An audio file ends before the samples that its header declares.
    #[error("{}: truncated: its {format} header declares {expected} samples, found {found}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Format of the file.
        format: &'static str,
        /// Samples declared in the header.
        expected: u64,
        /// Decoded samples.
        found: u64,
    },
    /// An audio file exceeds the length limit.
    #[error("{}: expected at most {max_seconds:.2} s of audio, found {}{found:.2} s{}", path.display(), if *is_exact { "" } else { "at least " }, if *is_exact { " in its header" } else { "" })]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit in seconds.
        max_seconds: f64,
        /// Seconds in the header, or decoded before the limit was exceeded.
        found: f64,
        /// Whether `found` is the length in the header.
        is_exact: bool,
    },
    /// The samples of an audio file do not fit into memory.
    #[error("{}: expected at most {}, the available memory, found samples of {} or more", path.display(), memory::format_bytes(*available), memory::format_bytes(*bytes))]
    Memory {
        /// The file.
        path: PathBuf,
        /// Bytes required, at least.
        bytes: usize,
        /// Bytes available.
        available: usize,
    },
    /// Raw 16-bit audio ends within a sample.
    #[error("raw audio: expected complete samples of 16 bits, found {bytes} bytes")]
    HalfSample {
        /// Total bytes.
        bytes: u64,
    },
    /// Raw audio could not be read.
    #[error("raw audio: cannot be read: {source}")]
    RawAudio {
        /// The system's error.
        source: std::io::Error,
    },
    /// An audio file has no samples.
    #[error("{}: expected at least one sample, found none", path.display())]
    EmptyAudio {
        /// The file.
        path: PathBuf,
    },
    /// A segment exceeds its file.
    #[error("{}: segment of {} samples from sample {}: expected at least one sample, within the {found} samples of the file", path.display(), ShortFloat(*count), ShortFloat(*start))]
    Segment {
        /// The file.
        path: PathBuf,
        /// First requested sample.
        start: u64,
        /// Number of requested samples.
        count: u64,
        /// Samples in the file.
        found: u64,
    },

    // ---- manifests ----
    /// A manifest line is not a valid JSON object.
    #[error("{}:{line}: expected a JSON object of manifest fields: {}", path.display(), Excerpt(source))]
    ManifestSyntax {
        /// The manifest.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A manifest line lacks a field.
    #[error("{}:{line}: missing field `{field}`{}", path.display(), alternatives(field))]
    ManifestField {
        /// The manifest.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The missing field.
        field: &'static str,
    },
    /// A manifest field has an invalid value.
    #[error("{}:{line}: field `{field}`: expected {expected}, found {}", path.display(), Excerpt(found))]
    ManifestValue {
        /// The manifest.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The field.
        field: &'static str,
        /// The supported values.
        expected: String,
        /// The value in the manifest.
        found: String,
    },
    /// A manifest has no utterances.
    #[error("{}: expected at least one utterance, found an empty manifest", path.display())]
    EmptyManifest {
        /// The manifest.
        path: PathBuf,
    },
    /// A string names a recording that `recordings.jsonl` does not list.
    #[error("{}:{line}: recording `{}`: expected an id of {}, found none", path.display(), Excerpt(id), recordings.display())]
    UnknownRecording {
        /// The manifest.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The recording.
        id: String,
        /// The list of recordings.
        recordings: PathBuf,
    },
    /// Two lines of a manifest have the same id.
    #[error("{}:{line}: id `{}`: expected unique ids, found it on line {first} too", path.display(), Excerpt(id))]
    DuplicateId {
        /// The manifest.
        path: PathBuf,
        /// The second line with that id, from 1.
        line: usize,
        /// The id.
        id: String,
        /// The first line with that id.
        first: usize,
    },

    // ---- shards and indices ----
    /// A numeric range in the name of a source is too large.
    #[error("{path}: a range of numbers: expected {expected}, found {found}")]
    NameRange {
        /// The name, truncated.
        path: String,
        /// The supported ranges.
        expected: String,
        /// The range in the name.
        found: String,
    },
    /// A tar shard is damaged, or has no usable sample.
    #[error("{}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Shard {
        /// The shard.
        path: PathBuf,
        /// The required content of a shard.
        expected: String,
        /// The content of this shard.
        found: String,
    },
    /// A file has changed since it was indexed.
    #[error("{}: utterance {index}: expected {expected} as indexed, found {}: the file has changed; index it again", path.display(), Excerpt(found))]
    Index {
        /// The file.
        path: PathBuf,
        /// Number of the utterance in it, from 0.
        index: usize,
        /// The indexed content.
        expected: String,
        /// The current content.
        found: String,
    },

    // ---- corpora ----
    /// A folder or file of a corpus differs from its distribution.
    #[error("{}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Corpus {
        /// The folder or file.
        path: PathBuf,
        /// The content of the distribution.
        expected: String,
        /// The content on disk.
        found: String,
    },
    /// A line of a corpus list differs from its distribution.
    #[error("{}:{line}: expected {expected}, found {}", path.display(), Excerpt(found))]
    CorpusLine {
        /// The list.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The format of the line.
        expected: String,
        /// The content of the line.
        found: String,
    },

    // ---- utterances ----
    /// The audio of an utterance could not be read.
    #[error("utterance `{}`: {source}", Excerpt(utterance))]
    Utterance {
        /// Id of the utterance.
        utterance: String,
        /// The cause.
        source: Box<Error>,
    },
    /// An utterance has another sample rate than requested.
    #[error("utterance `{}`: expected {expected} Hz, found {found} Hz in {}", Excerpt(utterance), path.display())]
    SampleRate {
        /// Id of the utterance.
        utterance: String,
        /// The file.
        path: PathBuf,
        /// Requested rate, or the rate in the manifest.
        expected: u32,
        /// Rate of the file.
        found: u32,
    },
    /// An utterance has another length than in its manifest.
    #[error("utterance `{}`: expected {expected} samples, found {found} in {}", Excerpt(utterance), path.display())]
    Length {
        /// Id of the utterance.
        utterance: String,
        /// Its first file.
        path: PathBuf,
        /// `num_samples` of the manifest.
        expected: usize,
        /// Decoded samples.
        found: usize,
    },
    /// An utterance is much longer or shorter than in its manifest.
    #[error(
        "utterance `{}`: expected {expected:.2} s, as in its manifest, found {found:.2} s",
        Excerpt(utterance)
    )]
    Duration {
        /// Id of the utterance.
        utterance: String,
        /// Seconds in the manifest.
        expected: f64,
        /// Seconds of the audio.
        found: f64,
    },
    /// An utterance has another CRC-32 than in its manifest.
    #[error("utterance `{}`: expected CRC-32 {expected:08x}, found {found:08x} in {}", Excerpt(utterance), path.display())]
    Checksum {
        /// Id of the utterance.
        utterance: String,
        /// Its first file.
        path: PathBuf,
        /// `crc32` of the manifest.
        expected: u32,
        /// Checksum of the decoded samples as little-endian 16-bit integers.
        found: u32,
    },

    // ---- batches ----
    /// There are more buckets than utterances.
    #[error(
        "bucket {bucket} of {buckets}: expected at least one utterance, found none; there are {utterances} in all"
    )]
    EmptyBucket {
        /// The first empty bucket, from 1.
        bucket: usize,
        /// Number of buckets.
        buckets: usize,
        /// Number of utterances.
        utterances: usize,
    },

    // ---- features and augmentation ----
    /// A setting is out of range.
    #[error("setting `{field}`: expected {expected}, found {}", Excerpt(found))]
    Setting {
        /// The setting.
        field: &'static str,
        /// The supported values.
        expected: String,
        /// The value of the setting.
        found: String,
    },
    /// Audio has another sample rate than the front end.
    #[error("front end: expected audio at {expected} Hz, found {found} Hz")]
    FrontEndRate {
        /// Rate of the front end.
        expected: u32,
        /// Rate of the audio.
        found: u32,
    },
    /// A signal has no sample.
    #[error("front end: expected at least one sample, found none")]
    EmptySignal,
    /// A signal is too short for a frame of features.
    #[error("front end: expected at least {expected} samples, one frame, found {found}")]
    ShortSignal {
        /// Samples of a frame.
        expected: usize,
        /// Samples of the signal, without trimmed silence.
        found: usize,
    },
    /// A sample is NaN, infinite or out of range.
    #[error("audio: expected finite samples of magnitude at most 2^31, found {} at sample {index}", ShortFloat(*found))]
    NotFinite {
        /// Index of the first such sample.
        index: usize,
        /// Its value.
        found: f32,
    },

    /// A noise recording or impulse response cannot be used.
    #[error("{}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Sound {
        /// The file.
        path: PathBuf,
        /// The required property.
        expected: String,
        /// The property of the recording.
        found: String,
    },

    /// The state of a stream does not belong to the front end.
    #[error("stream of features: expected {expected}, found {found}")]
    Stream {
        /// The state that the front end expects.
        expected: String,
        /// The state of the stream.
        found: String,
    },

    // ---- tokens ----
    /// A tokenizer cannot be trained on texts without words.
    #[error("tokenizer: expected at least one word of training text, found none")]
    NoText,
    /// A text has the character that marks word beginnings.
    #[error("tokenizer: text {}: expected no {symbol:?}, which marks word beginnings", quoted(text))]
    ReservedSymbol {
        /// The mark.
        symbol: char,
        /// The text.
        text: String,
    },
    /// A sentence mark occurs within a text.
    #[error(
        "tokenizer: text {}: expected sentence marks (<s>, </s>) around a text only, found {mark:?} within it: put each sentence on a separate line",
        quoted(text)
    )]
    SentenceMark {
        /// The word with the mark.
        mark: String,
        /// The text.
        text: String,
    },
    /// A text has a symbol that the training text lacks.
    #[error(
        "tokenizer: text {}: expected symbols of the training text, found {}",
        quoted(text),
        quoted(symbol)
    )]
    UnknownSymbol {
        /// The word or character.
        symbol: String,
        /// The text.
        text: String,
    },
    /// A label is not an id of the tokenizer.
    #[error("tokenizer: expected ids below {size}, found {id} at position {index}")]
    UnknownId {
        /// Number of ids.
        size: usize,
        /// The label.
        id: u32,
        /// Position in the sequence.
        index: usize,
    },
    /// A stored tokenizer is invalid or damaged.
    #[error("tokenizer file: expected {expected}, found {}", Excerpt(found))]
    TokenizerFile {
        /// The valid content.
        expected: &'static str,
        /// The content of the file.
        found: String,
    },
    /// The tokenizers library failed, which indicates a bug in this crate.
    #[error("tokenizer: {}", Excerpt(_0))]
    Tokenizers(String),
}

/// Linux error numbers of too many open files, system-wide and per process.
const TOO_MANY_FILES: [i32; 2] = [23, 24];

/// Returns whether a read error concerns the machine and not the file.
pub fn is_system_error(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::OutOfMemory
        || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Quotes a text, truncated if it is long.
fn quoted(text: &str) -> String {
    Excerpt(format_args!("{text:?}")).to_string()
}

/// Returns the alternatives to a missing field.
fn alternatives(field: &str) -> &'static str {
    match field {
        "seconds" => ", `duration`, or `num_samples` with `sample_rate`",
        _ => "",
    }
}
