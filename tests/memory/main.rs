//! Memory tests of losses, models and file readers, with a counting allocator.
//!
//! The allocator counts for the whole process, so tests run one at a time: [`counting::exclusive`].

mod audio_files;
mod audio_streams;
#[allow(dead_code, reason = "only the problems are used here")]
#[path = "../suite/common.rs"]
mod common;
mod counting;
mod decoding;
#[path = "../../crates/speech/tests/suite/encoded.rs"]
mod encoded;
mod files;
mod first_pass;
mod lanes;
mod lattices;
mod layers;
mod locally_normalized;
mod loss;
#[path = "../../crates/speech/tests/suite/mutants.rs"]
mod mutants;
mod normalizer;
mod recognition;
mod sessions;
mod steps;
mod streaming_recognition;
mod training;
