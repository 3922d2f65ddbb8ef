//! What the crate says of right, wrong, damaged and missing answers.
mod bars;
mod features;
mod lattices;
mod losses;
mod mlperf;
#[path = "../../../speech/tests/suite/mutants.rs"]
mod mutants;
mod program;
mod shares;
