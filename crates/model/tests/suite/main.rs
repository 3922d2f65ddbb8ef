//! The tests of models as a user sees them.

mod encoders;
mod mlperf;
mod rows;
