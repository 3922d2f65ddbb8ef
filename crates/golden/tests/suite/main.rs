//! Reports on correct, wrong, corrupted and missing values.
mod features;
mod lattices;
mod losses;
mod mlperf;
#[path = "../../../speech/tests/suite/mutants.rs"]
mod mutants;
mod program;
mod tolerance_ratios;
mod tolerances;
