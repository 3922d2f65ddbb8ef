//! Forward (α) and backward (β) recursions of the transducer loss, by anti-diagonals.
//!
//! m and n: source and target site of an arc; p: its probability. Each recursion keeps a ring
//! buffer of the recent diagonals that arcs span.
use kernels::{
    AlignedVec, ScratchReq,
    scaled::{self, Scaled, ScaledRow, ScaledRowMut},
};

use crate::{
    anti_diagonals::{AntiDiagonals, LaneSizes, ring_sizes},
    scaled_rows::ScaledRows,
};

/// Ring buffer of the last few diagonals, with some rows for each.
///
/// A row is indexed by u and has a margin of zeros on both sides. The margin before u = 0 is at
/// least as wide as the labels that an arc emits; the one after u = U has a vector register more.
#[derive(Debug, Default)]
struct Ring {
    /// One buffer per diagonal; their number is a power of two.
    ///
    /// Separate buffers allow writing one while others are read.
    diagonals: Vec<ScaledRows>,
    stride: usize,
    margin: usize,
}

impl Ring {
    /// Reserves memory for `slots` diagonals of `rows_each` rows of length `stride`.
    fn reserve(&mut self, slots: usize, rows_each: usize, stride: usize) {
        if self.diagonals.len() < slots {
            self.diagonals = Vec::new();
            self.diagonals.reserve_exact(slots);
            self.diagonals.resize_with(slots, ScaledRows::default);
        }
        self.diagonals.iter_mut().for_each(|rows| rows.reserve(rows_each * stride));
    }

    /// Scratch memory of [`Self::reserve`].
    fn scratch(slots: usize, rows_each: usize, stride: usize) -> ScratchReq {
        ScratchReq::new::<ScaledRows>(1).and(ScaledRows::scratch(rows_each * stride)).times(slots)
    }

    /// Sets the lattice, and all rows to zero.
    fn set(&mut self, diagonals: &AntiDiagonals) {
        (_, self.margin, self.stride) = ring_sizes(diagonals.frames(), diagonals.labels(), diagonals.arcs());
        self.diagonals.iter_mut().for_each(ScaledRows::clear);
    }

    fn slot(&self, d: usize) -> usize {
        d & (self.diagonals.len() - 1)
    }

    /// Index of label position u in a row of a diagonal.
    fn index(&self, row: usize, u: usize) -> usize {
        row * self.stride + self.margin + u
    }

    /// Returns `width` numbers of a row, from `back` sites before u on.
    fn row(&self, d: usize, row: usize, u: usize, back: usize, width: usize) -> ScaledRow<'_> {
        self.diagonals[self.slot(d)].row(self.index(row, u) - back, width)
    }

    /// Removes a diagonal for writing; [`put`](Self::put) returns it.
    fn take(&mut self, d: usize) -> ScaledRows {
        let slot = self.slot(d);
        std::mem::take(&mut self.diagonals[slot])
    }

    fn put(&mut self, d: usize, rows: ScaledRows) {
        let slot = self.slot(d);
        self.diagonals[slot] = rows;
    }
}

/// The forward recursion `α(n) = Σ_{arcs m -> n} α(m) p(m -> n)`.
#[derive(Debug, Default)]
pub(crate) struct ForwardSweep {
    /// `α(m) p(m -> n)` of each arc, at m.
    arc_alpha: Ring,
    /// Emissions of the current diagonal, one row for each arc.
    emissions: AlignedVec<f64>,
}

impl ForwardSweep {
    pub fn reserve(&mut self, sizes: &LaneSizes) {
        self.arc_alpha.reserve(sizes.slots, sizes.arcs, sizes.stride);
        self.emissions.ensure_len(sizes.arcs * sizes.row, 0.0);
    }

    /// Scratch memory of [`Self::reserve`].
    pub fn scratch(sizes: &LaneSizes) -> ScratchReq {
        let emissions = ScratchReq::aligned::<f64>(sizes.arcs * sizes.row);
        Ring::scratch(sizes.slots, sizes.arcs, sizes.stride).and(emissions)
    }

    pub fn begin(&mut self, diagonals: &AntiDiagonals) {
        self.arc_alpha.set(diagonals);
    }

