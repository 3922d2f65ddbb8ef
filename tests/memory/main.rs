//! Memory tests of losses, models and file readers, with a counting allocator.
//!
//! Most tests compare measured with planned bytes. The allocator counts for the whole process, so
//! tests run one at a time: [`counting_allocator::exclusive`].

mod audio_files;
mod audio_streams;
mod counting_allocator;
mod decoding;
#[path = "../../crates/speech/tests/suite/encoded.rs"]
mod encoded;
mod files;
mod first_pass;
mod inference_models;
mod lattice_recursion;
mod lattice_workspaces;
mod layers;
mod locally_normalized;
mod loss;
#[allow(dead_code, reason = "only the problems are used here")]
#[path = "../suite/loss_problem.rs"]
mod loss_problem;
mod loss_sessions;
#[path = "../../crates/speech/tests/suite/mutants.rs"]
mod mutants;
mod normalizer;
mod pretrained_files;
#[allow(dead_code, reason = "only some helpers are used here")]
#[path = "../../crates/model/tests/suite/pretrained_models.rs"]
mod pretrained_models;
mod recognition_lattices;
mod steps;
mod streaming_recognition;
mod training;
