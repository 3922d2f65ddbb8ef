//! The one error type of this crate.

use std::path::PathBuf;

use kernels::{Brief, Excerpt};

use crate::memory;

/// What can go wrong between a sound file and a word error rate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- audio files ----
    /// A file could not be opened or read.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("{}: cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file is not what its reader can read.
    #[error("{}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Format {
        /// The file.
        path: PathBuf,
        /// What the reader can read.
        expected: &'static str,
        /// What the file holds.
        found: String,
    },
    /// An audio file has another sample rate than the one asked for.
    #[error("{}: expected audio at {expected} Hz, found {found} Hz", path.display())]
    FileRate {
        /// The file.
        path: PathBuf,
        /// Rate asked for.
        expected: u32,
        /// Rate of the file.
        found: u32,
    },
    /// An audio file has not the channel that is asked for.
    #[error("{}: expected a file with a channel {asked}, found one with {found}", path.display())]
    Channel {
        /// The file.
        path: PathBuf,
        /// The channel, from 1.
        asked: u32,
        /// Its number of channels.
        found: u32,
    },
    /// The samples of a FLAC file are not those that were encoded.
    #[error("{}: expected samples with MD5 {expected}, as its header says, found {found}", path.display())]
    Md5 {
        /// The file.
        path: PathBuf,
        /// MD5 of the header.
        expected: String,
        /// MD5 of the decoded samples.
        found: String,
    },
    /// Something is wrong with what a file holds.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What.
        source: Box<Error>,
    },
    /// The resampling library refused; a sign of a bug here.
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
    /// An audio file ends before the samples that its header promises.
    #[error("{}: truncated: its {format} header declares {expected} samples, found {found}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Format of the file.
        format: &'static str,
        /// Samples that the header promises.
        expected: u64,
        /// Samples that could be decoded.
        found: u64,
    },
    /// An audio file is longer than it may be.
    #[error("{}: expected at most {most:.2} s of sound, found {}{found:.2} s{}", path.display(), if *is_exact { "" } else { "at least " }, if *is_exact { " in its header" } else { "" })]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Seconds that it may have.
        most: f64,
        /// Seconds of its header, or seconds that were decoded before decoding stopped.
        found: f64,
        /// Whether `found` is the length in the header.
        is_exact: bool,
    },
    /// The samples of an audio file do not fit into memory.
    #[error("{}: expected at most {}, which is what is available, found samples of {} or more", path.display(), memory::format_bytes(*available), memory::format_bytes(*bytes))]
    Memory {
        /// The file.
        path: PathBuf,
        /// Bytes that its samples need at least.
        bytes: usize,
        /// Bytes that are available.
        available: usize,
    },
    /// Raw 16-bit sound ends in the middle of a sample.
    #[error("raw sound: expected whole samples of 16 bits, found {bytes} bytes")]
    HalfSample {
        /// Bytes in all.
        bytes: u64,
    },
    /// Raw sound could not be read.
    #[error("raw sound: cannot be read: {source}")]
    Raw {
        /// The system's answer.
        source: std::io::Error,
    },
    /// An audio file is well formed but holds no sample.
    #[error("{}: expected at least one sample, found none", path.display())]
    EmptyAudio {
        /// The file.
        path: PathBuf,
    },
    /// A segment reaches outside its file.
    #[error("{}: segment of {} samples from sample {} on: expected at least one sample and an end within the file's {found} samples", path.display(), Brief(*count), Brief(*start))]
    Segment {
        /// The file.
        path: PathBuf,
        /// First sample asked for.
        start: u64,
        /// Number of samples asked for.
        count: u64,
        /// Samples in the file.
        found: u64,
    },

    // ---- manifests ----
    /// A manifest line is not a JSON object with fields of the right types.
    #[error("{}:{line}: expected a JSON object of manifest fields: {}", path.display(), Excerpt(source))]
    ManifestSyntax {
        /// The manifest.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The parser's answer.
        source: serde_json::Error,
    },
    /// A manifest line lacks a field.
    #[error("{}:{line}: missing field `{field}`{}", path.display(), instead_of(field))]
    ManifestField {
        /// The manifest.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The missing field.
        field: &'static str,
    },
    /// A manifest field has a value that makes no sense.
    #[error("{}:{line}: field `{field}`: expected {expected}, found {}", path.display(), Excerpt(found))]
    ManifestValue {
        /// The manifest.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The field.
        field: &'static str,
        /// What would make sense.
        expected: String,
        /// What the line holds.
        found: String,
    },
    /// A manifest lists no utterance.
    #[error("{}: expected at least one utterance, found an empty manifest", path.display())]
    EmptyManifest {
        /// The manifest.
        path: PathBuf,
    },
    /// A string names a recording that `recordings.jsonl` beside it does not list.
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
        /// Second line with that id, from 1.
        line: usize,
        /// The id.
        id: String,
        /// First line with that id.
        first: usize,
    },

    // ---- shards and indices ----
    /// A range of numbers in the name of a source is too large.
    #[error("{path}: a range of numbers: expected {expected}, found {found}")]
    NameRange {
        /// The name, cut to some characters.
        path: String,
        /// What a range may have.
        expected: String,
        /// What this one has.
        found: String,
    },
    /// A tar shard is damaged, or none of its samples can be used.
    #[error("{}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Shard {
        /// The shard.
        path: PathBuf,
        /// What such a shard has.
        expected: String,
        /// What this one has.
        found: String,
    },
    /// A file has changed since it was indexed.
    #[error("{}: utterance {index}: expected {expected} where its index says, found {}: has it changed in the meantime?", path.display(), Excerpt(found))]
    Index {
        /// The file.
        path: PathBuf,
        /// Number of the utterance in it, from 0.
        index: usize,
        /// What was there.
        expected: String,
        /// What is there.
        found: String,
    },

    // ---- corpora ----
    /// A folder or a file of a corpus is not as it is distributed.
    #[error("{}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Corpus {
        /// The folder or file.
        path: PathBuf,
        /// What is distributed.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A line of a corpus's list is not as it is distributed.
    #[error("{}:{line}: expected {expected}, found {}", path.display(), Excerpt(found))]
    CorpusLine {
        /// The list.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What such a line has.
        expected: String,
        /// What is there.
        found: String,
    },

    // ---- utterances ----
    /// The audio of an utterance could not be read.
    #[error("utterance `{}`: {source}", Excerpt(utterance))]
    Utterance {
        /// Id of the utterance.
        utterance: String,
        /// Why.
        source: Box<Error>,
    },
    /// An utterance has another sample rate than the one asked for.
    #[error("utterance `{}`: expected {expected} Hz, found {found} Hz in {}", Excerpt(utterance), path.display())]
    SampleRate {
        /// Id of the utterance.
        utterance: String,
        /// The file.
        path: PathBuf,
        /// Rate asked for, or given in the manifest.
        expected: u32,
        /// Rate of the file.
        found: u32,
    },
    /// An utterance has another length than its manifest says.
    #[error("utterance `{}`: expected {expected} samples, found {found} in {}", Excerpt(utterance), path.display())]
    Length {
        /// Id of the utterance.
        utterance: String,
        /// Its file, or the first of them.
        path: PathBuf,
        /// `num_samples` of the manifest.
        expected: usize,
        /// Decoded samples.
        found: usize,
    },
    /// An utterance is much longer or shorter than its manifest says.
    #[error(
        "utterance `{}`: expected {expected:.2} s, as its manifest says, found {found:.2} s",
        Excerpt(utterance)
    )]
    Duration {
        /// Id of the utterance.
        utterance: String,
        /// Seconds of the manifest.
        expected: f64,
        /// Seconds of its sound.
        found: f64,
    },
    /// An utterance has another CRC-32 than its manifest says.
    #[error("utterance `{}`: expected CRC-32 {expected:08x}, found {found:08x} in {}", Excerpt(utterance), path.display())]
    Checksum {
        /// Id of the utterance.
        utterance: String,
        /// Its file, or the first of them.
        path: PathBuf,
        /// `crc32` of the manifest.
        expected: u32,
        /// Checksum of the decoded samples as little-endian 16-bit integers.
        found: u32,
    },

    // ---- batches ----
    /// There are more buckets than utterances to put into them.
    #[error(
        "bucket {bucket} of {buckets}: expected at least one utterance, found none; there are {utterances} in all"
    )]
    EmptyBucket {
        /// The first bucket without any, from 1.
        bucket: usize,
        /// Number of buckets.
        buckets: usize,
        /// Number of utterances.
        utterances: usize,
    },

    // ---- features and augmentation ----
    /// A setting is out of its range.
    #[error("setting `{field}`: expected {expected}, found {}", Excerpt(found))]
    Setting {
        /// The setting.
        field: &'static str,
        /// Its range.
        expected: String,
        /// Its value.
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
    /// A sample is NaN, infinite, or so large that it cannot be sound.
    #[error("audio: expected samples that are numbers of at most 2^31, found {} at sample {index}", Brief(*found))]
    NotFinite {
        /// Index of the first such sample.
        index: usize,
        /// Its value.
        found: f32,
    },

    /// A sound of a manifest, noise or an impulse response, cannot be used.
    #[error("{}: expected {expected}, found {}", path.display(), Excerpt(found))]
    Sound {
        /// The file.
        path: PathBuf,
        /// What could be used.
        expected: String,
        /// What it is.
        found: String,
    },

    /// The state of a stream is not one of a front end with these settings.
    #[error("stream of features: expected {expected}, found {found}")]
    Stream {
        /// What such a state has.
        expected: String,
        /// What this one has.
        found: String,
    },

    // ---- tokens ----
    /// A tokenizer was to be trained on texts without a single word.
    #[error("tokenizer: expected at least one word of training text, found none")]
    NoText,
    /// A text holds a character that the tokenizer uses as its word mark.
    #[error("tokenizer: text {}: expected no {symbol:?}, which marks word beginnings", quoted(text))]
    ReservedSymbol {
        /// The mark.
        symbol: char,
        /// The text.
        text: String,
    },
    /// A sentence mark stands within a text.
    #[error(
        "tokenizer: text {}: expected sentence marks (<s>, </s>) around a text only, found {mark:?} within it: put each sentence on a line of its own",
        quoted(text)
    )]
    SentenceMark {
        /// The word with the mark.
        mark: String,
        /// The text.
        text: String,
    },
    /// A text holds a symbol that the training text did not have.
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
        /// Its place in the sequence.
        index: usize,
    },
    /// A stored tokenizer is not one of ours, or is damaged.
    #[error("tokenizer file: expected {expected}, found {}", Excerpt(found))]
    TokenizerFile {
        /// What a stored tokenizer has there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// The tokenizers library refused; a sign of a bug here.
    #[error("tokenizer: {}", Excerpt(_0))]
    Tokenizers(String),
}

/// Error numbers of Linux for too many open files, of the system and of the process.
const TOO_MANY_FILES: [i32; 2] = [23, 24];

/// Returns whether a failure to read is one of the machine or the process, and not of the file.
pub fn is_system_error(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::OutOfMemory
        || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A text in quotes, cut if it is long.
fn quoted(text: &str) -> String {
    Excerpt(format_args!("{text:?}")).to_string()
}

/// What else would do.
fn instead_of(field: &str) -> &'static str {
    match field {
        "seconds" => ", `duration`, or `num_samples` with `sample_rate`",
        _ => "",
    }
}
