//! Recognition with a trained model: whole recordings, streams, alignments, transcripts and scores.
//!
//! ```no_run
//! use recognizer::Recognizer;
//!
//! let recognizer = Recognizer::load("runs/digits/best.safetensors".as_ref())?;
//! println!("{}", recognizer.transcribe(&speech::read_audio("hello.flac".as_ref())?)?.text);
//! # Ok::<(), recognizer::Error>(())
//! ```
//!
//! | item | contents |
//! |---|---|
//! | [`Recognizer`] | a checkpoint with its front end and tokenizer |
//! | [`SearchConfig`] | kinds of search and their options |
//! | [`StreamingRecognizer`] | words of a recording that is still arriving |
//! | [`StreamingEncoder`], [`ChunkedEncoder`] | encoder rows of such a recording, for models that read forward only, and for others |
//! | [`Recognizer::align`], [`Alignments`] | when the words of known texts were said |
//! | [`evaluate()`], [`Evaluation`], [`Score`] | error rates |
//! | [`Transcription`], [`TranscriptFormat`] | texts with times, and files of them |
//! | [`BadItems`] | utterances that are left out, and the rule for them |
#![warn(missing_docs)]

mod align;
pub mod bad_items;
mod error;
mod evaluate;
pub mod examples;
mod output_ids;
mod recognizer;
mod score;
mod search;
mod silence;
mod streaming;
mod text_warnings;
mod transcription;
mod unfused;
mod words;

pub use align::{AlignedUtterance, AlignedWord, Alignments, CtmUnit, TokenAlignment};
pub use bad_items::{
    BadItems, DEFAULT_MAX_BAD, ExcludedUtterance, LengthMismatch, max_bad_count, unusable_texts,
};
pub use error::{Error, Result};
pub use evaluate::{Evaluation, evaluate};
pub use examples::{BatchSize, Example};
pub use output_ids::OutputIds;
pub use recognizer::Recognizer;
pub use score::{Metric, Score, SpeakerIntervals, Transcript};
pub use search::{LatticeSearch, SearchConfig};
pub use silence::MIN_WORD_POSTERIOR;
pub use streaming::chunked::{ChunkedEncoder, WindowConfig};
pub use streaming::encoder::{EncodedChunk, StreamId, StreamState, StreamingEncoder};
pub use streaming::{EndpointConfig, StreamingOptions, StreamingRecognizer, StreamingUpdate};
pub use text_warnings::{conversion_warnings, mark_warnings, normalization_warning};
pub use transcription::{
    CaptionOptions, RankedText, TimedToken, TimedWord, TranscriptFormat, Transcription, TranscriptionWriter,
};
pub use words::WORD_MARK;
