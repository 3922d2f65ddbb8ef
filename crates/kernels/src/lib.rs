//! Numeric kernels over slices: matrix products, vector mathematics, buffers and scratch accounting.
//!
//! - [`product`] multiplies any two matrices, [`product_packed`] by one that was packed once, [`product_of_parts`] parts of
//!   two, and [`packed`] operands that are packed on either side: one set of micro-kernels, in the terms of BLIS.
//! - [`Affine`] is a linear layer over rows, forward and backward.
//! - The vector functions ([`exp`], [`tanh`], ...) are one portable source, compiled once for each instruction set and chosen
//!   at run time (`dispatch.rs`), and by hand for AVX-512.
//! - [`scaled`] has the rows of scaled numbers that lattices are summed with.
//! - [`par_for`] is the parallel loop of all crates.
//! - [`BufferPool`] and [`AlignedVec`] keep memory from call to call; [`ScratchReq`] counts it.
//!
//! Instruction sets are detected once (`simd.rs`); a function that needs one takes a token that only detection creates.
//! `PANDA_MACHINE=avx2` or `portable` in the environment disables wider instructions.
//!
//! ```
//! use kernels::{Accumulate, View, ViewMut, product};
//!
//! let (a, b) = ([1.0f32, 2.0], [3.0f32, 4.0]);
//! let mut out = [0.0f32];
//! product(ViewMut::new(&mut out, 1, 1), View::new(&a, 1, 2), View::new(&b, 2, 1), 1.0, Accumulate::Replace);
//! assert_eq!(out, [11.0]);
//! ```

mod activation;
mod affine;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod buffer_pool;
mod buffers;
mod cell;
mod dispatch;
mod fan;
mod math;
pub mod packed;
mod parts;
mod product;
mod real;
pub mod scaled;
mod scratch_req;
mod screen;
mod simd;
mod tanh_product;
mod text;
mod tiles;
mod worker_slots;

pub use activation::Activation;
pub use affine::{Affine, AffineTasks};
pub use buffer_pool::{BufferPool, PooledBuffer, acquire};
pub use buffers::{
    AlignedVec, ReusableBuffer, alloc, ensure_capacity, ensure_len, release_excess, release_freed_memory,
    reset, zeros,
};
pub use cell::{cell_backward, cell_forward};
pub use fan::Fan;
pub use packed::transpose;
pub use parts::{
    ItemsMut, Parts, RangeParts, SliceParts, SlicePartsMut, for_each_sequential, install, items_mut,
    par_find, par_for, parts, parts_mut, runs,
};
pub use product::{
    Accumulate, COLUMNS, PackedGates, PackedLeft, PackedRight, ROWS, UNITS, View, ViewMut, packing_bytes,
    packing_bytes_for, product, product_in, product_of_parts, product_packed,
};
pub use real::Real;
pub use scratch_req::ScratchReq;
pub use screen::{Screen, Sources, Spread, Winners};
pub use simd::check_simd_override;
pub use tanh_product::{Following, PANEL, TanhAddends, TanhProducts};
pub use text::{Brief, Excerpt, Printable};
pub use tiles::{TileMut, TilesMut, Tiling, tiles_mut};
pub use worker_slots::{WorkerSlots, lock};

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

/// `x = ln(x)` for every element; 0 gives -inf, what is negative NaN, and NaN stays NaN. `f32`: at most 3 ULP, or 2e-7 beside 1;
/// denormal numbers count as 0.
pub fn ln<F: Real>(values: &mut [F]) {
    F::ln_slice(values);
}

/// `Σ a b`, in an order of its own for each machine. `f32` throughout for `f32`.
///
/// # Panics
/// If `b` is shorter.
pub fn dot<F: Real>(a: &[F], b: &[F]) -> F {
    assert!(a.len() <= b.len(), "dot: a second slice of {} for {}", b.len(), a.len());
    F::dot(a, b)
}

/// `out += factor · row`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn add_scaled<F: Real>(out: &mut [F], factor: F, row: &[F]) {
    assert_eq!(out.len(), row.len(), "add_scaled: both slices must have one length");
    F::add_scaled(out, factor, row);
}

/// `out += row`, element by element.
///
/// # Panics
/// If the lengths differ.
pub fn add<F: Real>(out: &mut [F], row: &[F]) {
    assert_eq!(out.len(), row.len(), "add: both slices must have one length");
    F::add_slice(out, row);
}
