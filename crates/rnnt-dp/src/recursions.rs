//! Forward (α) and backward (β) recursions of the transducer loss, by anti-diagonals.
//!
//! `utterance.rs` calls one step for each diagonal, and combines both recursions. m and n: source
//! and target site of an arc; p: its probability, exp of its emission; d = t + u: index of an
//! anti-diagonal. Each recursion keeps a ring buffer of the recent diagonals that arcs span. Sums
//! are scaled numbers, so that no step takes a logarithm.
use kernels::{
    AlignedVec, ScratchReq,
    scaled::{self, Scaled, ScaledRow, ScaledRowMut},
};

use crate::{
    anti_diagonals::{AntiDiagonals, LaneSizes, RingSizes},
    scaled_rows::ScaledRows,
};

/// Ring buffer of the last few diagonals, with some rows for each.
///
/// A row is indexed by u and has a margin of zeros on both sides. The margin before u = 0 is at
/// least as wide as the labels that an arc emits; the one after u = U has a vector register more.
#[derive(Debug, Default)]
struct DiagonalRing {
    /// One buffer per diagonal; their number is a power of two.
    ///
    /// Separate buffers allow writing one while others are read.
    diagonals: Vec<ScaledRows>,
    /// Numbers of a row, both margins included.
    row_len: usize,
    /// Numbers before u = 0.
    margin: usize,
}

impl DiagonalRing {
    /// Reserves memory for `count` diagonals of `rows_per_diagonal` rows of `row_len` numbers.
    fn reserve(&mut self, count: usize, rows_per_diagonal: usize, row_len: usize) {
        if self.diagonals.len() < count {
            self.diagonals = Vec::new();
            self.diagonals.reserve_exact(count);
            self.diagonals.resize_with(count, ScaledRows::default);
        }
        self.diagonals.iter_mut().for_each(|rows| rows.reserve(rows_per_diagonal * row_len));
    }

    /// Scratch memory of [`Self::reserve`].
    fn scratch(count: usize, rows_per_diagonal: usize, row_len: usize) -> ScratchReq {
        ScratchReq::new::<ScaledRows>(1).and(ScaledRows::scratch(rows_per_diagonal * row_len)).times(count)
    }

    /// Takes the row layout of a lattice; sets all rows to zero.
    fn reset(&mut self, diagonals: &AntiDiagonals) {
        let sizes = RingSizes::new(diagonals.frames(), diagonals.labels(), diagonals.arcs());
        (self.margin, self.row_len) = (sizes.margin, sizes.row_len);
        self.diagonals.iter_mut().for_each(ScaledRows::clear);
    }

    /// Index of the buffer of diagonal `d`.
    fn slot(&self, d: usize) -> usize {
        d & (self.diagonals.len() - 1)
    }

    /// Index of label position u of a row in a diagonal's buffer.
    fn index(&self, row: usize, u: usize) -> usize {
        row * self.row_len + self.margin + u
    }

    /// Returns `width` numbers of a row, from `shift` sites before u on.
    fn row(&self, d: usize, row: usize, u: usize, shift: usize, width: usize) -> ScaledRow<'_> {
        self.diagonals[self.slot(d)].row(self.index(row, u) - shift, width)
    }

    /// Removes a diagonal for writing; [`put`](Self::put) returns it.
    fn take(&mut self, d: usize) -> ScaledRows {
        let slot = self.slot(d);
        std::mem::take(&mut self.diagonals[slot])
    }

    /// Returns the buffer of [`take`](Self::take).
    fn put(&mut self, d: usize, rows: ScaledRows) {
        let slot = self.slot(d);
        self.diagonals[slot] = rows;
    }
}

/// The forward recursion `α(n) = Σ_{arcs m -> n} α(m) p(m -> n)`.
#[derive(Debug, Default)]
pub(crate) struct ForwardRecursion {
    /// `α(m) p(m -> n)` of each arc, at m.
    arc_alpha: DiagonalRing,
    /// Emissions of the current diagonal, one row for each arc.
    emissions: AlignedVec<f64>,
}

