//! One lattice: both recursions, the sum over all paths, the adjoints.
//!
//! The recursions meet in the middle. One goes from the first diagonal to the middle, the other from the end, and each
//! leaves its sums behind. There they tell the sum over all paths, and each goes on through the sums of the other, which
//! makes the adjoints:
//!
//! ```text
//!              0 ........ middle ........ T + U
//! first        α ──────────► ◄────────── β
//! P = Σ over the arcs that cross the middle of α(m) p(m -> n) β(n)
//! second       ◄────────── β α ──────────►
//! ```
//!
//! So only one of α and β is kept for each diagonal, and the two recursions, which never write to the same diagonal, may
//! run at the same time. Emissions are read, and adjoints written, where the caller has them.
use kernels::{
    AlignedVec, ScratchReq, ensure_capacity,
    scaled::{self, Diagonals, Scaled, ScaledRow},
};

use crate::{
    Arc,
    banded::Banded,
    scaled_rows::ScaledRows,
    skew::{LaneSizes, Skew},
    sweep::{BackwardSweep, ForwardSweep},
    walk::Lattice,
};

impl LaneSizes {
    /// Scratch of a [`LaneScratch`] of these sizes, itself left out.
    pub fn scratch(&self) -> ScratchReq {
        let Self { kinds, diagonals, row, places, folded, band, .. } = *self;
        let of_diagonals = match diagonals {
            0 => ScratchReq::EMPTY,
            _ => ScratchReq::all_of([
                Skew::scratch(kinds, diagonals),
                ForwardSweep::scratch(self),
                BackwardSweep::scratch(self),
                ScratchReq::aligned::<f64>(kinds * row).times(2),
                ScaledRows::scratch(places),
                ScaledRows::scratch(row),
            ]),
        };
        let of_arcs = ScratchReq::new::<f64>(folded).times(2);
        of_diagonals.and(of_arcs).and(Banded::scratch(band.0, band.1))
    }
}

/// What work on a lattice needs, for use with one after the other.
#[derive(Debug, Default)]
pub(crate) struct LaneScratch {
    sizes: LaneSizes,
    skew: Skew,
    forward: ForwardSweep,
    backward: BackwardSweep,
    /// Adjoints of a diagonal, for either recursion.
    adjoints: [AlignedVec<f64>; 2],
    /// α before the middle, β from there on.
    sums: ScaledRows,
    /// α of the diagonal at hand, past the middle.
    alpha: ScaledRows,
    /// Emissions and adjoints of arcs, where they are not those of the columns.
    pub arcs: (Vec<f64>, Vec<f64>),
    /// α and β of retained sites.
    banded: Banded,
}

impl LaneScratch {
    /// Makes room for lattices of larger sizes; old and new memory never exist at the same time.
    pub fn reserve(&mut self, sizes: LaneSizes) {
        self.sizes = self.sizes.max(sizes);
        let sizes = &self.sizes;
        if sizes.diagonals > 0 {
            self.skew.reserve(sizes.kinds, sizes.diagonals);
            self.sums.reserve(sizes.places);
            self.alpha.reserve(sizes.row);
            for rows in &mut self.adjoints {
                rows.ensure_len(sizes.kinds * sizes.row, 0.0);
            }
            self.forward.reserve(sizes);
            self.backward.reserve(sizes);
        }
        ensure_capacity(&mut self.arcs.0, sizes.folded);
        ensure_capacity(&mut self.arcs.1, sizes.folded);
        self.banded.reserve(sizes.band.0, sizes.band.1);
    }

    /// The sizes of the buffers.
    pub fn sizes(&self) -> LaneSizes {
        self.sizes
    }

    /// Brings in a lattice and its emissions, and goes to the middle from both sides.
    ///
    /// Returns the sum over all paths, and whether it can be trusted. If not, an emission is NaN or +inf; perhaps one
    /// that no arc has, then it can be trusted all the same.
    pub fn meet(&mut self, frames: usize, labels: usize, arcs: &[Arc], emissions: &[f64]) -> (Scaled, bool) {
        self.begin(frames, labels, arcs);
        let (end, middle) = (self.skew.end(), self.middle());
        let Self { skew, forward, backward, sums, .. } = self;
        let (mut alpha, mut beta) = sums.all_mut().split_at(skew.offset(middle));
        let up = || {
            let mut sound = true;
            for d in 0..middle {
                let mut alpha = alpha.slice(skew.offset(d), skew.width(d));
                sound &= forward.step(skew, d, emissions, &mut alpha);
            }
            sound
        };
        let down = || {
            let mut sound = true;
            for d in (middle..=end).rev() {
                if d < end {
                    sound &= backward.step(skew, d, emissions);
                }
                let at = skew.offset(d) - skew.offset(middle);
                beta.slice(at, skew.width(d)).copy_from(backward.beta(skew, d));
            }
            sound
        };
        let sound = rayon::join(up, down);
        (self.crossing(), sound.0 && sound.1)
    }

