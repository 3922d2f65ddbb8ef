//! Tests of the public API of the `model` crate: encoders, and MLPerf's model.

mod encoders;
mod mlperf;
mod rows;