    /// Advances to diagonal `d` and writes its `α`; returns true if its emissions are below +inf.
    pub fn step(
        &mut self,
        diagonals: &AntiDiagonals,
        d: usize,
        emissions: &[f64],
        alpha: &mut ScaledRowMut<'_>,
    ) -> bool {
        let (low, width, arcs) = (diagonals.low(d), diagonals.width(d), diagonals.arcs());
        let diagonal_emissions = &mut self.emissions[..arcs.len() * width];
        let is_valid = diagonals.gather(d, true, emissions, diagonal_emissions);
        let mut arc_alpha = self.arc_alpha.take(d);
        // `arriving(s)` is α(m) p(m -> n) of arc s, shifted to its targets n. Elements before
        // u = 0, and those from frames outside the diagonal, are zero.
        let arriving = |s: usize| {
            let from = d.checked_sub(arcs[s].frames + arcs[s].labels).filter(|_| diagonals.fits(&arcs[s]))?;
            Some(self.arc_alpha.row(from, s, low, arcs[s].labels, width))
        };
        if let (2, Some(first), Some(second)) = (arcs.len(), arriving(0), arriving(arcs.len() - 1)) {
            let at = [self.arc_alpha.index(0, low), self.arc_alpha.index(1, low)];
            scaled::add_then_mul_exp(
                diagonal_emissions.split_at(width),
                first,
                second,
                alpha,
                arc_alpha.two_rows_mut(at, width),
            );
        } else {
            alpha.fill(Scaled::ZERO);
            (0..arcs.len()).filter_map(arriving).for_each(|row| scaled::add(alpha, row));
            if d == 0 {
                alpha.set(0, Scaled::ONE);
            }
            for s in 0..arcs.len() {
                let out = arc_alpha.row_mut(self.arc_alpha.index(s, low), width);
                scaled::mul_exp(&diagonal_emissions[s * width..][..width], alpha.as_row(), out);
            }
        }
        self.arc_alpha.put(d, arc_alpha);
        is_valid
    }

    /// `α(m) p(m -> n)` of an arc at the sites m of a recent diagonal.
    pub fn arc_alpha(&self, diagonals: &AntiDiagonals, d: usize, arc: usize) -> ScaledRow<'_> {
        self.arc_alpha.row(d, arc, diagonals.low(d), 0, diagonals.width(d))
    }
}

/// The backward recursion `β(m) = Σ_{arcs m -> n} p(m -> n) β(n)`.
#[derive(Debug, Default)]
pub(crate) struct BackwardSweep {
    /// `p(m -> n) β(n)` of each arc at the sites m of the current diagonal.
    arc_beta: ScaledRows,
    beta: Ring,
    /// Emissions of the current diagonal, one row for each arc.
    emissions: AlignedVec<f64>,
}

impl BackwardSweep {
    pub fn reserve(&mut self, sizes: &LaneSizes) {
        self.arc_beta.reserve(sizes.arcs * sizes.row);
        self.emissions.ensure_len(sizes.arcs * sizes.row, 0.0);
        self.beta.reserve(sizes.slots, 1, sizes.stride);
    }

    /// Scratch memory of [`Self::reserve`].
    pub fn scratch(sizes: &LaneSizes) -> ScratchReq {
        let of_diagonal = sizes.arcs * sizes.row;
        let rows = ScaledRows::scratch(of_diagonal).and(ScratchReq::aligned::<f64>(of_diagonal));
        Ring::scratch(sizes.slots, 1, sizes.stride).and(rows)
    }

    pub fn begin(&mut self, diagonals: &AntiDiagonals) {
        self.beta.set(diagonals);
        let (slot, index) = (self.beta.slot(diagonals.end()), self.beta.index(0, diagonals.labels()));
        self.beta.diagonals[slot].row_mut(index, 1).set(0, Scaled::ONE);
    }

    /// Moves back to diagonal `d`; returns true if its emissions are below +inf.
    pub fn step(&mut self, diagonals: &AntiDiagonals, d: usize, emissions: &[f64]) -> bool {
        let (low, width, arcs) = (diagonals.low(d), diagonals.width(d), diagonals.arcs());
        let diagonal_emissions = &mut self.emissions[..arcs.len() * width];
        let is_valid = diagonals.gather(d, false, emissions, diagonal_emissions);
        let mut beta = self.beta.take(d);
        let mut out = beta.row_mut(self.beta.index(0, low), width);
        let target_beta = |s: usize| {
            let arc = arcs.get(s).filter(|arc| diagonals.fits(arc))?;
            Some(self.beta.row(d + arc.frames + arc.labels, 0, low + arc.labels, 0, width))
        };
        if let (2, Some(first), Some(second)) = (arcs.len(), target_beta(0), target_beta(1)) {
            let arc_beta = self.arc_beta.two_rows_mut([0, width], width);
            scaled::mul_exp_then_add(diagonal_emissions.split_at(width), first, second, arc_beta, &mut out);
        } else {
            out.fill(Scaled::ZERO);
            for s in 0..arcs.len() {
                if let Some(beta) = target_beta(s) {
                    let emissions = &diagonal_emissions[s * width..][..width];
                    scaled::mul_exp(emissions, beta, self.arc_beta.row_mut(s * width, width));
                    scaled::add(&mut out, self.arc_beta.row(s * width, width));
                }
            }
        }
        self.beta.put(d, beta);
        is_valid
    }

    /// `β` of a recent diagonal.
    pub fn beta(&self, diagonals: &AntiDiagonals, d: usize) -> ScaledRow<'_> {
        self.beta.row(d, 0, diagonals.low(d), 0, diagonals.width(d))
    }

    /// `p(m -> n) β(n)` of an arc at the sites of diagonal `d`.
    ///
    /// `d` must be the current diagonal.
    pub fn arc_beta(&self, diagonals: &AntiDiagonals, d: usize, arc: usize) -> ScaledRow<'_> {
        self.arc_beta.row(arc * diagonals.width(d), diagonals.width(d))
    }
}