    /// Goes on from the middle to both sides: writes `-factor(arc)` times the posterior of each arc, row-major.
    ///
    /// `total` is what [`Self::meet`] returned, not zero.
    pub fn part_again(
        &mut self,
        total: Scaled,
        factor: impl Fn(&Arc) -> f64 + Sync,
        emissions: &[f64],
        adjoints: &mut [f64],
    ) {
        let (end, middle) = (self.skew.end(), self.middle());
        let Self { skew, forward, backward, adjoints: [early_rows, late_rows], sums, alpha, .. } = self;
        let (skew, sums) = (&*skew, &*sums);
        let arcs = skew.arcs();
        let (mut early, mut late) = Diagonals::new(adjoints, skew.labels(), arcs.len()).split_at(middle);
        // Of the neighbours of the quotient the one that gives a lone path exactly its factor.
        let weight = |arc| {
            let (factor, mantissa) = (-factor(arc), total.mantissa);
            let near = factor / (1.0 + mantissa);
            let exact = |weight: &f64| mantissa.mul_add(*weight, *weight) == factor;
            [near, near.next_up(), near.next_down()].into_iter().find(exact).unwrap_or(near)
        };
        let up = || {
            for d in middle..end {
                let rows = &mut late_rows[..arcs.len() * skew.width(d)];
                forward.step(skew, d, emissions, &mut alpha.row_mut(0, skew.width(d)));
                for (s, (arc, out)) in arcs.iter().zip(rows.chunks_exact_mut(skew.width(d))).enumerate() {
                    match landing(skew, sums, d, arc) {
                        Some(beta) => {
                            let passed = forward.passed(skew, d, s);
                            scaled::posterior(passed, beta, weight(arc), total.exponent, out);
                        }
                        None => out.fill(0.0),
                    }
                }
                skew.scatter(d, true, rows, &mut late);
            }
        };
        let down = || {
            for d in (0..middle).rev() {
                let rows = &mut early_rows[..arcs.len() * skew.width(d)];
                backward.step(skew, d, emissions);
                let alpha = sums.row(skew.offset(d), skew.width(d));
                for (s, (arc, out)) in arcs.iter().zip(rows.chunks_exact_mut(skew.width(d))).enumerate() {
                    if skew.fits(arc) {
                        let ahead = backward.ahead(skew, d, s);
                        scaled::posterior(ahead, alpha, weight(arc), total.exponent, out);
                    } else {
                        out.fill(0.0);
                    }
                }
                skew.scatter(d, false, rows, &mut early);
            }
        };
        rayon::join(up, down);
    }

    /// The same for a lattice of which only bands were retained; returns the loss.
    pub fn banded(
        &mut self,
        lattice: &Lattice,
        emissions: &[f64],
        factor: impl Fn(&Arc) -> f64,
        adjoints: &mut [f64],
    ) -> f64 {
        self.banded.run(lattice, emissions, factor, adjoints)
    }

    /// Forgets numbers that are not finite.
    pub fn heal(&mut self) {
        self.sums.clear();
    }

    fn begin(&mut self, frames: usize, labels: usize, arcs: &[Arc]) {
        self.skew.set(frames, labels, arcs);
        self.forward.begin(&self.skew);
        self.backward.begin(&self.skew);
    }

    /// The first diagonal that the backward recursion keeps; at least 1.
    fn middle(&self) -> usize {
        self.skew.end().div_ceil(2)
    }

    /// Sum over all paths, each of which takes one arc across the middle.
    fn crossing(&self) -> Scaled {
        let (skew, middle) = (&self.skew, self.middle());
        let mut total = Scaled::ZERO;
        for (s, arc) in skew.arcs().iter().enumerate().filter(|(_, arc)| skew.fits(arc)) {
            for d in middle.saturating_sub(arc.frames + arc.labels)..middle {
                if let Some(beta) = landing(skew, &self.sums, d, arc) {
                    total = scaled::dot(total, self.forward.passed(skew, d, s), beta);
                }
            }
        }
        total
    }
}

/// β where an arc lands from the sites of a diagonal, the middle or later; none if all land outside.
///
/// Where only some do, the numbers mean nothing, and are multiplied with the probability of an arc that is not.
fn landing<'a>(skew: &Skew, beta: &'a ScaledRows, d: usize, arc: &Arc) -> Option<ScaledRow<'a>> {
    let to = d + arc.frames + arc.labels;
    let inside = skew.fits(arc) && to <= skew.end();
    inside.then(|| beta.row(skew.offset(to) + skew.low(d) + arc.labels - skew.low(to), skew.width(d)))
}
