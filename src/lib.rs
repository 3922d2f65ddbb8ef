//! Exact, small and fast transducer (RNN-T) training: one name for the whole workspace.
//!
//! | module | owns |
//! |---|---|
//! | [`panda_core`] | the selected normaliser: a few log-probabilities a site out of a very large softmax |
//! | [`rnnt_dp`] | lattices: losses, compact adjoints, occupancies |
//! | [`pruned`] | first pass of the pruned transducer, ranges, retained sites |
//! | [`rnnt_loss`] | joint network, normaliser and lattice as one loss |
//! | [`decoding`] | label-looping, beams, language models, phrases, streams |
//! | [`lattice`] | recognition lattices: contexts, alignments and weight functions, globally normalised |
//! | [`speech`] | audio files, features, tokenizers, manifests, word error rate |
//! | [`distributed`] | the processes of a run: collective calls over MPI or threads |
//! | [`model`] | encoders, predictors, joint networks, configuration, checkpoints |
//! | [`recognizer`] | recognition of recordings and streams, alignment, scores |
//! | [`training`] | data, optimizers, the training loop |
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use {
    decoding, distributed, lattice, model, panda_core, pruned, recognizer, rnnt_dp, rnnt_loss, speech,
    training,
};

/// The README's example is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// So are those of the guide.
#[cfg(doctest)]
#[doc = include_str!("../docs/own-encoder.md")]
struct OwnEncoder;

/// And of the page on decoding.
#[cfg(doctest)]
#[doc = include_str!("../docs/decoding.md")]
struct Decoding;

/// And of the page on recognition lattices.
#[cfg(doctest)]
#[doc = include_str!("../docs/lattices.md")]
struct RecognitionLattices;

/// And of the page on data.
#[cfg(doctest)]
#[doc = include_str!("../docs/data.md")]
struct Data;
