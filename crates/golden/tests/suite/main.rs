//! Tests that `golden` passes correct values and rejects wrong or missing ones.
mod features;
mod lattices;
mod losses;
mod mlperf;
#[path = "../../../speech/tests/suite/mutants.rs"]
mod mutants;
mod program;
mod tolerance_ratios;
mod tolerances;
