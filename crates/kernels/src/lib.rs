//! The numeric floor: matrix products, vector mathematics, rows of scaled numbers and large buffers, over slices.
//!
//! The normaliser's products are [`packed`]: kernels of our own over factors that are packed once. [`product`] is the
//! one door to the matrix library, for everything else. The vector functions are one portable source, compiled several times
//! and chosen at run time (`dispatch.rs`), and by hand for AVX-512. [`scaled`] has the rows that lattices are summed with.
//! All `unsafe` of the workspace is in this crate.
#![warn(missing_docs)]
#![deny(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx512;
mod dispatch;
mod features;
mod lines;
mod math;
pub mod packed;
mod pages;
mod product;
mod real;
pub mod scaled;

pub use lines::{Lines, grow};
pub use pages::{filled, zeros};
pub use product::{Accumulate, PackedRight, View, ViewMut, packing_bytes, product, product_packed};
pub use real::Real;

/// `x = exp(x)` for every element; -inf gives exactly 0 and NaN stays NaN.
///
/// `f32`: at most 2 ULP; results below `2.5e-38` are flushed to 0.
pub fn exp<F: Real>(values: &mut [F]) {
    F::exp_slice(values);
}

/// `x = tanh(x)` for every element; NaN stays NaN. `f32`: at most 4 ULP.
pub fn tanh<F: Real>(values: &mut [F]) {
    F::tanh_slice(values);
}

/// `x = 1 / (1 + exp(-x))` for every element; NaN stays NaN. `f32`: at most 4 ULP above `2.5e-38`.
pub fn sigmoid<F: Real>(values: &mut [F]) {
    F::sigmoid_slice(values);
}

/// `out += row`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn add<F: Real>(out: &mut [F], row: &[F]) {
    assert_eq!(out.len(), row.len(), "add: both slices must have one length");
    F::add_slice(out, row);
}
