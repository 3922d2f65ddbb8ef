//! Exact transducer (RNN-T) training in little memory: all crates under one name.
//!
//! | module | contents |
//! |---|---|
//! | [`panda_core`] | selected normalizer: a few log-probabilities per site of a very large softmax |
//! | [`rnnt_dp`] | lattices: losses, compact adjoints, occupancies |
//! | [`pruned`] | first pass of the pruned transducer, ranges, retained sites |
//! | [`rnnt_loss`] | joint network, normalizer and lattice as one loss |
//! | [`decoding`] | label-looping, beams, language models, phrases, streams |
//! | [`lattice`] | recognition lattices: contexts, alignments, normalized weights |
//! | [`speech`] | audio files, features, tokenizers, manifests, word error rate |
//! | [`distributed`] | the processes of a run: collective calls over MPI or threads |
//! | [`model`] | encoders, predictors, joint networks, configuration, checkpoints |
//! | [`recognizer`] | recognition of recordings and streams, alignment, scores |
//! | [`training`] | data, optimizers, the training loop |
//!
//! To train and transcribe from a shell, use the program `panda` (crate `cli`). To compute the loss
//! in a candle model, start with [`rnnt_loss::candle::transducer_loss`]; to train a whole model,
//! with [`training::Trainer`]; to transcribe, with [`recognizer::Recognizer`].
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use panda::rnnt_loss::{Options, Targets, candle::transducer_loss};
//!
//! // One utterance of 4 frames with labels [3, 1]; width 8, 5 classes, blank 0.
//! let encoded = Tensor::zeros((1, 4, 8), DType::F32, &Device::Cpu)?;
//! let predicted = Tensor::zeros((1, 3, 8), DType::F32, &Device::Cpu)?;
//! let weight = Tensor::zeros((5, 8), DType::F32, &Device::Cpu)?;
//! let bias = Tensor::zeros(5, DType::F32, &Device::Cpu)?;
//! let targets = Targets::new(0, vec![4], vec![vec![3, 1]])?;
//! let losses =
//!     transducer_loss(&encoded, &predicted, &weight, &bias, &targets, &Options::default())?;
//! // 10 paths of 4 blanks and 2 labels, each step of probability 1/5.
//! let expected = 6.0 * 5f64.ln() - 10f64.ln();
//! assert!((losses.to_vec1::<f64>()?[0] - expected).abs() < 1e-5);
//! # Ok::<(), panda::rnnt_loss::Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use {
    decoding, distributed, lattice, model, panda_core, pruned, recognizer, rnnt_dp, rnnt_loss, speech,
    training,
};

/// Compiles and runs the examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles and runs the examples of docs/custom-encoder.md.
#[cfg(doctest)]
#[doc = include_str!("../docs/custom-encoder.md")]
struct CustomEncoder;

/// Compiles and runs the examples of docs/decoding.md.
#[cfg(doctest)]
#[doc = include_str!("../docs/decoding.md")]
struct Decoding;

/// Compiles and runs the examples of docs/lattices.md.
#[cfg(doctest)]
#[doc = include_str!("../docs/lattices.md")]
struct RecognitionLattices;

/// Compiles and runs the examples of docs/data.md.
#[cfg(doctest)]
#[doc = include_str!("../docs/data.md")]
struct Data;
