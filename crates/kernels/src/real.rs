//! The trait `Real` of `f32` and `f64`, with all number-type-specific kernels.
//!
//! `f32` selects a vectorized version at run time; `f64` uses plain loops, except in matrix
//! products, for references. Public functions of the crate are generic over the trait and call its
//! hidden methods: a kernel that differs between the types needs a method here.
use std::cell::RefCell;

use crate::{
    Accumulate, AlignedVec, ArcScatter, BestArcs, LambFactors, PackedLeft, PanelArcs, QuantizedArgmax,
    ViewMut, arc_scatter, dispatch, lstm_cell,
    packed::{
        Operand, OperandSource, OutputTile, RightPanels, SumOrder,
        bf16::{self, Tile, TilePanels},
        micro,
    },
    product::gates::{self, GateProduct},
    simd::{Bf16, SimdLevel},
    tanh_product::{self, NextTanh},
    weight_updates,
};
#[cfg(target_arch = "x86_64")]
use crate::{
    avx512,
    packed::{micro_avx2, micro_avx512, pack_avx2, pack_avx512},
    product::{gates_avx2, gates_avx512},
    simd::Avx512Vnni,
};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` (vectorized) or `f64` (plain loops, except in matrix products); sealed.
///
/// `f64` is for references and checks.
pub trait Real:
    sealed::Sealed
    + Copy
    + Send
    + Sync
    + PartialOrd
    + Default
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::AddAssign
    + std::ops::MulAssign
    + std::ops::Neg<Output = Self>
    + 'static
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// -inf
    const NEG_INFINITY: Self;
    /// The largest finite number.
    const MAX: Self;
    /// Gradients of scores below this are flushed to 0.
    ///
    /// `f32` (2^-100): their products would be denormal numbers, which take about 100 times as long
    /// and contribute nothing. `f64`: 0, so that references flush nothing.
    const FLUSH_THRESHOLD: Self;
    /// Returns the nearest value of this type.
    fn from_f64(value: f64) -> Self;
    /// Returns the same value as `f64`.
    fn to_f64(self) -> f64;
    /// See [`super::exp`].
    #[doc(hidden)]
    fn exp_slice(values: &mut [Self]);
    /// See [`super::tanh`].
    #[doc(hidden)]
    fn tanh_slice(values: &mut [Self]);
    /// See [`super::sigmoid`].
    #[doc(hidden)]
    fn sigmoid_slice(values: &mut [Self]);
    /// See [`super::add`].
    #[doc(hidden)]
    fn add_slice(out: &mut [Self], row: &[Self]);
    /// See [`super::dot`].
    #[doc(hidden)]
    fn dot(a: &[Self], b: &[Self]) -> Self;
    /// See [`super::add_scaled`].
    #[doc(hidden)]
    fn add_scaled(out: &mut [Self], factor: Self, row: &[Self]);
    /// Computes `out = tanh(a + b)`.
    #[doc(hidden)]
    fn tanh_sum(out: &mut [Self], a: &[Self], b: &[Self]);
    /// Computes `out += Σ rows`, row-major rows as long as `out`, in their order.
    #[doc(hidden)]
    fn add_rows(out: &mut [Self], rows: &[Self]);
    /// Adds the bias to rows of a tile and returns their statistics.
    ///
    /// For each row these are its largest element that is not NaN and `Σ exp(z - max)`: 0 for a row
    /// of -inf, NaN for a row with NaN or +inf.
    #[doc(hidden)]
    fn tile_statistics(
        tile: &mut [Self],
        width: usize,
        bias: Option<&[Self]>,
        statistics: &mut [(Self, f64)],
    );
    /// Returns the statistics of a single row.
    #[doc(hidden)]
    fn row_statistics(row: &[Self]) -> (Self, f64);
    /// Computes `out = factor · exp(z - max)`, 0 below [`Self::FLUSH_THRESHOLD`].
    ///
    /// If `z` is `None`, the scores are read from `out`, and the bias, if any, is added to them.
    #[doc(hidden)]
    fn row_softmax(out: &mut [Self], z: Option<&[Self]>, bias: Option<&[Self]>, max: Self, factor: Self);
    /// Largest magnitude of tanh addends; beyond it, prepared products would overflow.
    #[doc(hidden)]
    const MAX_TANH_ADDEND: f64;
    /// Prepares addends for [`Self::tanh_pairs`]. `f32`: `x = exp(2x)`.
    #[doc(hidden)]
    fn prepare_tanh_addends(values: &mut [Self]);
    /// Inverts [`Self::prepare_tanh_addends`], up to rounding.
    #[doc(hidden)]
    fn restore_tanh_addends(values: &mut [Self]);
    /// Computes `out = tanh(a + b)` of prepared addends.
    ///
    /// `f32`: `1 - 2 / (1 + a b)`, with an absolute error of up to 3e-7.
    #[doc(hidden)]
    fn tanh_pairs(out: &mut [Self], a: &[Self], b: &[Self]);
    /// Computes [`Self::tanh_pairs`] of a panel and an addend for each row.
    ///
    /// The panel is *k x width*, `row_addends` *k*.
    #[doc(hidden)]
    fn tanh_panel(out: &mut [Self], panel: &[Self], row_addends: &[Self]);
    /// See [`super::TanhProducts`].
    #[doc(hidden)]
    fn tanh_product(out: &mut [Self], left: &PackedLeft<Self>, hidden: &[Self], next: NextTanh<Self>);
    /// Returns the scratch bytes of a [`QuantizedArgmax`], if it is available.
    #[doc(hidden)]
    fn quantized_argmax_bytes(depth: usize, blocks: usize) -> Option<usize>;
    /// See [`QuantizedArgmax::update`]; `token` proves that the CPU has the instructions.
    #[cfg(target_arch = "x86_64")]
    #[doc(hidden)]
    fn quantized_argmax(
        token: Avx512Vnni,
        argmax: &QuantizedArgmax<Self>,
        panel_arcs: &mut [PanelArcs<Self>],
        best_arcs: &mut [BestArcs<Self>],
    );
    /// Computes `gradient *= 1 - hidden²`.
    #[doc(hidden)]
    fn tanh_slope(gradient: &mut [Self], hidden: &[Self]);
    /// See `arc_scatter.rs`.
    #[doc(hidden)]
    fn scatter_max(out: &mut [Self], arcs: ArcScatter<Self>);
    /// See `arc_scatter.rs`.
    #[doc(hidden)]
    fn scatter_exp_sum(sums: &mut [Self], max: &[Self], arcs: ArcScatter<Self>);
    /// See `arc_scatter.rs`.
    #[doc(hidden)]
    fn scatter_argmax(best: &mut [Self], from: &mut [u32], arcs: ArcScatter<Self>);
    /// See `arc_scatter.rs`.
    #[doc(hidden)]
    fn merge_self_loops(
        best: &mut [Self],
        from: &mut [u32],
        alpha: &[Self],
        blank: &[Self],
        positions: &[u32],
    ) -> Self;
    /// See `arc_scatter.rs`.
    #[doc(hidden)]
    fn gather_exp(rows: &mut [Self], shifts: &[Self], starts: &[u32], next: &[Self], sums: &mut [Self]);
    /// See [`super::ln`].
    #[doc(hidden)]
    fn ln_slice(values: &mut [Self]);
    /// Returns `self · a + b`, rounded once.
    #[doc(hidden)]
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Returns rows and columns of the micro-kernel's tile: MR, NR.
    #[doc(hidden)]
    fn tile_shape(level: SimdLevel) -> [usize; 2];
    /// Returns the number of right micro-panels that a tile covers.
    #[doc(hidden)]
    fn panels(level: SimdLevel, rows: usize) -> usize;
    /// Packs a micro-panel; see [`micro::pack`].
    ///
    /// `start`: first row or column, and first step of the sum.
    #[doc(hidden)]
    fn pack_panel(
        level: SimdLevel,
        source: &OperandSource<Self>,
        start: (usize, usize),
        panel_width: usize,
        out: &mut [Self],
    );
    /// Computes a tile of a product; see [`micro`].
    #[doc(hidden)]
    fn micro_kernel(
        level: SimdLevel,
        rows: usize,
        left: &[Self],
        right: RightPanels<Self>,
        output: OutputTile<Self>,
        prefetch: &[Self],
    );
    /// Adds the product of rows and panels of gates; see [`gates`].
    #[doc(hidden)]
    fn multiply_panels(level: SimdLevel, rows: usize, panels: usize, product: GateProduct<Self>);
    /// Returns the square root.
    #[doc(hidden)]
    fn sqrt(self) -> Self;
    /// See [`super::lamb_moments`].
    #[doc(hidden)]
    fn lamb_moments(
        weights: &[Self],
        gradient: &[Self],
        first_moment: &mut [Self],
        second_moment: &mut [Self],
        factors: &LambFactors<Self>,
    ) -> [f64; 2];
    /// See [`super::lamb_update`].
    #[doc(hidden)]
    fn lamb_update(
        weights: &mut [Self],
        first_moment: &[Self],
        second_moment: &[Self],
        rate: Self,
        factors: &LambFactors<Self>,
    );
    /// See [`super::move_average`].
    #[doc(hidden)]
    fn move_average(average: &mut [Self], values: &[Self], rate: Self);
    /// See [`super::lstm_cell_forward`].
    #[doc(hidden)]
    fn lstm_cell_forward(gates: &mut [Self], cell: &mut [Self], state: &mut [Self]);
    /// See [`super::lstm_cell_backward`].
    #[doc(hidden)]
    fn lstm_cell_backward(gates: &mut [Self], units: [&[Self]; 3], cell_gradient: &mut [Self]);
    /// Calls `work` with the packing memory of this thread.
    #[doc(hidden)]
    fn with_scratch<R>(work: impl FnOnce(&mut AlignedVec<Self>) -> R) -> R;
    /// Packs a tile of a bf16 operand; `position`: its first row and column in the source.
    #[doc(hidden)]
    fn pack_tile(
        level: Bf16,
        source: &OperandSource<Self>,
        position: (usize, usize),
        operand: Operand,
        tile: &mut Tile,
    );
    /// Computes `out (=|+=) left · right` over a number of tiles of the sum.
    #[doc(hidden)]
    fn bf16_product(
        level: Bf16,
        out: ViewMut<Self>,
        operands: (TilePanels, TilePanels),
        step_tiles: (usize, SumOrder),
        accumulate: Accumulate,
    );
    /// Packs the high and low tile of a split operand; see [`SplitBf16Format`].
    ///
    /// [`SplitBf16Format`]: crate::packed::bf16::SplitBf16Format
    #[doc(hidden)]
    fn pack_split_tile(
        level: Bf16,
        source: &OperandSource<Self>,
        position: (usize, usize),
        operand: Operand,
        tiles: [&mut Tile; 2],
    );
    /// Computes `out (=|+=) left · right` over `step_tiles` pairs of tiles of the sum.
    #[doc(hidden)]
    fn split_bf16_product(
        level: Bf16,
        out: ViewMut<Self>,
        operands: (TilePanels, TilePanels),
        step_tiles: usize,
        accumulate: Accumulate,
    );
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;
    const MAX: f32 = f32::MAX;
    const FLUSH_THRESHOLD: f32 = super::math::FLUSH_THRESHOLD;
    fn from_f64(value: f64) -> f32 {
        value as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn exp_slice(values: &mut [f32]) {
        dispatch::exp(SimdLevel::best(), values);
    }
    fn tanh_slice(values: &mut [f32]) {
        dispatch::tanh(SimdLevel::best(), values);
    }
    fn sigmoid_slice(values: &mut [f32]) {
        dispatch::sigmoid(SimdLevel::best(), values);
    }
    fn add_slice(out: &mut [f32], row: &[f32]) {
        dispatch::add(SimdLevel::best(), out, row);
    }
    fn dot(a: &[f32], b: &[f32]) -> f32 {
        dispatch::dot(SimdLevel::best(), a, b)
    }
    fn add_scaled(out: &mut [f32], factor: f32, row: &[f32]) {
        dispatch::add_scaled(SimdLevel::best(), out, factor, row);
    }
    fn tanh_sum(out: &mut [f32], a: &[f32], b: &[f32]) {
        dispatch::tanh_sum(SimdLevel::best(), out, a, b);
    }
    fn add_rows(out: &mut [f32], rows: &[f32]) {
        dispatch::add_rows(SimdLevel::best(), out, rows);
    }
    fn tile_statistics(tile: &mut [f32], width: usize, bias: Option<&[f32]>, statistics: &mut [(f32, f64)]) {
        dispatch::tile_statistics(SimdLevel::best(), tile, width, bias, statistics);
    }
    fn row_statistics(row: &[f32]) -> (f32, f64) {
        dispatch::row_statistics(SimdLevel::best(), row)
    }
    fn row_softmax(out: &mut [f32], z: Option<&[f32]>, bias: Option<&[f32]>, max: f32, factor: f32) {
        dispatch::row_softmax(SimdLevel::best(), out, z, bias, max, factor);
    }
    const MAX_TANH_ADDEND: f64 = 21.0;
    fn prepare_tanh_addends(values: &mut [f32]) {
        values.iter_mut().for_each(|x| *x += *x);
        dispatch::exp(SimdLevel::best(), values);
    }
    fn restore_tanh_addends(values: &mut [f32]) {
        dispatch::ln(SimdLevel::best(), values);
        values.iter_mut().for_each(|x| *x *= 0.5);
    }
    fn tanh_pairs(out: &mut [f32], a: &[f32], b: &[f32]) {
        dispatch::tanh_pairs(SimdLevel::best(), out, a, b);
    }
    fn tanh_panel(out: &mut [f32], panel: &[f32], row_addends: &[f32]) {
        dispatch::tanh_panel(SimdLevel::best(), out, panel, row_addends);
    }
    fn tanh_product(out: &mut [f32], left: &PackedLeft<f32>, hidden: &[f32], next: NextTanh<f32>) {
        tanh_product::product_f32(SimdLevel::best(), out, left, hidden, next);
    }
    fn quantized_argmax_bytes(depth: usize, blocks: usize) -> Option<usize> {
        #[cfg(target_arch = "x86_64")]
        return Avx512Vnni::detect().map(|_| avx512::quantized_argmax::scratch_bytes(depth, blocks));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
    #[cfg(target_arch = "x86_64")]
    fn quantized_argmax(
        token: Avx512Vnni,
        argmax: &QuantizedArgmax<f32>,
        panel_arcs: &mut [PanelArcs<f32>],
        best_arcs: &mut [BestArcs<f32>],
    ) {
        Self::with_scratch(|scratch| {
            avx512::quantized_argmax::update(token, scratch, argmax, panel_arcs, best_arcs)
        });
    }
    fn tanh_slope(gradient: &mut [f32], hidden: &[f32]) {
        dispatch::tanh_slope(SimdLevel::best(), gradient, hidden);
    }
    fn scatter_max(out: &mut [f32], arcs: ArcScatter<f32>) {
        dispatch::scatter_max(SimdLevel::best(), out, arcs);
    }
    fn scatter_exp_sum(sums: &mut [f32], max: &[f32], arcs: ArcScatter<f32>) {
        dispatch::scatter_exp_sum(SimdLevel::best(), sums, max, arcs);
    }
    fn scatter_argmax(best: &mut [f32], from: &mut [u32], arcs: ArcScatter<f32>) {
        dispatch::scatter_argmax(SimdLevel::best(), best, from, arcs);
    }
    fn merge_self_loops(
        best: &mut [f32],
        from: &mut [u32],
        alpha: &[f32],
        blank: &[f32],
        positions: &[u32],
    ) -> f32 {
        dispatch::merge_self_loops(SimdLevel::best(), best, from, alpha, blank, positions)
    }
    fn gather_exp(rows: &mut [f32], shifts: &[f32], starts: &[u32], next: &[f32], sums: &mut [f32]) {
        dispatch::gather_exp(SimdLevel::best(), rows, shifts, starts, next, sums);
    }
    fn ln_slice(values: &mut [f32]) {
        dispatch::ln(SimdLevel::best(), values);
    }
    #[inline(always)]
    fn mul_add(self, a: f32, b: f32) -> f32 {
        self.mul_add(a, b)
    }
    fn tile_shape(level: SimdLevel) -> [usize; 2] {
        match level {
            SimdLevel::Portable => micro::PORTABLE,
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(_) => [micro_avx2::MR, 16],
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(_) => [micro_avx512::MR, 32],
        }
    }
    fn panels(level: SimdLevel, rows: usize) -> usize {
        match level {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(_) => micro_avx512::panels(rows),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(_) => micro_avx2::panels(rows),
            SimdLevel::Portable => 1,
        }
    }
    fn pack_panel(
        level: SimdLevel,
        source: &OperandSource<f32>,
        start: (usize, usize),
        panel_width: usize,
        out: &mut [f32],
    ) {
        match level {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(token) => pack_avx512::pack(token, source, start, panel_width, out),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(token) => pack_avx2::pack(token, source, start, panel_width, out),
            _ => micro::pack(source, start, panel_width, out),
        }
    }
    fn micro_kernel(
        level: SimdLevel,
        rows: usize,
        left: &[f32],
        right: RightPanels<f32>,
        output: OutputTile<f32>,
        prefetch: &[f32],
    ) {
        match level {
            SimdLevel::Portable => micro::portable(rows, left, right, output),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(token) => micro_avx2::kernel_f32(token, rows, left, right, output),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(token) => micro_avx512::kernel_f32(token, rows, left, right, output, prefetch),
        }
    }
    fn multiply_panels(level: SimdLevel, rows: usize, panels: usize, product: GateProduct<f32>) {
        match level {
            SimdLevel::Portable => gates::multiply_panels::<f32, false>(rows, panels, product),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(token) => gates_avx2::multiply_panels(token, rows, panels, product),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(token) => gates_avx512::multiply_panels(token, rows, panels, product),
        }
    }
    fn sqrt(self) -> f32 {
        self.sqrt()
    }
    fn lamb_moments(
        w: &[f32],
        g: &[f32],
        m: &mut [f32],
        v: &mut [f32],
        factors: &LambFactors<f32>,
    ) -> [f64; 2] {
        weight_updates::moments(w, g, m, v, factors)
    }
    fn lamb_update(w: &mut [f32], m: &[f32], v: &[f32], rate: f32, factors: &LambFactors<f32>) {
        weight_updates::update(w, m, v, rate, factors);
    }
    fn move_average(average: &mut [f32], values: &[f32], rate: f32) {
        weight_updates::average(average, values, rate);
    }
    fn lstm_cell_forward(gates: &mut [f32], cell: &mut [f32], state: &mut [f32]) {
        dispatch::lstm_cell_forward(SimdLevel::best(), gates, cell, state);
    }
    fn lstm_cell_backward(gates: &mut [f32], units: [&[f32]; 3], cell_gradient: &mut [f32]) {
        dispatch::lstm_cell_backward(SimdLevel::best(), gates, units, cell_gradient);
    }
    fn with_scratch<R>(work: impl FnOnce(&mut AlignedVec<f32>) -> R) -> R {
        thread_local!(static SCRATCH: RefCell<AlignedVec<f32>> = RefCell::default());
        SCRATCH.with_borrow_mut(work)
    }
    fn pack_tile(
        level: Bf16,
        source: &OperandSource<f32>,
        position: (usize, usize),
        operand: Operand,
        tile: &mut Tile,
    ) {
        bf16::pack_tile_f32(level, source, position, operand, tile);
    }
    fn bf16_product(
        level: Bf16,
        out: ViewMut<f32>,
        operands: (TilePanels, TilePanels),
        step_tiles: (usize, SumOrder),
        accumulate: Accumulate,
    ) {
        let (left, right) = operands;
        bf16::product_f32(level, out, left, right, step_tiles, accumulate);
    }
    fn pack_split_tile(
        level: Bf16,
        source: &OperandSource<f32>,
        position: (usize, usize),
        operand: Operand,
        tiles: [&mut Tile; 2],
    ) {
        bf16::split::pack_split_tile_f32(level, source, position, operand, tiles);
    }
    fn split_bf16_product(
        level: Bf16,
        out: ViewMut<f32>,
        operands: (TilePanels, TilePanels),
        step_tiles: usize,
        accumulate: Accumulate,
    ) {
        let (left, right) = operands;
        bf16::split::product_f32(level, out, left, right, step_tiles, accumulate);
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;
    const MAX: f64 = f64::MAX;
    const FLUSH_THRESHOLD: f64 = 0.0;
    fn from_f64(value: f64) -> f64 {
        value
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn exp_slice(values: &mut [f64]) {
        values.iter_mut().for_each(|x| *x = x.exp());
    }
    fn tanh_slice(values: &mut [f64]) {
        values.iter_mut().for_each(|x| *x = x.tanh());
    }
    fn sigmoid_slice(values: &mut [f64]) {
        values.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
    }
    fn add_slice(out: &mut [f64], row: &[f64]) {
        out.iter_mut().zip(row).for_each(|(o, x)| *o += x);
    }
    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }
    fn add_scaled(out: &mut [f64], factor: f64, row: &[f64]) {
        out.iter_mut().zip(row).for_each(|(o, x)| *o += factor * x);
    }
    fn tanh_sum(out: &mut [f64], a: &[f64], b: &[f64]) {
        out.iter_mut().zip(a.iter().zip(b)).for_each(|(o, (a, b))| *o = (a + b).tanh());
    }
    fn add_rows(out: &mut [f64], rows: &[f64]) {
        rows.chunks_exact(out.len().max(1)).for_each(|row| Self::add_slice(out, row));
    }
    fn tile_statistics(tile: &mut [f64], width: usize, bias: Option<&[f64]>, statistics: &mut [(f64, f64)]) {
        for (row, statistic) in tile.chunks_exact_mut(width).zip(statistics) {
            bias.into_iter().for_each(|bias| Self::add_slice(row, bias));
            *statistic = Self::row_statistics(row);
        }
    }
    fn row_statistics(row: &[f64]) -> (f64, f64) {
        let max = row.iter().fold(f64::NEG_INFINITY, |m, &z| if z > m { z } else { m });
        let masked = max == f64::NEG_INFINITY && !row.iter().any(|z| z.is_nan());
        (max, if masked { 0.0 } else { row.iter().map(|&z| (z - max).exp()).sum() })
    }
    fn row_softmax(out: &mut [f64], z: Option<&[f64]>, bias: Option<&[f64]>, max: f64, factor: f64) {
        for (class, out) in out.iter_mut().enumerate() {
            let z = z.map_or_else(|| *out + bias.map_or(0.0, |bias| bias[class]), |z| z[class]);
            *out = factor * (z - max).exp();
        }
    }
    const MAX_TANH_ADDEND: f64 = f64::INFINITY;
    fn prepare_tanh_addends(_: &mut [f64]) {}
    fn restore_tanh_addends(_: &mut [f64]) {}
    fn tanh_pairs(out: &mut [f64], a: &[f64], b: &[f64]) {
        Self::tanh_sum(out, a, b);
    }
    fn tanh_panel(out: &mut [f64], panel: &[f64], row_addends: &[f64]) {
        let width = panel.len() / row_addends.len().max(1);
        let steps = out.chunks_exact_mut(width.max(1)).zip(panel.chunks_exact(width.max(1)));
        for ((out, panel), b) in steps.zip(row_addends) {
            out.iter_mut().zip(panel).for_each(|(out, a)| *out = (a + b).tanh());
        }
    }
    fn tanh_product(out: &mut [f64], left: &PackedLeft<f64>, hidden: &[f64], next: NextTanh<f64>) {
        tanh_product::product_then_tanh(SimdLevel::best(), out, left, hidden, next);
    }
    fn quantized_argmax_bytes(_: usize, _: usize) -> Option<usize> {
        None
    }
    #[cfg(target_arch = "x86_64")]
    fn quantized_argmax(
        _: Avx512Vnni,
        _: &QuantizedArgmax<f64>,
        _: &mut [PanelArcs<f64>],
        _: &mut [BestArcs<f64>],
    ) {
        unreachable!("no quantized search exists for f64");
    }
    fn tanh_slope(gradient: &mut [f64], hidden: &[f64]) {
        gradient.iter_mut().zip(hidden).for_each(|(g, &h)| *g *= 1.0 - h * h);
    }
    fn scatter_max(out: &mut [f64], arcs: ArcScatter<f64>) {
        arc_scatter::scatter_max(out, arcs);
    }
    fn scatter_exp_sum(sums: &mut [f64], max: &[f64], arcs: ArcScatter<f64>) {
        arc_scatter::scatter_exp_sum(sums, max, arcs, f64::exp);
    }
    fn scatter_argmax(best: &mut [f64], from: &mut [u32], arcs: ArcScatter<f64>) {
        arc_scatter::scatter_argmax(best, from, arcs);
    }
    fn merge_self_loops(
        best: &mut [f64],
        from: &mut [u32],
        alpha: &[f64],
        blank: &[f64],
        positions: &[u32],
    ) -> f64 {
        arc_scatter::merge_self_loops(best, from, alpha, blank, positions)
    }
    fn gather_exp(rows: &mut [f64], shifts: &[f64], starts: &[u32], next: &[f64], sums: &mut [f64]) {
        arc_scatter::gather_exp(rows, shifts, starts, next, sums, f64::exp);
    }
    fn ln_slice(values: &mut [f64]) {
        values.iter_mut().for_each(|x| *x = x.ln());
    }
    #[inline(always)]
    fn mul_add(self, a: f64, b: f64) -> f64 {
        self.mul_add(a, b)
    }
    fn tile_shape(level: SimdLevel) -> [usize; 2] {
        match level {
            SimdLevel::Portable => micro::PORTABLE,
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(_) => [micro_avx2::MR, 8],
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(_) => [micro_avx512::MR, 16],
        }
    }
    fn panels(level: SimdLevel, rows: usize) -> usize {
        match level {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(_) => micro_avx512::panels(rows),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(_) => micro_avx2::panels(rows),
            SimdLevel::Portable => 1,
        }
    }
    fn pack_panel(
        level: SimdLevel,
        source: &OperandSource<f64>,
        start: (usize, usize),
        panel_width: usize,
        out: &mut [f64],
    ) {
        let _ = level;
        micro::pack(source, start, panel_width, out);
    }
    fn micro_kernel(
        level: SimdLevel,
        rows: usize,
        left: &[f64],
        right: RightPanels<f64>,
        output: OutputTile<f64>,
        prefetch: &[f64],
    ) {
        match level {
            SimdLevel::Portable => micro::portable(rows, left, right, output),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(token) => micro_avx2::kernel_f64(token, rows, left, right, output),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(token) => micro_avx512::kernel_f64(token, rows, left, right, output, prefetch),
        }
    }
    fn multiply_panels(_: SimdLevel, rows: usize, panels: usize, product: GateProduct<f64>) {
        gates::multiply_panels::<f64, false>(rows, panels, product);
    }
    fn sqrt(self) -> f64 {
        self.sqrt()
    }
    fn lamb_moments(
        w: &[f64],
        g: &[f64],
        m: &mut [f64],
        v: &mut [f64],
        factors: &LambFactors<f64>,
    ) -> [f64; 2] {
        weight_updates::moments(w, g, m, v, factors)
    }
    fn lamb_update(w: &mut [f64], m: &[f64], v: &[f64], rate: f64, factors: &LambFactors<f64>) {
        weight_updates::update(w, m, v, rate, factors);
    }
    fn move_average(average: &mut [f64], values: &[f64], rate: f64) {
        weight_updates::average(average, values, rate);
    }
    fn lstm_cell_forward(gates: &mut [f64], cell: &mut [f64], state: &mut [f64]) {
        lstm_cell::forward(gates, cell, state);
    }
    fn lstm_cell_backward(gates: &mut [f64], units: [&[f64]; 3], cell_gradient: &mut [f64]) {
        lstm_cell::backward(gates, units, cell_gradient);
    }
    fn with_scratch<R>(work: impl FnOnce(&mut AlignedVec<f64>) -> R) -> R {
        thread_local!(static SCRATCH: RefCell<AlignedVec<f64>> = RefCell::default());
        SCRATCH.with_borrow_mut(work)
    }
    fn pack_tile(
        _: Bf16,
        source: &OperandSource<f64>,
        position: (usize, usize),
        operand: Operand,
        tile: &mut Tile,
    ) {
        bf16::pack_tile(source, position, operand, tile);
    }
    fn bf16_product(
        _: Bf16,
        out: ViewMut<f64>,
        operands: (TilePanels, TilePanels),
        step_tiles: (usize, SumOrder),
        accumulate: Accumulate,
    ) {
        let (left, right) = operands;
        bf16::product_plain(out, left, right, step_tiles.0, accumulate);
    }
    fn pack_split_tile(
        _: Bf16,
        source: &OperandSource<f64>,
        position: (usize, usize),
        operand: Operand,
        tiles: [&mut Tile; 2],
    ) {
        bf16::split::pack_split_tile(source, position, operand, tiles);
    }
    fn split_bf16_product(
        _: Bf16,
        out: ViewMut<f64>,
        operands: (TilePanels, TilePanels),
        step_tiles: usize,
        accumulate: Accumulate,
    ) {
        let (left, right) = operands;
        bf16::split::product_plain(out, left, right, step_tiles, accumulate);
    }
}
