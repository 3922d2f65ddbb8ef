//! Tests of the normalizer, and of its products in bf16.

mod normalizer;
mod precision;
