//! The tests of this crate, a file for each of its modules; `corpora` reads real speech.

mod audio;
mod augment;
mod batching;
mod common;
mod corpora;
mod error_rate;
mod features;
mod manifest;
mod perturb;
mod tokens;
