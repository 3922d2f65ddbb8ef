//! The two floating-point types that the rows may have.
use std::cell::RefCell;

use crate::{
    Accumulate, AlignedVec, Fan, Following, PackedLeft, Screen, Sources, ViewMut, Winners, cell, dispatch,
    fan,
    packed::{
        Operand, OperandSource, OutputTile, Right,
        half::{self, Tile},
        micro,
    },
    product::gates::{self, Streams},
    simd::{Bf16, SimdLevel},
    tanh_product,
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

/// `f32` (vectorised) or `f64` (plain, for references and checks); sealed.
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
    const LARGEST: Self;
    /// Gradients of scores below this count as 0. `f32` (2^-100): their products would be denormal numbers, which
    /// cost a hundred times as much as others and add nothing. `f64`, for references: none do.
    const TINY: Self;
    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;
    /// The same value, wider.
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
    /// `out = tanh(a + b)`
    #[doc(hidden)]
    fn tanh_sum(out: &mut [Self], a: &[Self], b: &[Self]);
    /// `out += Σ rows`, row-major rows as long as `out`, in their order.
    #[doc(hidden)]
    fn add_rows(out: &mut [Self], rows: &[Self]);
    /// Adds the bias, if any, to the rows of a tile and says, for each row, its largest element that is not NaN and
    /// `Σ exp(z - max)`: 0 for a row of -inf, NaN for one with a NaN or +inf.
    #[doc(hidden)]
    fn tile_statistics(
        tile: &mut [Self],
        width: usize,
        bias: Option<&[Self]>,
        statistics: &mut [(Self, f64)],
    );
    /// The same for one row that is complete.
    #[doc(hidden)]
    fn row_statistics(row: &[Self]) -> (Self, f64);
    /// `out = factor · exp(z - max)`, 0 below [`Self::TINY`]; without `z` it is `out` plus the bias, if any.
    #[doc(hidden)]
    fn row_softmax(out: &mut [Self], z: Option<&[Self]>, bias: Option<&[Self]>, max: Self, factor: Self);
    /// Magnitude of what [`Self::prepare_tanh`] may be given: beyond, products of two would leave the numbers.
    #[doc(hidden)]
    const PREPARED: f64;
    /// Prepares addends for [`Self::tanh_pairs`]. `f32`: `x = exp(2x)`.
    #[doc(hidden)]
    fn prepare_tanh(values: &mut [Self]);
    /// Back from what [`Self::prepare_tanh`] made, to some roundings.
    #[doc(hidden)]
    fn unprepare_tanh(values: &mut [Self]);
    /// `out = tanh(a + b)` of prepared addends; `f32`: `1 - 2 / (1 + a b)`, to 3e-7 absolute.
    #[doc(hidden)]
    fn tanh_pairs(out: &mut [Self], a: &[Self], b: &[Self]);
    /// The same for a panel of columns, *k x width*, and one addend for each row of it.
    #[doc(hidden)]
    fn tanh_panel(out: &mut [Self], panel: &[Self], rows: &[Self]);
    /// See [`super::TanhProducts`].
    #[doc(hidden)]
    fn tanh_product(out: &mut [Self], left: &PackedLeft<Self>, hidden: &[Self], following: Following<Self>);
    /// Bytes that panels go through a [`Screen`] in, if there is one.
    #[doc(hidden)]
    fn screen_bytes(depth: usize, blocks: usize) -> Option<usize>;
    /// See [`Screen::best`].
    #[cfg(target_arch = "x86_64")]
    #[doc(hidden)]
    fn screened(
        proof: Avx512Vnni,
        screen: &Screen<Self>,
        sources: &mut [Sources<Self>],
        winners: &mut [Winners<Self>],
    );
    /// `gradient *= 1 - hidden²`
    #[doc(hidden)]
    fn tanh_slope(gradient: &mut [Self], hidden: &[Self]);
    /// See `fan.rs`.
    #[doc(hidden)]
    fn fan_max(out: &mut [Self], fan: Fan<Self>);
    /// See `fan.rs`.
    #[doc(hidden)]
    fn fan_sum(sums: &mut [Self], max: &[Self], fan: Fan<Self>);
    /// See `fan.rs`.
    #[doc(hidden)]
    fn fan_best(best: &mut [Self], from: &mut [u32], fan: Fan<Self>);
    /// See `fan.rs`.
    #[doc(hidden)]
    fn fan_stay(best: &mut [Self], from: &mut [u32], alpha: &[Self], blank: &[Self], places: &[u32]) -> Self;
    /// See `fan.rs`.
    #[doc(hidden)]
    fn fan_back(rows: &mut [Self], shifts: &[Self], starts: &[u32], next: &[Self], sums: &mut [Self]);
    /// See [`super::ln`].
    #[doc(hidden)]
    fn ln_slice(values: &mut [Self]);
    /// `self · a + b`, rounded once.
    #[doc(hidden)]
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Rows and columns of the micro-kernel's tile: MR, NR.
    #[doc(hidden)]
    fn sides(machine: SimdLevel) -> [usize; 2];
    /// Right micro-panels that a tile of so many rows takes at once.
    #[doc(hidden)]
    fn panels(machine: SimdLevel, rows: usize) -> usize;
    /// Packs a micro-panel from a row or column and a step on; see [`micro::pack`].
    #[doc(hidden)]
    fn pack_panel(
        machine: SimdLevel,
        source: &OperandSource<Self>,
        at: (usize, usize),
        side: usize,
        out: &mut [Self],
    );
    /// A tile of a product; see [`micro`].
    #[doc(hidden)]
    fn micro_kernel(
        machine: SimdLevel,
        rows: usize,
        left: &[Self],
        right: Right<Self>,
        place: OutputTile<Self>,
        ahead: &[Self],
    );
    /// Some panels of a strip of gates; see [`gates`].
    #[doc(hidden)]
    fn streams(machine: SimdLevel, rows: usize, panels: usize, streams: Streams<Self>);
    /// See [`super::cell_forward`].
    #[doc(hidden)]
    fn cell_forward(gates: &mut [Self], cell: &mut [Self], state: &mut [Self]);
    /// See [`super::cell_backward`].
    #[doc(hidden)]
    fn cell_backward(gates: &mut [Self], units: [&[Self]; 3], carry: &mut [Self]);
    /// Lends what this thread packs blocks of products into.
    #[doc(hidden)]
    fn with_scratch<R>(work: impl FnOnce(&mut AlignedVec<Self>) -> R) -> R;
    /// A tile of an operand of a bf16 product, from a row and column of its source on.
    #[doc(hidden)]
    fn pack_tile(
        unit: Bf16,
        source: &OperandSource<Self>,
        at: (usize, usize),
        operand: Operand,
        tile: &mut Tile,
    );
    /// `out (=|+=) left · right` over `depth` tiles of the sum.
    #[doc(hidden)]
    fn half_product(
        unit: Bf16,
        out: ViewMut<Self>,
        operands: (&[Tile], &[Tile]),
        depth: usize,
        how: Accumulate,
    );
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;
    const LARGEST: f32 = f32::MAX;
    const TINY: f32 = super::math::TINY;
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
    const PREPARED: f64 = 21.0;
    fn prepare_tanh(values: &mut [f32]) {
        values.iter_mut().for_each(|x| *x += *x);
        dispatch::exp(SimdLevel::best(), values);
    }
    fn unprepare_tanh(values: &mut [f32]) {
        dispatch::ln(SimdLevel::best(), values);
        values.iter_mut().for_each(|x| *x *= 0.5);
    }
    fn tanh_pairs(out: &mut [f32], a: &[f32], b: &[f32]) {
        dispatch::tanh_pairs(SimdLevel::best(), out, a, b);
    }
    fn tanh_panel(out: &mut [f32], panel: &[f32], rows: &[f32]) {
        dispatch::tanh_panel(SimdLevel::best(), out, panel, rows);
    }
    fn tanh_product(out: &mut [f32], left: &PackedLeft<f32>, hidden: &[f32], following: Following<f32>) {
        tanh_product::of_f32(SimdLevel::best(), out, left, hidden, following);
    }
    fn screen_bytes(depth: usize, blocks: usize) -> Option<usize> {
        #[cfg(target_arch = "x86_64")]
        return Avx512Vnni::found().map(|_| avx512::screen::room(depth, blocks));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
    #[cfg(target_arch = "x86_64")]
    fn screened(
        proof: Avx512Vnni,
        screen: &Screen<f32>,
        sources: &mut [Sources<f32>],
        winners: &mut [Winners<f32>],
    ) {
        Self::with_scratch(|room| avx512::screen::best(proof, room, screen, sources, winners));
    }
    fn tanh_slope(gradient: &mut [f32], hidden: &[f32]) {
        dispatch::tanh_slope(SimdLevel::best(), gradient, hidden);
    }
    fn fan_max(out: &mut [f32], fan: Fan<f32>) {
        dispatch::fan_max(SimdLevel::best(), out, fan);
    }
    fn fan_sum(sums: &mut [f32], max: &[f32], fan: Fan<f32>) {
        dispatch::fan_sum(SimdLevel::best(), sums, max, fan);
    }
    fn fan_best(best: &mut [f32], from: &mut [u32], fan: Fan<f32>) {
        dispatch::fan_best(SimdLevel::best(), best, from, fan);
    }
    fn fan_stay(best: &mut [f32], from: &mut [u32], alpha: &[f32], blank: &[f32], places: &[u32]) -> f32 {
        dispatch::fan_stay(SimdLevel::best(), best, from, alpha, blank, places)
    }
    fn fan_back(rows: &mut [f32], shifts: &[f32], starts: &[u32], next: &[f32], sums: &mut [f32]) {
        dispatch::fan_back(SimdLevel::best(), rows, shifts, starts, next, sums);
    }
    fn ln_slice(values: &mut [f32]) {
        dispatch::ln(SimdLevel::best(), values);
    }
    #[inline(always)]
    fn mul_add(self, a: f32, b: f32) -> f32 {
        self.mul_add(a, b)
    }
    fn sides(machine: SimdLevel) -> [usize; 2] {
        match machine {
            SimdLevel::Portable => micro::PORTABLE,
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(_) => [micro_avx2::MR, 16],
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(_) => [micro_avx512::MR, 32],
        }
    }
    fn panels(machine: SimdLevel, rows: usize) -> usize {
        match machine {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(_) => micro_avx512::panels(rows),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(_) => micro_avx2::panels(rows),
            SimdLevel::Portable => 1,
        }
    }
    fn pack_panel(
        machine: SimdLevel,
        source: &OperandSource<f32>,
        at: (usize, usize),
        side: usize,
        out: &mut [f32],
    ) {
        match machine {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(proof) => pack_avx512::pack(proof, source, at, side, out),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(proof) => pack_avx2::pack(proof, source, at, side, out),
            _ => micro::pack(source, at, side, out),
        }
    }
    fn micro_kernel(
        machine: SimdLevel,
        rows: usize,
        left: &[f32],
        right: Right<f32>,
        place: OutputTile<f32>,
        ahead: &[f32],
    ) {
        match machine {
            SimdLevel::Portable => micro::portable(rows, left, right, place),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(proof) => micro_avx2::of_f32(proof, rows, left, right, place),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(proof) => micro_avx512::of_f32(proof, rows, left, right, place, ahead),
        }
    }
    fn streams(machine: SimdLevel, rows: usize, panels: usize, streams: Streams<f32>) {
        match machine {
            SimdLevel::Portable => gates::streams::<f32, false>(rows, panels, streams),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(proof) => gates_avx2::streams(proof, rows, panels, streams),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(proof) => gates_avx512::streams(proof, rows, panels, streams),
        }
    }
    fn cell_forward(gates: &mut [f32], cell: &mut [f32], state: &mut [f32]) {
        dispatch::cell_forward(SimdLevel::best(), gates, cell, state);
    }
    fn cell_backward(gates: &mut [f32], units: [&[f32]; 3], carry: &mut [f32]) {
        dispatch::cell_backward(SimdLevel::best(), gates, units, carry);
    }
    fn with_scratch<R>(work: impl FnOnce(&mut AlignedVec<f32>) -> R) -> R {
        thread_local!(static SCRATCH: RefCell<AlignedVec<f32>> = RefCell::default());
        SCRATCH.with_borrow_mut(work)
    }
    fn pack_tile(
        unit: Bf16,
        source: &OperandSource<f32>,
        at: (usize, usize),
        operand: Operand,
        tile: &mut Tile,
    ) {
        half::pack_tile_f32(unit, source, at, operand, tile);
    }
    fn half_product(
        unit: Bf16,
        out: ViewMut<f32>,
        operands: (&[Tile], &[Tile]),
        depth: usize,
        how: Accumulate,
    ) {
        half::product_f32(unit, out, operands, depth, how);
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;
    const LARGEST: f64 = f64::MAX;
    const TINY: f64 = 0.0;
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
    const PREPARED: f64 = f64::INFINITY;
    fn prepare_tanh(_: &mut [f64]) {}
    fn unprepare_tanh(_: &mut [f64]) {}
    fn tanh_pairs(out: &mut [f64], a: &[f64], b: &[f64]) {
        Self::tanh_sum(out, a, b);
    }
    fn tanh_panel(out: &mut [f64], panel: &[f64], rows: &[f64]) {
        let width = panel.len() / rows.len().max(1);
        let steps = out.chunks_exact_mut(width.max(1)).zip(panel.chunks_exact(width.max(1)));
        for ((out, panel), b) in steps.zip(rows) {
            out.iter_mut().zip(panel).for_each(|(out, a)| *out = (a + b).tanh());
        }
    }
    fn tanh_product(out: &mut [f64], left: &PackedLeft<f64>, hidden: &[f64], following: Following<f64>) {
        tanh_product::plain(SimdLevel::best(), out, left, hidden, following);
    }
    fn screen_bytes(_: usize, _: usize) -> Option<usize> {
        None
    }
    #[cfg(target_arch = "x86_64")]
    fn screened(_: Avx512Vnni, _: &Screen<f64>, _: &mut [Sources<f64>], _: &mut [Winners<f64>]) {
        unreachable!("there is no screen of f64");
    }
    fn tanh_slope(gradient: &mut [f64], hidden: &[f64]) {
        gradient.iter_mut().zip(hidden).for_each(|(g, &h)| *g *= 1.0 - h * h);
    }
    fn fan_max(out: &mut [f64], fan: Fan<f64>) {
        fan::max(out, fan);
    }
    fn fan_sum(sums: &mut [f64], max: &[f64], fan: Fan<f64>) {
        fan::sum(sums, max, fan, f64::exp);
    }
    fn fan_best(best: &mut [f64], from: &mut [u32], fan: Fan<f64>) {
        fan::best(best, from, fan);
    }
    fn fan_stay(best: &mut [f64], from: &mut [u32], alpha: &[f64], blank: &[f64], places: &[u32]) -> f64 {
        fan::stay(best, from, alpha, blank, places)
    }
    fn fan_back(rows: &mut [f64], shifts: &[f64], starts: &[u32], next: &[f64], sums: &mut [f64]) {
        fan::back(rows, shifts, starts, next, sums, f64::exp);
    }
    fn ln_slice(values: &mut [f64]) {
        values.iter_mut().for_each(|x| *x = x.ln());
    }
    #[inline(always)]
    fn mul_add(self, a: f64, b: f64) -> f64 {
        self.mul_add(a, b)
    }
    fn sides(machine: SimdLevel) -> [usize; 2] {
        match machine {
            SimdLevel::Portable => micro::PORTABLE,
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(_) => [micro_avx2::MR, 8],
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(_) => [micro_avx512::MR, 16],
        }
    }
    fn panels(machine: SimdLevel, rows: usize) -> usize {
        match machine {
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(_) => micro_avx512::panels(rows),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(_) => micro_avx2::panels(rows),
            SimdLevel::Portable => 1,
        }
    }
    fn pack_panel(
        machine: SimdLevel,
        source: &OperandSource<f64>,
        at: (usize, usize),
        side: usize,
        out: &mut [f64],
    ) {
        let _ = machine;
        micro::pack(source, at, side, out);
    }
    fn micro_kernel(
        machine: SimdLevel,
        rows: usize,
        left: &[f64],
        right: Right<f64>,
        place: OutputTile<f64>,
        ahead: &[f64],
    ) {
        match machine {
            SimdLevel::Portable => micro::portable(rows, left, right, place),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2(proof) => micro_avx2::of_f64(proof, rows, left, right, place),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512(proof) => micro_avx512::of_f64(proof, rows, left, right, place, ahead),
        }
    }
    fn streams(_: SimdLevel, rows: usize, panels: usize, streams: Streams<f64>) {
        gates::streams::<f64, false>(rows, panels, streams);
    }
    fn cell_forward(gates: &mut [f64], cell: &mut [f64], state: &mut [f64]) {
        cell::forward(gates, cell, state);
    }
    fn cell_backward(gates: &mut [f64], units: [&[f64]; 3], carry: &mut [f64]) {
        cell::backward(gates, units, carry);
    }
    fn with_scratch<R>(work: impl FnOnce(&mut AlignedVec<f64>) -> R) -> R {
        thread_local!(static SCRATCH: RefCell<AlignedVec<f64>> = RefCell::default());
        SCRATCH.with_borrow_mut(work)
    }
    fn pack_tile(
        _: Bf16,
        source: &OperandSource<f64>,
        at: (usize, usize),
        operand: Operand,
        tile: &mut Tile,
    ) {
        half::pack_tile(source, at, operand, tile);
    }
    fn half_product(_: Bf16, out: ViewMut<f64>, operands: (&[Tile], &[Tile]), depth: usize, how: Accumulate) {
        half::product_plain(out, operands, depth, how);
    }
}
