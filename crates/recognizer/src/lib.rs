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
//! | [`Search`] | kinds of search and their options |
//! | [`Live`] | words of a recording that is still arriving |
//! | [`Listener`], [`Windows`] | encoder rows of such a recording, for models that read forward only, and for others |
//! | [`Recognizer::align`], [`Alignments`] | when the words of known texts were said |
//! | [`evaluate()`], [`Evaluation`], [`Score`] | error rates |
//! | [`Transcription`], [`Format`] | texts with times, and files of them |
//! | [`BadItems`] | utterances that are left out, and the rule for them |
#![warn(missing_docs)]

mod align;
pub mod bad_items;
mod error;
mod evaluate;
pub mod examples;
mod listener;
mod live;
mod output_ids;
mod recognizer;
mod score;
mod search;
mod silence;
mod text_warnings;
mod transcription;
mod unfused;
mod windows;
mod words;

pub use align::{AlignedToken, AlignedUtterance, AlignedWord, Alignments, Unit};
pub use bad_items::{BadItems, LeftOut, MAX_BAD, OtherLength, allowed, unusable_texts};
pub use error::{Error, Result};
pub use evaluate::{Evaluation, Evaluator};
pub use examples::{BatchSize, Example};
pub use listener::{Heard, Listener, StreamId, StreamState};
pub use live::{Endpoint, Live, LiveOptions, Update};
pub use output_ids::OutputIds;
pub use recognizer::{Recognizer, evaluate};
pub use score::{Metric, OverSpeakers, Score, Transcript};
pub use search::{LatticeSearch, Search};
pub use silence::SILENCE;
pub use text_warnings::{conversion_warnings, mark_warnings, normalization_warning};
pub use transcription::{
    CaptionOptions, Format, RankedText, TimedToken, TimedWord, Transcription, TranscriptionWriter,
};
pub use windows::{WindowConfig, Windows};
pub use words::MARK;
