//! Tests of recipes, checkpoints and runs through the public interface of training.

mod adapters;
mod adapting;
mod averages;
mod bad_items;
mod batches;
mod checkpoints;
mod constants;
mod coverage;
mod ctc_models;
mod custom_parts;
mod encoder_cache;
mod encoders;
mod extending;
mod fuzzing;
mod lattices;
mod learning;
mod memory_plan;
mod mlperf;
#[path = "../../../speech/tests/suite/mutants.rs"]
mod mutants;
mod pause_model;
mod presets;
mod pretrained;
mod rank_differences;
mod rank_runs;
mod recipes;
#[allow(dead_code)]
#[path = "../../../model/tests/suite/rows.rs"]
mod rows;
mod runs;
mod shards;
mod silence;
mod steps;
mod streamed;
mod streaming_recognition;
mod tfevents;
mod toy;