impl ForwardRecursion {
    pub(crate) fn reserve(&mut self, sizes: &LaneSizes) {
        self.arc_alpha.reserve(sizes.ring_diagonals, sizes.arcs, sizes.ring_row_len);
        self.emissions.ensure_len(sizes.arcs * sizes.row_len, 0.0);
    }

    /// Scratch memory of [`Self::reserve`].
    pub(crate) fn scratch(sizes: &LaneSizes) -> ScratchReq {
        let emissions = ScratchReq::aligned::<f64>(sizes.arcs * sizes.row_len);
        DiagonalRing::scratch(sizes.ring_diagonals, sizes.arcs, sizes.ring_row_len).and(emissions)
    }

    /// Starts before diagonal 0 of a lattice.
    pub(crate) fn begin(&mut self, diagonals: &AntiDiagonals) {
        self.arc_alpha.reset(diagonals);
    }

    /// Advances to diagonal `d` and writes its `α`; returns true if its emissions are below +inf.
    pub(crate) fn step(
        &mut self,
        diagonals: &AntiDiagonals,
        d: usize,
        emissions: &[f64],
        alpha: &mut ScaledRowMut<'_>,
    ) -> bool {
        let (min_label, width, arcs) = (diagonals.min_label(d), diagonals.width(d), diagonals.arcs());
        let diagonal_emissions = &mut self.emissions[..arcs.len() * width];
        let is_valid = diagonals.gather(d, true, emissions, diagonal_emissions);
        let mut arc_alpha = self.arc_alpha.take(d);
        // `arriving(a)` is α(m) p(m -> n) of the arc of index a, shifted to its targets n. Elements
        // before u = 0, and those from frames outside the diagonal, are zero.
        let arriving = |arc_index: usize| {
            let arc = &arcs[arc_index];
            let source_d = d.checked_sub(arc.frames + arc.labels).filter(|_| diagonals.arc_fits(arc))?;
            Some(self.arc_alpha.row(source_d, arc_index, min_label, arc.labels, width))
        };
        if let (2, Some(first), Some(second)) = (arcs.len(), arriving(0), arriving(arcs.len() - 1)) {
            // Two arcs, the usual case: one fused loop.
            let row_starts = [self.arc_alpha.index(0, min_label), self.arc_alpha.index(1, min_label)];
            scaled::add_then_mul_exp(
                diagonal_emissions.split_at(width),
                first,
                second,
                alpha,
                arc_alpha.two_rows_mut(row_starts, width),
            );
        } else {
            // α(n), the sum over the arriving arcs; 1 at the start.
            alpha.fill(Scaled::ZERO);
            (0..arcs.len()).filter_map(arriving).for_each(|row| scaled::add(alpha, row));
            if d == 0 {
                alpha.set(0, Scaled::ONE);
            }
            // α(m) p(m -> n) of each arc that leaves the diagonal.
            for arc in 0..arcs.len() {
                let out = arc_alpha.row_mut(self.arc_alpha.index(arc, min_label), width);
                scaled::mul_exp(&diagonal_emissions[arc * width..][..width], alpha.as_row(), out);
            }
        }
        self.arc_alpha.put(d, arc_alpha);
        is_valid
    }

    /// `α(m) p(m -> n)` of an arc at the sites m of a recent diagonal.
    pub(crate) fn arc_alpha(&self, diagonals: &AntiDiagonals, d: usize, arc: usize) -> ScaledRow<'_> {
        self.arc_alpha.row(d, arc, diagonals.min_label(d), 0, diagonals.width(d))
    }
}

