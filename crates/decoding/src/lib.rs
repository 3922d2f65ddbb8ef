//! Transducer decoding: from projected encoder rows to labels with time stamps.
//!
//! A model is seen through one trait, [`Transducer`]: a predictor that advances label by label and a joint network that scores
//! every class at one site. Nothing here knows about audio, files or training.
//!
//! [`greedy`] takes the best class at each site: the blank moves one frame on, any other class is emitted and advances the
//! predictor on the same frame, at most [`Greedy::max_symbols`] times. Big blanks and durations move on as far as they say;
//! [`factor_blank`] makes plain scores of those of a factored blank.
//!
//! What scores labels beside the model is an [`Automaton`]: an n-gram ([`mod@ngram`]) or a list of phrases ([`Boost`]).
#![warn(missing_docs)]

mod automaton;
mod boost;
mod error;
mod factored;
mod greedy;
mod model;
pub mod ngram;

// Damaged files, for what reads them.
#[cfg(test)]
#[path = "../../speech/tests/suite/mutants.rs"]
mod mutants;

pub use automaton::Automaton;
pub use boost::{Boost, Phrase, PhraseError, read_phrases};
pub use error::{Error, Result};
pub use factored::factor_blank;
pub use greedy::{Greedy, Hypothesis, greedy};
pub use model::Transducer;
