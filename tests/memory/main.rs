//! What losses, and readers of files, allocate, counted by an allocator of this program's own: one test at a time, see [`counting::turn`].

#[allow(dead_code, reason = "problems alone are wanted here")]
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
mod live;
mod local_weights;
mod loss;
#[path = "../../crates/speech/tests/suite/mutants.rs"]
mod mutants;
mod normalizer;
mod recognition;
mod sessions;
mod sound_files;
mod steps;
mod streams;
mod training;
