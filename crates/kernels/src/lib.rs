//! Numeric kernels of the toolkit, over slices: products, vector mathematics, buffers.
//!
//! - `product`, [`packed`]: [`product()`] of any two matrices; [`product_packed`] and
//!   [`product_of_parts`] of packed ones ([`PackedRight`], [`PackedLeft`]); operand formats of the
//!   loss engine. All use the same micro-kernels (terms of BLIS).
//! - `affine`: [`Affine`], a linear layer over rows, forward and backward.
//! - `lstm_cell`, `product/gates`: [`lstm_cell_forward`] and [`lstm_cell_backward`] of one frame;
//!   [`PackedRecurrentWeight`], the recurrent product.
//! - `activation`, `tanh_product`: [`Activation`] of the joint network; [`TanhProducts`], its
//!   scores with overlapped tanh.
//! - `row_functions`: [`layer_norm`], [`silu`], [`add_exp`] and other functions of encoder rows.
//! - `arc_scatter`, `quantized_argmax`: [`ArcScatter`] over the label arcs of a recognition
//!   lattice; [`QuantizedArgmax`], a Viterbi step.
//! - [`scaled`]: rows of scaled numbers, for sums over transducer lattices.
//! - `weight_updates`: [`adam_update`], [`lamb_update`], [`move_average`].
//! - `math`, `avx512`, `dispatch`: vector functions ([`exp`], [`tanh`], ...). One portable source
//!   is compiled for several instruction sets and selected at run time; AVX-512 versions are
//!   hand-written.
//! - `real`, `simd`: [`Real`], the trait of `f32` and `f64`; detection of instruction sets.
//! - `parts`, `tiles`: [`par_for`], the parallel loop of all crates; division of slices and
//!   matrices into the parts of its tasks.
//! - `buffers`, `buffer_pool`, `worker_slots`, `scratch_req`: [`AlignedVec`], [`BufferPool`] and
//!   [`WorkerSlots`] reuse memory; [`ScratchReq`] counts it.
//! - `environment`: [`set_default_variable`] sets the number of threads of a library.
//! - `text`: [`Excerpt`], [`Printable`] and [`ShortFloat`] in error messages.
//!
//! Start with [`View`], [`Real`] and [`ScratchReq`], then read [`product()`] and [`par_for`].
//!
//! Instruction sets are detected once (`simd.rs`); functions that need one take a token that only
//! detection creates. `PANDA_MACHINE=avx512`, `avx2` or `portable` disables wider ones.
//!
//! ```
//! use kernels::{Accumulate, View, ViewMut, product};
//!
//! let (a, b) = ([1.0f32, 2.0], [3.0f32, 4.0]);
//! let mut out = [0.0f32];
//! let (a, b) = (View::new(&a, 1, 2), View::new(&b, 2, 1));
//! product(ViewMut::new(&mut out, 1, 1), a, b, 1.0, Accumulate::Replace);
//! assert_eq!(out, [11.0]);
//! ```

mod activation;
mod affine;
mod arc_scatter;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod buffer_pool;
mod buffers;
mod dispatch;
mod environment;
mod lstm_cell;
mod math;
pub mod packed;
mod parts;
mod product;
mod quantized_argmax;
mod real;
mod row_functions;
pub mod scaled;
mod scratch_req;
mod simd;
mod tanh_product;
mod text;
mod tiles;
mod weight_updates;
mod worker_slots;

pub use activation::Activation;
pub use affine::{Affine, AffineTasks};
pub use arc_scatter::ArcScatter;
pub use buffer_pool::{BufferPool, PooledBuffer, acquire};
pub use buffers::{
    AlignedVec, ReusableBuffer, alloc, ensure_capacity, ensure_len, release_excess, release_freed_memory,
    reset, zeros,
};
pub use environment::set_default_variable;
pub use lstm_cell::{lstm_cell_backward, lstm_cell_forward};
pub use packed::transpose;
pub use parts::{
    Parts, for_each_sequential, items_mut, par_find, par_for, parts, parts_mut, range_parts, run_in_pool,
};
pub use product::{
    Accumulate, COLUMN_MULTIPLE, MAX_GATE_ROWS, PackedLeft, PackedRecurrentWeight, PackedRight,
    UNITS_PER_STRIP, View, ViewMut, packing_bytes, packing_bytes_for, product, product_in, product_of_parts,
    product_packed,
};
pub use quantized_argmax::{BestArcs, PanelArcs, QuantizedArgmax, StateDeviation};
pub use real::Real;
pub use row_functions::{
    LAYER_NORM_EPSILON, add_exp, add_glu, add_pair, add_relu, add_silu, layer_norm, silu, weighted_sum,
};
pub use scratch_req::ScratchReq;
pub use simd::check_simd_override;
pub use tanh_product::{PANEL_COLUMNS, TanhAddends, TanhProducts};
pub use text::{Excerpt, Printable, ShortFloat};
pub use tiles::{TileMut, Tiling, tiles_mut};
pub use weight_updates::{
    AdamFactors, LambFactors, adam_update, lamb_moments, lamb_update, move_average, sum_of_squares,
};
pub use worker_slots::{WorkerSlots, lock};

/// Computes `exp(x)` in place; -inf gives exactly 0, and NaN stays NaN.
///
/// `f32`: at most 2 ULP; results below `2.5e-38` are flushed to 0.
pub fn exp<F: Real>(values: &mut [F]) {
    F::exp_slice(values);
}

/// Computes `tanh(x)` in place; NaN stays NaN. `f32`: at most 4 ULP.
pub fn tanh<F: Real>(values: &mut [F]) {
    F::tanh_slice(values);
}

/// Computes `1 / (1 + exp(-x))` in place; NaN stays NaN.
///
/// `f32`: at most 4 ULP above `2.5e-38`.
pub fn sigmoid<F: Real>(values: &mut [F]) {
    F::sigmoid_slice(values);
}

/// Computes `ln(x)` in place; 0 gives -inf, negative numbers NaN.
///
/// NaN stays NaN. `f32`: at most 3 ULP, or 2e-7 near 1; denormal numbers count as 0.
pub fn ln<F: Real>(values: &mut [F]) {
    F::ln_slice(values);
}

/// Returns `Σ a b`, in `f32` for `f32`; the order of the sum depends on the machine.
///
/// # Panics
/// If `b` is shorter.
pub fn dot<F: Real>(a: &[F], b: &[F]) -> F {
    assert!(a.len() <= b.len(), "dot: expected at least {} elements, found {}", a.len(), b.len());
    F::dot(a, b)
}

/// Computes `out += factor · row`.
///
/// # Panics
/// If the lengths differ.
pub fn add_scaled<F: Real>(out: &mut [F], factor: F, row: &[F]) {
    assert_eq!(out.len(), row.len(), "add_scaled: slices of different lengths");
    F::add_scaled(out, factor, row);
}

/// Computes `out += row`.
///
/// # Panics
/// If the lengths differ.
pub fn add<F: Real>(out: &mut [F], row: &[F]) {
    assert_eq!(out.len(), row.len(), "add: slices of different lengths");
    F::add_slice(out, row);
}
