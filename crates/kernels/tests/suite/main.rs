//! Tests of the public API: the affine layer, products, and packed operands.

mod affine;
mod common;
mod packed;
mod products;
