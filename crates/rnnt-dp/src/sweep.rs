//! The two recursions, a diagonal at a time. Both work on the few diagonals that arcs span.
use kernels::{
    AlignedVec, ScratchReq,
    scaled::{self, Scaled, ScaledRow, ScaledRowMut},
};

use crate::{
    scaled_rows::ScaledRows,
    skew::{LaneSizes, Skew, ring},
};

/// The last few diagonals, some rows for each, by u. A row may be read before u = 0 by as much as an arc emits, and
/// behind u = U by that and a register.
#[derive(Debug, Default)]
struct Ring {
    /// Apart, so that one can be written while others are read; a power of two.
    diagonals: Vec<ScaledRows>,
    stride: usize,
    margin: usize,
}

impl Ring {
    /// Makes room for so many diagonals of `rows_each` rows of this length.
    fn reserve(&mut self, slots: usize, rows_each: usize, stride: usize) {
        if self.diagonals.len() < slots {
            self.diagonals = Vec::new();
            self.diagonals.reserve_exact(slots);
            self.diagonals.resize_with(slots, ScaledRows::default);
        }
        self.diagonals.iter_mut().for_each(|rows| rows.reserve(rows_each * stride));
    }

    /// Scratch of [`Self::reserve`].
    fn scratch(slots: usize, rows_each: usize, stride: usize) -> ScratchReq {
        ScratchReq::new::<ScaledRows>(1).and(ScaledRows::scratch(rows_each * stride)).times(slots)
    }

    /// All zero.
    fn set(&mut self, skew: &Skew) {
        (_, self.margin, self.stride) = ring(skew.frames(), skew.labels(), skew.arcs());
        self.diagonals.iter_mut().for_each(ScaledRows::clear);
    }

    fn slot(&self, d: usize) -> usize {
        d & (self.diagonals.len() - 1)
    }

    /// Where u of a row is in a diagonal.
    fn place(&self, row: usize, u: usize) -> usize {
        row * self.stride + self.margin + u
    }

    /// From u on, or `back` sites before it.
    fn row(&self, d: usize, row: usize, u: usize, back: usize, width: usize) -> ScaledRow<'_> {
        self.diagonals[self.slot(d)].row(self.place(row, u) - back, width)
    }

    /// Takes a diagonal out, to be written and put back.
    fn take(&mut self, d: usize) -> ScaledRows {
        let slot = self.slot(d);
        std::mem::take(&mut self.diagonals[slot])
    }

    fn put(&mut self, d: usize, rows: ScaledRows) {
        let slot = self.slot(d);
        self.diagonals[slot] = rows;
    }
}

/// `α(n) = Σ_{arcs m -> n} α(m) p(m -> n)`, from the first site on.
#[derive(Debug, Default)]
pub(crate) struct ForwardSweep {
    /// `α(m) p(m -> n)` of each arc, at m.
    passed: Ring,
    /// Emissions of the latest diagonal, one row for each arc.
    emissions: AlignedVec<f64>,
}

impl ForwardSweep {
    pub fn reserve(&mut self, sizes: &LaneSizes) {
        self.passed.reserve(sizes.slots, sizes.kinds, sizes.stride);
        self.emissions.ensure_len(sizes.kinds * sizes.row, 0.0);
    }

    /// Scratch of [`Self::reserve`].
    pub fn scratch(sizes: &LaneSizes) -> ScratchReq {
        let emissions = ScratchReq::aligned::<f64>(sizes.kinds * sizes.row);
        Ring::scratch(sizes.slots, sizes.kinds, sizes.stride).and(emissions)
    }

    pub fn begin(&mut self, skew: &Skew) {
        self.passed.set(skew);
    }

    /// Goes on to diagonal `d`, whose `α` is written. Returns whether its emissions are below +inf.
    pub fn step(&mut self, skew: &Skew, d: usize, emissions: &[f64], alpha: &mut ScaledRowMut<'_>) -> bool {
        let (low, width, arcs) = (skew.low(d), skew.width(d), skew.arcs());
        let emissions_of = &mut self.emissions[..arcs.len() * width];
        let sound = skew.gather(d, true, emissions, emissions_of);
        let mut passed = self.passed.take(d);
        // What is left of u = 0, or came from a frame that d does not reach, is zero.
        let arriving = |s: usize| {
            let from = d.checked_sub(arcs[s].frames + arcs[s].labels).filter(|_| skew.fits(&arcs[s]))?;
            Some(self.passed.row(from, s, low, arcs[s].labels, width))
        };
        if let (2, Some(first), Some(second)) = (arcs.len(), arriving(0), arriving(arcs.len() - 1)) {
            let at = [self.passed.place(0, low), self.passed.place(1, low)];
            scaled::add_then_mul_exp(
                emissions_of.split_at(width),
                first,
                second,
                alpha,
                passed.two_mut(at, width),
            );
        } else {
            alpha.fill(Scaled::ZERO);
            (0..arcs.len()).filter_map(arriving).for_each(|row| scaled::add(alpha, row));
            if d == 0 {
                alpha.set(0, Scaled::ONE);
            }
            for s in 0..arcs.len() {
                let out = passed.row_mut(self.passed.place(s, low), width);
                scaled::mul_exp(&emissions_of[s * width..][..width], alpha.as_row(), out);
            }
        }
        self.passed.put(d, passed);
        sound
    }

