//! Training of transducers, from a recipe to a recogniser.
//!
//! [`train`] reads a [`recipe::Recipe`], trains in a run folder, and evaluates; [`Recogniser`] loads the checkpoint.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod checkpoint;
mod curve;
pub mod data;
mod dropout;
pub mod ema;
pub mod encoder;
mod error;
mod evaluate;
mod files;
mod init;
mod linear;
mod lstm;
mod model;
mod observer;
pub mod optimiser;
mod parameters;
pub mod predictor;
mod random;
pub mod recipe;
mod recogniser;
pub mod run_folder;
pub mod schedule;
mod stepwise;
mod tensors;
mod trainer;

pub use checkpoint::{Checkpoint, Progress};
pub use dropout::Masks;
pub use error::{Error, Result};
pub use evaluate::{Evaluation, Score, Transcript};
pub use files::write_atomically;
pub use linear::linear;
pub use lstm::lstm;
pub use model::{Losses, Model};
pub use observer::{EpochReport, Observer, RunReport, StepReport};
pub use parameters::Parameters;
pub use recipe::Recipe;
pub use recogniser::{Recogniser, TimedToken, Transcription, evaluate};
pub use run_folder::{Metrics, Start};
pub use stepwise::{Memory, Stepwise};
pub use trainer::{Outcome, train};
