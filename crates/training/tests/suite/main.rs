//! Tests of recipes, checkpoints and runs through the public interface of training.

mod averages;
mod bad_items;
mod batches;
mod checkpoints;
mod encoders;
mod extending;
mod fuzzing;
mod lattices;
mod learning;
mod live;
mod memory_plan;
mod mlperf;
#[path = "../../../speech/tests/suite/mutants.rs"]
mod mutants;
mod own_parts;
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
mod tfevents;
mod toy;
