//! Training of transducers, from a recipe to a recogniser.
//!
//! [`train`] reads a [`recipe`], trains in a [`run_folder`] and evaluates; [`Recogniser`] loads the checkpoint.
//!
//! ```no_run
//! use std::{path::Path, sync::atomic::AtomicBool};
//! use training::{Recogniser, Start, train};
//!
//! let stop = AtomicBool::new(false); // set it from elsewhere, and the run saves and returns
//! let (recipe, folder) = (Path::new("recipes/digits.toml"), Path::new("runs/digits"));
//! let outcome = train(recipe, None, folder, Start::Resume, &mut (), &stop)?;
//! println!("word error rate on the test set: {:?}", outcome.test.map(|test| test.overall.wer));
//!
//! let recogniser = Recogniser::load(&folder.join("best.safetensors"))?;
//! println!("{}", recogniser.transcribe(&speech::read_audio(Path::new("hello.flac"))?)?.text);
//! # Ok::<(), training::Error>(())
//! ```
//!
//! # The rooms
//!
//! | module | what |
//! |---|---|
//! | [`recipe`] | everything that decides a run, as one TOML file |
//! | [`data`] | utterances in memory, augmented batches |
//! | [`encoder`], [`predictor`], [`Model`] | the network, with a user's own parts or ours; [`lstm()`] and [`linear()`] are of its own candle operations |
//! | [`Parameters`] | its weights, made through candle's `VarBuilder` and named as candle models name theirs |
//! | [`LossSessions`], [`Losses`] | what the network is trained with, as [`recipe::LossConfig`] says |
//! | [`Model::decoder`] | the same network as [`decoding`] sees it |
//! | [`Live`] | words of sound that is still arriving |
//! | [`Listener`] | the encoder's rows of sound that is still arriving; [`Windows`]: of long sound, for models that hear both ways |
//! | [`optimiser`], [`schedule`], [`ema`] | the optimiser, its step size, the moving average of the weights |
//! | [`train`] | the loop; [`Observer`] watches it, [`Learner`] is a step of it, [`Ranks`] the processes that share the steps |
//! | [`checkpoint`], [`run_folder`], [`files`] | what is on disk |
//! | [`average`](average()), [`choose`] | one checkpoint out of several |
//! | [`bytes`], [`memory`] | memory budgets as text, and what there is |
//! | [`evaluate`](evaluate()), [`Score`], [`Search`] | error rates, and how texts are looked for |
//! | [`BadItems`] | utterances that are left out, and the rule for them |
//! | [`Transcription`], [`Format`] | what was heard, and how it is written |
//! | [`Recogniser::align`], [`Alignments`] | when the words of known texts were said |
//!
//! # Repeatable
//!
//! Whatever is random is drawn from a stream that is named by (seed, purpose, epoch, utterance), whoever else is in its batch, and every
//! operation gives the same bits for every number of threads. A checkpoint is therefore the whole state of a run: what follows from it is the same
//! whether the process went on, was stopped, or was killed and started again.
#![warn(missing_docs)]

mod align;
mod arrivals;
mod attention;
mod average;
mod bad_item_log;
mod bad_items;
pub mod bytes;
pub mod checkpoint;
mod convolution;
pub mod data;
mod decoder;
mod depthwise;
mod divergence;
mod doubts;
mod dropout;
pub mod ema;
pub mod encoder;
mod error;
mod evaluate;
mod events;
mod feed_forward;
pub mod files;
mod fingerprint;
mod floor_warning;
mod gates;
mod gradients;
mod init;
mod label_side;
mod layer_norm;
mod learner;
mod linear;
mod listener;
mod live;
mod loading;
mod losses;
mod lstm;
pub mod memory;
mod metrics;
mod model;
mod model_config;
mod observer;
mod ops;
pub mod optimiser;
mod output_ids;
mod parameters;
pub mod predictor;
mod pretrained;
mod ragged;
mod random;
mod ranks;
pub mod recipe;
mod recogniser;
pub mod run_folder;
mod run_plan;
pub mod schedule;
mod score;
mod search;
mod silence;
mod skips;
mod tensors;
mod text_warnings;
mod train;
mod trainer;
mod transcription;
mod unfused;
mod windows;
mod words;

pub use align::{AlignedToken, AlignedUtterance, AlignedWord, Alignments, Unit};
pub use average::{Averaged, average, choose};
pub use bad_items::{BadItems, LeftOut, MAX_BAD, OtherLength, allowed, unusable_texts};
pub use checkpoint::{Checkpoint, Progress};
pub use dropout::Masks;
pub use error::{Error, Result};
pub use evaluate::{Evaluation, Transcript};
pub use fingerprint::{Fingerprint, Sets};
pub use gradients::Gradients;
pub use learner::{Learner, Tally};
pub use linear::{Linear, linear};
pub use listener::{Heard, Listener, StreamId, StreamState};
pub use live::{Endpoint, Live, LiveOptions, Update};
pub use loading::train_tokenizer;
pub use losses::{LossSessions, Losses, Objective};
pub use lstm::{CarriedLstm, Lstm, LstmState, LstmWeights, lstm};
pub use metrics::Metrics;
pub use model::{JointRows, Model};
pub use model_config::{InputConfig, ModelConfig};
pub use observer::{EpochReport, Observer, RunReport, StepReport};
pub use output_ids::OutputIds;
pub use parameters::{Parameters, Shapes};
pub use ranks::{Ranks, Sums};
pub use recipe::Recipe;
pub use recogniser::{Recogniser, evaluate};
pub use run_folder::Start;
pub use run_plan::{BatchShape, RunPlan, StepPlan};
pub use schedule::Moment;
pub use score::{OverSpeakers, Score};
pub use search::{LatticeSearch, Search};
pub use silence::SILENCE;
pub use text_warnings::{conversion_warnings, normalization_warning};
pub use train::{Outcome, train, train_with};
pub use trainer::{About, Judge, Trainer};
pub use transcription::{
    CaptionOptions, Format, RankedText, TimedToken, TimedWord, Transcription, TranscriptionWriter,
};
pub use windows::{WindowConfig, Windows};
