//! Tests of recognition through the public interface of the crate.

#[allow(dead_code)]
#[path = "../../../model/tests/suite/rows.rs"]
mod rows;
mod streaming;
