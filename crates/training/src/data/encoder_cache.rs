//! Cache of a frozen encoder's rows on disk (`training.cache_encoder`).
//!
//! Epochs read the rows from one file and do not run the encoder. All numbers are little-endian:
//!
//! ```text
//! "panda encoder rows 1\n"   settings: 16 bytes   bytes of a number: u32   width: u32
//! rows of each utterance     f32 or bf16
//! index of each utterance    content: 16 bytes   offset: u64   rows: u32   CRC-32   seconds: f64
//! offset of the index: u64   CRC-32 of header and index
//! ```
//! `settings` is a hash of the encoder's configuration and weights and of the front end; `content`
//! is one of the utterance: its features, or its entry with path, size and time of its audio files.
//! An offset of 0 marks an utterance that cannot be used. `seconds` is the length of a recording
//! that differs from its manifest, and otherwise NaN.
mod compute;
mod encoded_set;
mod file;

pub(crate) use compute::EncoderCacheConfig;
pub(crate) use encoded_set::EncodedTrainingSet;
use file::{EncoderCache, EncoderCacheKey, EncoderCacheWriter, EncoderRows};
