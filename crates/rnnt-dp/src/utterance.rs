//! Transducer loss and adjoints of one full lattice; α and β run in parallel.
//!
//! The recursions start at both ends and stop in the middle, where their sums give the sum P over
//! all paths. Each then continues over the stored sums of the other and computes the adjoints:
//!
//! ```text
//!              0 ........ middle ........ T + U        (anti-diagonals d = t + u)
//! first        α ──────────► ◄────────── β
//! P = Σ over the arcs m -> n that cross the middle of α(m) p(m -> n) β(n)
//! second       ◄────────── β α ──────────►
//! ```
//!
//! Only one of α and β is stored for each diagonal, and the two recursions never write to the same
//! diagonal, so they run in parallel. Emissions and adjoints stay in the caller's buffers.
use kernels::{
    AlignedVec, ScratchReq, ensure_capacity,
    scaled::{self, Diagonals, Scaled, ScaledRow},
};

use crate::{
    TopologyArc,
    anti_diagonals::{AntiDiagonals, LaneSizes},
    banded::BandedScratch,
    recursions::{BackwardRecursion, ForwardRecursion},
    scaled_rows::ScaledRows,
    walk::Lattice,
};

impl LaneSizes {
    /// Scratch memory of a [`LaneScratch`] of these sizes, without the struct.
    pub(crate) fn scratch(&self) -> ScratchReq {
        let Self { arcs, diagonals, row_len, elements, composed, band_arcs, band_sites, .. } = *self;
        let diagonal_scratch = match diagonals {
            0 => ScratchReq::EMPTY,
            _ => ScratchReq::all_of([
                AntiDiagonals::scratch(arcs, diagonals),
                ForwardRecursion::scratch(self),
                BackwardRecursion::scratch(self),
                ScratchReq::aligned::<f64>(arcs * row_len).times(2),
                ScaledRows::scratch(elements),
                ScaledRows::scratch(row_len),
            ]),
        };
        let arc_scratch = ScratchReq::new::<f64>(composed).times(2);
        diagonal_scratch.and(arc_scratch).and(BandedScratch::scratch(band_arcs, band_sites))
    }
}

/// Buffers of a lane, reused from one lattice to the next.
#[derive(Debug, Default)]
pub(crate) struct LaneScratch {
    sizes: LaneSizes,
    diagonals: AntiDiagonals,
    forward: ForwardRecursion,
    backward: BackwardRecursion,
    /// Adjoints of a diagonal, one buffer for each recursion.
    adjoints: [AlignedVec<f64>; 2],
    /// α before the middle, β from the middle on.
    sums: ScaledRows,
    /// α of the current diagonal after the middle.
    alpha: ScaledRows,
    /// Composed emissions of the arcs.
    pub arc_emissions: Vec<f64>,
    /// Adjoints of the composed emissions.
    pub arc_adjoints: Vec<f64>,
    /// Buffers of banded lattices.
    banded: BandedScratch,
}

impl LaneScratch {
    /// Reserves memory for larger lattices; old and new buffers never exist at the same time.
    pub(crate) fn reserve(&mut self, sizes: LaneSizes) {
        self.sizes = self.sizes.max(sizes);
        let sizes = &self.sizes;
        if sizes.diagonals > 0 {
            self.diagonals.reserve(sizes.arcs, sizes.diagonals);
            self.sums.reserve(sizes.elements);
            self.alpha.reserve(sizes.row_len);
            for rows in &mut self.adjoints {
                rows.ensure_len(sizes.arcs * sizes.row_len, 0.0);
            }
            self.forward.reserve(sizes);
            self.backward.reserve(sizes);
        }
        ensure_capacity(&mut self.arc_emissions, sizes.composed);
        ensure_capacity(&mut self.arc_adjoints, sizes.composed);
        self.banded.reserve(sizes.band_arcs, sizes.band_sites);
    }

    /// Sizes of the buffers.
    pub(crate) fn sizes(&self) -> LaneSizes {
        self.sizes
    }

    /// Sets a lattice and runs both recursions to the middle.
    ///
    /// Returns the sum over all paths, and true if it is valid. If false, an emission is NaN or
    /// +inf. The sum is still valid if that emission belongs to no arc.
    pub(crate) fn run_to_middle(
        &mut self,
        frames: usize,
        labels: usize,
        arcs: &[TopologyArc],
        emissions: &[f64],
    ) -> (Scaled, bool) {
        self.begin(frames, labels, arcs);
        let (end, middle) = (self.diagonals.end(), self.middle());
        let Self { diagonals, forward, backward, sums, .. } = self;
        // α of the diagonals before the middle, β from the middle on.
        let (mut alpha, mut beta) = sums.all_mut().split_at(diagonals.offset(middle));
        let run_forward = || {
            let mut is_valid = true;
            for d in 0..middle {
                let mut alpha = alpha.slice(diagonals.offset(d), diagonals.width(d));
                is_valid &= forward.step(diagonals, d, emissions, &mut alpha);
            }
            is_valid
        };
        let run_backward = || {
            let mut is_valid = true;
            for d in (middle..=end).rev() {
                if d < end {
                    is_valid &= backward.step(diagonals, d, emissions);
                }
                let start = diagonals.offset(d) - diagonals.offset(middle);
                beta.slice(start, diagonals.width(d)).copy_from(backward.beta(diagonals, d));
            }
            is_valid
        };
        let (alpha_valid, beta_valid) = rayon::join(run_forward, run_backward);
        (self.total(), alpha_valid && beta_valid)
    }

