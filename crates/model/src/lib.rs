//! Models for speech recognition: transducers and recognition lattices.
//!
//! The three types to know: [`ModelConfig`] describes a model, [`Model`] is its network, and
//! [`Checkpoint`] stores it in a file.
//!
//! ```
//! use model::config::JointConfig;
//! use model::encoders::{EncoderKind, LstmEncoderConfig};
//! use model::predictors::{PredictorKind, StatelessPredictorConfig};
//! use model::{Model, ModelConfig};
//!
//! let encoder = LstmEncoderConfig { layers: 1, hidden: 8, ..LstmEncoderConfig::default() };
//! let predictor = StatelessPredictorConfig { embedding: 4, context: 2, dropout: 0.0 };
//! let config = ModelConfig {
//!     predictor: Some(PredictorKind::Stateless(predictor)),
//!     ..ModelConfig::new(EncoderKind::Lstm(encoder), JointConfig { width: 8, dropout: 0.0 })
//! };
//! let model = Model::new(&config, 10)?;
//! let decoder = model.decoder()?; // for greedy and beam search
//! # Ok::<(), model::Error>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the configuration of a model, as sections of a recipe |
//! | [`encoders`], [`predictors`] | parts of the network, also custom ones; [`lstm()`] and [`linear()`] are custom candle operations |
//! | [`Parameters`] | the weights, created by candle's `VarBuilder` and named as in candle |
//! | [`LossSessions`], [`Losses`] | the loss of a model, as [`config::LossKind`] selects it |
//! | [`TrainingPass`], [`GradientSum`] | a forward pass with dropout; the gradients of a step, and the terms of an all-reduce |
//! | [`checkpoint`], [`Pretrained`] | weights in files |
//! | [`Adapter`], [`merge_adapter`], [`remove_adapter`] | low-rank adapters, apart from their base |
//! | [`import`], [`export()`] | models of NeMo and Hugging Face |
//! | [`quantize()`] | smaller files for recognition |
//! | [`bytes`] | memory budgets as text |
//!
//! `docs/custom-encoder.md` describes custom encoders and predictors.
#![warn(missing_docs)]

mod adapter;
pub mod bytes;
pub mod checkpoint;
mod checkpoint_file;
mod checkpoint_writer;
mod checksums;
pub mod config;
mod decoder;
mod divergence;
pub mod encoders;
mod error;
mod export;
mod frozen;
mod gradients;
pub mod import;
mod inference;
mod initializer;
mod input;
mod label_rows;
mod losses;
mod model;
mod output;
mod parameters;
pub mod predictors;
mod pretrained;
mod quantize;
mod quantized_weights;
mod running_statistics;

pub use adapter::{Adapter, merge_adapter, remove_adapter};
pub use checkpoint::{Checkpoint, DataFingerprint, Progress};
pub use checkpoint_file::{CheckpointFile, StoredPart};
pub use checkpoint_writer::{CheckpointWriter, MetadataRef};
pub use config::ModelConfig;
pub use divergence::Divergence;
pub use error::{Error, Result};
pub use export::export;
pub use gradients::{GradientSum, GradientTerms, Gradients};
pub use import::{ImportOptions, ImportedModel, ImportedSource, Layout};
pub use input::{InputConfig, RowsConfig, collate};
pub use layers::batch_statistics::BatchStatistics;
pub use layers::gradient_hooks::{GradientHooks, SentGradients};
pub use layers::linear::{Linear, linear};
pub use layers::lstm::{Lstm, LstmState, LstmWeights, PackedLstmLayer, lstm};
pub use layers::training_pass::TrainingPass;
pub use layers::{Error as LayerError, random, tensors};
pub use losses::{LabeledRows, LossSessions, Losses};
pub use model::{JointRows, Model};
pub use parameters::{Parameters, Shapes};
pub use pretrained::{LoadMessage, Pretrained};
pub use quantize::quantize;
