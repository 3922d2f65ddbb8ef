//! The tests of this crate: the normaliser itself, its plan, its products in bf16.

mod normaliser;
mod precision;
