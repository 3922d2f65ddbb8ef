//! Models of speech recognition: transducers and recognition lattices.
//!
//! | module | contents |
//! |---|---|
//! | [`ModelConfig`], [`config`] | what a model is built from, as the parts of a recipe that describe it |
//! | [`encoders`], [`predictors`], [`Model`] | the network, with a user's own parts or ours; [`lstm()`] and [`linear()`] are custom candle operations |
//! | [`Parameters`] | its weights, made through candle's `VarBuilder` and named as candle models name theirs |
//! | [`LossSessions`], [`Losses`] | the loss that a model is trained with, as [`config::LossKind`] selects it |
//! | [`TrainingPass`], [`GradientSum`] | a forward pass that trains; the gradients of a step, and how an all-reduce receives them |
//! | [`Model::decoder`] | the same network for the searches of [`decoding`] |
//! | [`checkpoint`], [`Pretrained`] | weights in files |
//! | [`bytes`] | memory budgets as text |
#![warn(missing_docs)]

pub mod bytes;
pub mod checkpoint;
mod checkpoint_writer;
pub mod config;
mod decoder;
mod divergence;
pub mod encoders;
mod error;
mod gradients;
mod heads;
mod initializer;
mod input;
mod layers;
mod losses;
mod model;
mod parameters;
pub mod predictors;
mod pretrained;
pub mod random;
pub mod tensors;
mod training_pass;

pub use checkpoint::{Checkpoint, DataFingerprint, Progress};
pub use checkpoint_writer::{CheckpointWriter, MetadataRef};
pub use config::ModelConfig;
pub use divergence::Divergence;
pub use error::{Error, Result};
pub use gradients::{GradientHooks, GradientSum, GradientTerms, Gradients, SentGradients};
pub use input::{InputConfig, RowsConfig, collate};
pub use layers::linear::{Linear, linear};
pub use layers::lstm::{Lstm, LstmState, LstmWeights, StreamingLstm, lstm};
pub use losses::{LabeledRows, LossSessions, Losses};
pub use model::{JointRows, Model};
pub use parameters::{Parameters, Shapes};
pub use pretrained::{LoadMessage, Pretrained};
pub use training_pass::TrainingPass;
