//! Layers of encoders and predictors, as candle operations with hand-written gradients.
//!
//! Crate `model` builds encoders and predictors of them, and defines their configuration and files.
//!
//! | module | contents |
//! |---|---|
//! | [`linear`], [`low_rank`], [`feed_forward`], [`activations`] | products and pointwise functions |
//! | [`lstm`] | LSTM layers over whole utterances and in streams |
//! | [`attention`], [`relative_attention`], [`attention_limits`] | attention in each utterance |
//! | [`convolution`], [`depthwise`], [`depthwise_2d`] | convolutions |
//! | [`layer_norm`], [`batch_norm`], [`batch_statistics`] | normalization |
//! | [`ragged`], [`tensors`], [`random`] | rows of utterances, values of tensors, initial values |
//! | [`training_pass`], [`gradient_hooks`], [`recompute`], [`footprint`] | dropout of a step, early gradients, recomputed layers, bytes of passes |
//!
//! All operations are on the CPU, in `f32` or `f64`.
//!
//! ```
//! use candle_core::{Device, Tensor};
//!
//! let x = Tensor::new(&[[1.0f32, 2.0]], &Device::Cpu)?;
//! let (weight, bias) =
//!     (Tensor::new(&[[3.0f32, 4.0]], &Device::Cpu)?, Tensor::new(&[5.0f32], &Device::Cpu)?);
//! let y = layers::linear::linear(&x, &weight, &bias)?;
//! assert_eq!(y.to_vec2::<f32>()?, [[16.0]]);
//! # Ok::<(), layers::Error>(())
//! ```
#![warn(missing_docs)]

pub mod activations;
pub mod attention;
pub mod attention_limits;
pub mod batch_norm;
pub mod batch_statistics;
pub mod convolution;
pub mod depthwise;
pub mod depthwise_2d;
mod error;
pub mod feed_forward;
pub mod footprint;
pub mod gradient_hooks;
pub mod layer_norm;
pub mod linear;
pub mod low_rank;
pub mod lstm;
mod operation;
pub mod ragged;
pub mod random;
pub mod recompute;
pub mod relative_attention;
pub mod tensors;
pub mod training_pass;

pub use error::{Error, Result};
