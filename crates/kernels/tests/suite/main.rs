//! Tests of the kernels' public API: linear layer, matrix products, packed operands.

mod affine;
mod common;
mod packed;
mod products;
