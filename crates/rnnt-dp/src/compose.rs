//! Emissions of arcs out of the columns that a caller has, and the adjoints back.
//!
//! ```text
//! e(arc) = Σ_parts column + shift      adjoint(column) = Σ_arcs with it  adjoint(arc), that of its token times 1 + λ
//! ```
//!
//! The recursions know arcs with emissions of their own. Where each arc is one column as it is, they read and write where the
//! caller has them, and nothing of this file is needed.
use crate::{Regularisers, Topology, topology::Landing, walk::Lattice};

/// Whether emissions of arcs are not just the columns.
pub(crate) fn composed(topology: &Topology, regularisers: &Regularisers) -> bool {
    !topology.is_plain() || !regularisers.shift_nothing()
}

/// Emissions of an utterance's arcs, -inf where there is no such arc.
pub(crate) fn fold(lattice: &Lattice, regularisers: &Regularisers, out: &mut Vec<f64>) {
    let (arcs, frames) = (lattice.topology().arcs(), lattice.frames());
    out.clear();
    for (site, at) in lattice.sites() {
        out.extend(arcs.iter().enumerate().map(|(arc, kind)| match lattice.land(arc, at) {
            Landing::Nowhere => f64::NEG_INFINITY,
            _ => lattice.emission(site, at, arc) + regularisers.shift(kind, at.frame, frames),
        }));
    }
}

/// Adds adjoints of arcs, none of them regularised, to those of the columns, which arrive as 0.
pub(crate) fn unfold(lattice: &Lattice, regularisers: &Regularisers, of_arcs: &[f64], columns: &mut [f64]) {
    let (arcs, width) = (lattice.topology().arcs(), lattice.topology().columns());
    for ((site, at), of_arcs) in lattice.sites().zip(of_arcs.chunks_exact(arcs.len())) {
        for (arc, (kind, &adjoint)) in arcs.iter().zip(of_arcs).enumerate() {
            if adjoint == 0.0 {
                continue;
            }
            let mut factor = regularisers.factor(kind.labels > 0);
            for part in lattice.topology().parts(arc) {
                let site =
                    lattice.partner(site, at, part).expect("an arc with an adjoint has all of its parts");
                columns[site * width + part.column] += factor * adjoint;
                factor = 1.0;
            }
        }
    }
}
