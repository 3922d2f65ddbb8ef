//! Speech recognition with a trained model.
//!
//! This crate loads checkpoints, transcribes recordings and streams, aligns transcripts, and scores
//! hypotheses.
//!
//! ```no_run
//! use recognizer::Recognizer;
//!
//! let recognizer = Recognizer::load("runs/digits/best.safetensors".as_ref())?;
//! println!("{}", recognizer.transcribe(&speech::read_audio("hello.flac".as_ref())?)?.text);
//! # Ok::<(), recognizer::Error>(())
//! ```
//!
//! Three types to know: [`Recognizer`], a model with its front end and tokenizer;
//! [`Transcription`], a text with times and confidences; and [`StreamingRecognizer`], for
//! recordings that are still arriving.
//!
//! | item | contents |
//! |---|---|
//! | [`Recognizer`] | a checkpoint with its front end and tokenizer |
//! | [`SearchSettings`] | options of a search and the files that it reads, as users give them |
//! | [`SearchConfig`] | kinds of search and their options |
//! | [`TokenFilter`] | the tokens that a search may emit, by script or characters |
//! | [`StreamingRecognizer`] | streaming recognition |
//! | [`StreamingEncoder`], [`ChunkedEncoder`] | encoder rows of a stream, for causal models and others |
//! | [`Recognizer::align`], [`Alignments`] | times of the words of given transcripts |
//! | [`evaluate()`], [`Evaluation`], [`Score`] | error rates |
//! | [`Transcription`], [`TranscriptFormat`] | texts with times, and their file formats |
//! | [`Recognizer::cover`], [`Coverage`] | words, silence and gaps of a recording; the second search |
//! | [`BadItems`] | excluded utterances, and recordings of another length |
#![warn(missing_docs)]

mod align;
pub mod bad_items;
mod coverage;
mod error;
mod evaluate;
pub mod examples;
mod output_ids;
mod recognizer;
mod score;
mod search;
mod search_config;
mod search_settings;
mod silence;
mod streaming;
mod text_warnings;
mod token_filter;
mod transcription;
mod unfused;
mod words;

#[cfg(test)]
#[path = "../../speech/tests/suite/sentencepiece_bytes.rs"]
mod sentencepiece_bytes;

pub use align::{AlignedUtterance, AlignedWord, Alignments, CtmUnit, TokenAlignment};
pub use bad_items::{
    BadItems, DEFAULT_MAX_BAD, ExcludedUtterance, LengthMismatch, max_bad_count, unusable_texts,
};
pub use coverage::{
    Coverage, CoverageGap, CoverageKind, CoverageOptions, CoverageSegment, CoverageShares, GapStatus,
    RecoveredWord,
};
pub use error::{Error, Result};
pub use evaluate::{Evaluation, evaluate};
pub use examples::{BatchSize, Example};
pub use output_ids::OutputIds;
pub use recognizer::Recognizer;
pub use score::{Metric, Score, SpeakerIntervals, Transcript};
pub use search_config::{LatticeSearch, SearchConfig};
pub use search_settings::{BeamSearchKind, NgramUnits, SearchSettings, TextSource};
pub use silence::MIN_WORD_POSTERIOR;
pub use streaming::chunked::{ChunkedEncoder, WindowConfig};
pub use streaming::encoder::{EncodedChunk, StreamId, StreamState, StreamingEncoder};
pub use streaming::{EndpointConfig, StreamingOptions, StreamingRecognizer, StreamingUpdate};
pub use text_warnings::{conversion_warnings, mark_warnings, normalization_warning};
pub use token_filter::TokenFilter;
pub use transcription::{
    CaptionOptions, RankedText, TimedToken, TimedWord, TranscriptFormat, Transcription, TranscriptionWriter,
};
pub use words::WORD_MARK;
