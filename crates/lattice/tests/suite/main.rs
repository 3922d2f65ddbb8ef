//! The tests of this crate.

mod search;
mod tiny;
