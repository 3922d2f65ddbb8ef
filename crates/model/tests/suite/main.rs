//! Tests of models through their public interface.

mod encoders;
mod mlperf;
mod rows;
