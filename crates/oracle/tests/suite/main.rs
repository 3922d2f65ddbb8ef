//! The oracles against each other and against other programs.

mod errors;
mod golden;
mod ladder;