    /// `α(m) p(m -> n)` of an arc at the sites m of a recent diagonal.
    pub fn passed(&self, skew: &Skew, d: usize, arc: usize) -> ScaledRow<'_> {
        self.passed.row(d, arc, skew.low(d), 0, skew.width(d))
    }
}

/// `β(m) = Σ_{arcs m -> n} p(m -> n) β(n)`, from the end of all paths back.
#[derive(Debug, Default)]
pub(crate) struct BackwardSweep {
    /// `p(m -> n) β(n)` of each arc at the sites m of the latest diagonal.
    ahead: ScaledRows,
    beta: Ring,
    /// Emissions of the latest diagonal, one row for each arc.
    emissions: AlignedVec<f64>,
}

impl BackwardSweep {
    pub fn reserve(&mut self, sizes: &LaneSizes) {
        self.ahead.reserve(sizes.kinds * sizes.row);
        self.emissions.ensure_len(sizes.kinds * sizes.row, 0.0);
        self.beta.reserve(sizes.slots, 1, sizes.stride);
    }

    /// Scratch of [`Self::reserve`].
    pub fn scratch(sizes: &LaneSizes) -> ScratchReq {
        let of_diagonal = sizes.kinds * sizes.row;
        let rows = ScaledRows::scratch(of_diagonal).and(ScratchReq::aligned::<f64>(of_diagonal));
        Ring::scratch(sizes.slots, 1, sizes.stride).and(rows)
    }

    pub fn begin(&mut self, skew: &Skew) {
        self.beta.set(skew);
        let (slot, place) = (self.beta.slot(skew.end()), self.beta.place(0, skew.labels()));
        self.beta.diagonals[slot].row_mut(place, 1).set(0, Scaled::ONE);
    }

    /// Goes back to diagonal `d`. Returns whether its emissions are below +inf.
    pub fn step(&mut self, skew: &Skew, d: usize, emissions: &[f64]) -> bool {
        let (low, width, arcs) = (skew.low(d), skew.width(d), skew.arcs());
        let emissions_of = &mut self.emissions[..arcs.len() * width];
        let sound = skew.gather(d, false, emissions, emissions_of);
        let mut beta = self.beta.take(d);
        let mut out = beta.row_mut(self.beta.place(0, low), width);
        let landing = |s: usize| {
            let arc = arcs.get(s).filter(|arc| skew.fits(arc))?;
            Some(self.beta.row(d + arc.frames + arc.labels, 0, low + arc.labels, 0, width))
        };
        if let (2, Some(first), Some(second)) = (arcs.len(), landing(0), landing(1)) {
            let ahead = self.ahead.two_mut([0, width], width);
            scaled::mul_exp_then_add(emissions_of.split_at(width), first, second, ahead, &mut out);
        } else {
            out.fill(Scaled::ZERO);
            for s in 0..arcs.len() {
                if let Some(beta) = landing(s) {
                    let emissions = &emissions_of[s * width..][..width];
                    scaled::mul_exp(emissions, beta, self.ahead.row_mut(s * width, width));
                    scaled::add(&mut out, self.ahead.row(s * width, width));
                }
            }
        }
        self.beta.put(d, beta);
        sound
    }

    /// `β` of a recent diagonal.
    pub fn beta(&self, skew: &Skew, d: usize) -> ScaledRow<'_> {
        self.beta.row(d, 0, skew.low(d), 0, skew.width(d))
    }

    /// `p(m -> n) β(n)` of an arc at the sites m of the latest diagonal, `d`.
    pub fn ahead(&self, skew: &Skew, d: usize, arc: usize) -> ScaledRow<'_> {
        self.ahead.row(arc * skew.width(d), skew.width(d))
    }
}
