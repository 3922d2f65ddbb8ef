//! Tests of the public API of the `model` crate: encoders, MLPerf's model, import and export.

mod adapters;
mod encoders;
mod fuzzing;
mod import;
mod import_errors;
mod inference_models;
mod mlperf;
#[path = "../../../speech/tests/suite/mutants.rs"]
mod mutants;
mod packed_encoders;
mod pretrained_models;
mod quantized_checkpoints;
mod quantized_encoders;
mod rows;