/// The backward recursion `β(m) = Σ_{arcs m -> n} p(m -> n) β(n)`.
#[derive(Debug, Default)]
pub(crate) struct BackwardRecursion {
    /// `p(m -> n) β(n)` of each arc at the sites m of the current diagonal.
    arc_beta: ScaledRows,
    /// `β` of recent diagonals, one row each.
    beta: DiagonalRing,
    /// Emissions of the current diagonal, one row for each arc.
    emissions: AlignedVec<f64>,
}

impl BackwardRecursion {
    pub(crate) fn reserve(&mut self, sizes: &LaneSizes) {
        self.arc_beta.reserve(sizes.arcs * sizes.row_len);
        self.emissions.ensure_len(sizes.arcs * sizes.row_len, 0.0);
        self.beta.reserve(sizes.ring_diagonals, 1, sizes.ring_row_len);
    }

    /// Scratch memory of [`Self::reserve`].
    pub(crate) fn scratch(sizes: &LaneSizes) -> ScratchReq {
        let diagonal_len = sizes.arcs * sizes.row_len;
        let rows = ScaledRows::scratch(diagonal_len).and(ScratchReq::aligned::<f64>(diagonal_len));
        DiagonalRing::scratch(sizes.ring_diagonals, 1, sizes.ring_row_len).and(rows)
    }

    /// Starts at the end of all paths, where β is 1.
    pub(crate) fn begin(&mut self, diagonals: &AntiDiagonals) {
        self.beta.reset(diagonals);
        let (slot, index) = (self.beta.slot(diagonals.end()), self.beta.index(0, diagonals.labels()));
        self.beta.diagonals[slot].row_mut(index, 1).set(0, Scaled::ONE);
    }

    /// Moves back to diagonal `d`; returns true if its emissions are below +inf.
    pub(crate) fn step(&mut self, diagonals: &AntiDiagonals, d: usize, emissions: &[f64]) -> bool {
        let (min_label, width, arcs) = (diagonals.min_label(d), diagonals.width(d), diagonals.arcs());
        let diagonal_emissions = &mut self.emissions[..arcs.len() * width];
        let is_valid = diagonals.gather(d, false, emissions, diagonal_emissions);
        let mut beta = self.beta.take(d);
        let mut out = beta.row_mut(self.beta.index(0, min_label), width);
        // `target_beta(a)` is β(n) at the targets n of the arc of index a.
        let target_beta = |arc_index: usize| {
            let arc = arcs.get(arc_index).filter(|arc| diagonals.arc_fits(arc))?;
            Some(self.beta.row(d + arc.frames + arc.labels, 0, min_label + arc.labels, 0, width))
        };
        if let (2, Some(first), Some(second)) = (arcs.len(), target_beta(0), target_beta(1)) {
            // Two arcs, the usual case: one fused loop.
            let arc_beta = self.arc_beta.two_rows_mut([0, width], width);
            scaled::mul_exp_then_add(diagonal_emissions.split_at(width), first, second, arc_beta, &mut out);
        } else {
            out.fill(Scaled::ZERO);
            for arc in 0..arcs.len() {
                if let Some(beta) = target_beta(arc) {
                    let emissions = &diagonal_emissions[arc * width..][..width];
                    scaled::mul_exp(emissions, beta, self.arc_beta.row_mut(arc * width, width));
                    scaled::add(&mut out, self.arc_beta.row(arc * width, width));
                }
            }
        }
        self.beta.put(d, beta);
        is_valid
    }

    /// `β` of a recent diagonal.
    pub(crate) fn beta(&self, diagonals: &AntiDiagonals, d: usize) -> ScaledRow<'_> {
        self.beta.row(d, 0, diagonals.min_label(d), 0, diagonals.width(d))
    }

    /// `p(m -> n) β(n)` of an arc at the sites of diagonal `d`.
    ///
    /// `d` must be the current diagonal.
    pub(crate) fn arc_beta(&self, diagonals: &AntiDiagonals, d: usize, arc: usize) -> ScaledRow<'_> {
        self.arc_beta.row(arc * diagonals.width(d), diagonals.width(d))
    }
}
