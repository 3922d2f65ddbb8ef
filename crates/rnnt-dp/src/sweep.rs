//! The two recursions, a diagonal at a time. Both work on the few diagonals that arcs span.
use crate::{
    Arc,
    kernel::{self, LANES, Row, RowMut, Scaled},
    skew::Skew,
    storage::Rows,
};

/// The last few diagonals, some rows for each, by u. A row may be read before u = 0 by as much as an arc emits, and
/// behind u = U by that and a register.
#[derive(Debug, Default)]
struct Ring {
    rows: Rows,
    diagonals: usize,
    rows_each: usize,
    stride: usize,
    margin: usize,
}

impl Ring {
    /// All zero, for `rows_each` rows a diagonal.
    fn set(&mut self, skew: &Skew, rows_each: usize) {
        let fitting = || skew.arcs().iter().filter(|arc| skew.fits(arc));
        self.diagonals = fitting().map(|arc| arc.frames + arc.labels).max().unwrap_or(0) + 1;
        self.margin = fitting().map(|arc| arc.labels).max().unwrap_or(0).next_multiple_of(LANES);
        self.rows_each = rows_each;
        self.stride = 2 * self.margin + (skew.labels() + 1).next_multiple_of(LANES) + LANES;
        self.rows.reserve(self.diagonals * rows_each * self.stride);
        self.rows.clear();
    }

    /// Where site u of a row is; `back` sites before it.
    fn place(&self, d: usize, row: usize, u: usize, back: usize) -> usize {
        (d % self.diagonals * self.rows_each + row) * self.stride + self.margin + u - back
    }
}

/// `α(n) = Σ_{arcs m -> n} α(m) p(m -> n)`, from the first site on.
#[derive(Debug, Default)]
pub(crate) struct Forward {
    /// `α(m) p(m -> n)` of each arc, at m.
    passed: Ring,
}

impl Forward {
    pub fn begin(&mut self, skew: &Skew) {
        self.passed.set(skew, skew.arcs().len());
    }

    /// Goes on to diagonal `d`, whose `α` is written.
    pub fn step(&mut self, skew: &Skew, d: usize, emissions: &[f64], alpha: &mut RowMut<'_>) {
        let (low, width) = (skew.low(d), skew.width(d));
        // What is left of u = 0, or came from a frame that d does not reach, is zero.
        sum_arcs(skew, alpha, |s, arc| {
            let from = d.checked_sub(arc.frames + arc.labels)?;
            Some(self.passed.rows.row(self.passed.place(from, s, low, arc.labels), width))
        });
        if d == 0 {
            alpha.set(0, Scaled::ONE);
        }
        for (s, emissions) in emissions.chunks_exact(width).enumerate() {
            let place = self.passed.place(d, s, low, 0);
            kernel::weigh(emissions, alpha.as_row(), self.passed.rows.row_mut(place, width));
        }
    }

    /// `α(m) p(m -> n)` of an arc at the sites m of a recent diagonal.
    pub fn passed(&self, skew: &Skew, d: usize, arc: usize) -> Row<'_> {
        self.passed.rows.row(self.passed.place(d, arc, skew.low(d), 0), skew.width(d))
    }
}

/// `β(m) = Σ_{arcs m -> n} p(m -> n) β(n)`, from the end of all paths back.
#[derive(Debug, Default)]
pub(crate) struct Backward {
    /// `p(m -> n) β(n)` of each arc at the sites m of the latest diagonal.
    ahead: Rows,
    beta: Ring,
}

impl Backward {
    pub fn begin(&mut self, skew: &Skew) {
        self.ahead.reserve(skew.arcs().len() * (skew.labels() + 1).next_multiple_of(LANES));
        self.beta.set(skew, 1);
        let end = self.beta.place(skew.end(), 0, skew.labels(), 0);
        self.beta.rows.row_mut(end, 1).set(0, Scaled::ONE);
    }

    /// Goes back to diagonal `d`.
    pub fn step(&mut self, skew: &Skew, d: usize, emissions: &[f64]) {
        let (low, width) = (skew.low(d), skew.width(d));
        for (s, (arc, emissions)) in skew.arcs().iter().zip(emissions.chunks_exact(width)).enumerate() {
            if skew.fits(arc) {
                let landing = self.beta.place(d + arc.frames + arc.labels, 0, low + arc.labels, 0);
                let out = self.ahead.row_mut(s * width, width);
                kernel::weigh(emissions, self.beta.rows.row(landing, width), out);
            }
        }
        let place = self.beta.place(d, 0, low, 0);
        sum_arcs(skew, &mut self.beta.rows.row_mut(place, width), |s, _| {
            Some(self.ahead.row(s * width, width))
        });
    }

    /// `β` of a recent diagonal.
    pub fn beta(&self, skew: &Skew, d: usize) -> Row<'_> {
        self.beta.rows.row(self.beta.place(d, 0, skew.low(d), 0), skew.width(d))
    }

    /// `p(m -> n) β(n)` of an arc at the sites m of the latest diagonal, `d`.
    pub fn ahead(&self, skew: &Skew, d: usize, arc: usize) -> Row<'_> {
        self.ahead.row(arc * skew.width(d), skew.width(d))
    }
}

/// Sums a row of each arc that fits, in the order of the arcs.
fn sum_arcs<'a>(skew: &Skew, out: &mut RowMut<'_>, row: impl Fn(usize, &Arc) -> Option<Row<'a>>) {
    let arcs = skew.arcs().iter().enumerate().filter(|(_, arc)| skew.fits(arc));
    let mut rows = arcs.filter_map(|(s, arc)| row(s, arc));
    match (rows.next(), rows.next()) {
        (Some(first), Some(second)) => kernel::sum(first, second, out),
        (first, _) => {
            out.fill(Scaled::ZERO);
            first.into_iter().for_each(|row| kernel::add(out, row));
        }
    }
    rows.for_each(|row| kernel::add(out, row));
}
