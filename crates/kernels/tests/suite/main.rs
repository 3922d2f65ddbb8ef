//! The tests of the numeric floor as its users see it: the layer, products packed and not, packed operands in parts.

mod affine;
mod common;
mod packed;
mod products;
