//! The tests of recognition as a user sees it.

#[allow(dead_code)]
#[path = "../../../model/tests/suite/rows.rs"]
mod rows;
mod streaming;
