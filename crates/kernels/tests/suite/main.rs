//! Tests of the public API: linear layer, matrix products, and packed operands.

mod affine;
mod common;
mod packed;
mod products;