    /// Runs both recursions from the middle and writes the adjoints.
    ///
    /// An adjoint is `-factor(arc)` times the posterior of the arc, row-major. `total` is the sum
    /// that [`Self::run_to_middle`] returned, not zero.
    pub(crate) fn run_from_middle(
        &mut self,
        total: Scaled,
        factor: impl Fn(&TopologyArc) -> f64 + Sync,
        emissions: &[f64],
        adjoints: &mut [f64],
    ) {
        let (end, middle) = (self.diagonals.end(), self.middle());
        let Self { diagonals, forward, backward, adjoints: [early_rows, late_rows], sums, alpha, .. } = self;
        let (diagonals, sums) = (&*diagonals, &*sums);
        let arcs = diagonals.arcs();
        let (mut early_adjoints, mut late_adjoints) =
            Diagonals::new(adjoints, diagonals.labels(), arcs.len()).split_at(middle);
        // A lattice with a single path must have a posterior of exactly 1. The rounded quotient or
        // one of its neighbors gives it.
        let adjoint_scale = |arc| {
            let (factor, mantissa) = (-factor(arc), total.mantissa);
            let quotient = factor / (1.0 + mantissa);
            let is_exact = |scale: &f64| mantissa.mul_add(*scale, *scale) == factor;
            [quotient, quotient.next_up(), quotient.next_down()]
                .into_iter()
                .find(is_exact)
                .unwrap_or(quotient)
        };
        // α continues over the stored β, one diagonal at a time.
        let run_forward = || {
            for d in middle..end {
                let rows = &mut late_rows[..arcs.len() * diagonals.width(d)];
                forward.step(diagonals, d, emissions, &mut alpha.row_mut(0, diagonals.width(d)));
                let arc_rows = arcs.iter().zip(rows.chunks_exact_mut(diagonals.width(d)));
                for (arc_index, (arc, out)) in arc_rows.enumerate() {
                    match target_beta(diagonals, sums, d, arc) {
                        Some(beta) => {
                            let arc_alpha = forward.arc_alpha(diagonals, d, arc_index);
                            scaled::posterior(arc_alpha, beta, adjoint_scale(arc), total.exponent, out);
                        }
                        None => out.fill(0.0),
                    }
                }
                diagonals.scatter(d, true, rows, &mut late_adjoints);
            }
        };
        // β continues over the stored α.
        let run_backward = || {
            for d in (0..middle).rev() {
                let rows = &mut early_rows[..arcs.len() * diagonals.width(d)];
                backward.step(diagonals, d, emissions);
                let alpha = sums.row(diagonals.offset(d), diagonals.width(d));
                let arc_rows = arcs.iter().zip(rows.chunks_exact_mut(diagonals.width(d)));
                for (arc_index, (arc, out)) in arc_rows.enumerate() {
                    if diagonals.arc_fits(arc) {
                        let arc_beta = backward.arc_beta(diagonals, d, arc_index);
                        scaled::posterior(arc_beta, alpha, adjoint_scale(arc), total.exponent, out);
                    } else {
                        out.fill(0.0);
                    }
                }
                diagonals.scatter(d, false, rows, &mut early_adjoints);
            }
        };
        rayon::join(run_forward, run_backward);
    }

    /// Writes `-factor(arc)` times each arc posterior of a banded lattice; returns the loss.
    pub(crate) fn run_banded(
        &mut self,
        lattice: &Lattice,
        emissions: &[f64],
        factor: impl Fn(&TopologyArc) -> f64,
        adjoints: &mut [f64],
    ) -> f64 {
        self.banded.forward_backward(lattice, emissions, factor, adjoints)
    }

    /// Clears sums that are not finite.
    pub(crate) fn clear_sums(&mut self) {
        self.sums.clear();
    }

    fn begin(&mut self, frames: usize, labels: usize, arcs: &[TopologyArc]) {
        self.diagonals.set(frames, labels, arcs);
        self.forward.begin(&self.diagonals);
        self.backward.begin(&self.diagonals);
    }

    /// First diagonal that the backward recursion stores; at least 1.
    fn middle(&self) -> usize {
        self.diagonals.end().div_ceil(2)
    }

    /// Returns the sum over all paths: each takes exactly one arc across the middle.
    fn total(&self) -> Scaled {
        let (diagonals, middle) = (&self.diagonals, self.middle());
        let mut total = Scaled::ZERO;
        let fitting_arcs = diagonals.arcs().iter().enumerate().filter(|(_, arc)| diagonals.arc_fits(arc));
        for (arc_index, arc) in fitting_arcs {
            for d in middle.saturating_sub(arc.frames + arc.labels)..middle {
                if let Some(beta) = target_beta(diagonals, &self.sums, d, arc) {
                    total = scaled::dot(total, self.forward.arc_alpha(diagonals, d, arc_index), beta);
                }
            }
        }
        total
    }
}

/// Returns β at the targets of an arc from diagonal `d`.
///
/// The targets must be in the middle or later. `None` if all targets are outside the lattice.
/// Elements of outside targets are arbitrary; they are multiplied by the zero probability of
/// missing arcs.
fn target_beta<'a>(
    diagonals: &AntiDiagonals,
    beta: &'a ScaledRows,
    d: usize,
    arc: &TopologyArc,
) -> Option<ScaledRow<'a>> {
    let target_d = d + arc.frames + arc.labels;
    let is_inside = diagonals.arc_fits(arc) && target_d <= diagonals.end();
    is_inside.then(|| {
        beta.row(
            diagonals.offset(target_d) + diagonals.min_label(d) + arc.labels - diagonals.min_label(target_d),
            diagonals.width(d),
        )
    })
}
