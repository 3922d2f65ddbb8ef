//! Arc emissions as sums of score columns (TDT, constrained topology, penalties).
//!
//! ```text
//! e(arc) = Σ_terms column + shift      adjoint(column) = Σ_arcs adjoint(arc)
//! ```
//! Emission e: log-probability of an arc; column: one of the caller's S numbers at a site; shift:
//! delay penalty and σ; the second sum is over the arcs that have the column as a term. Adjoints of
//! label columns are multiplied by 1 + λ (FastEmit).
//!
//! The recursions need one emission for each arc. Where every arc is exactly one column, they read
//! and write the caller's columns, and this module is not used.
use crate::{Regularizers, Topology, topology::ArcTarget, walk::Lattice};

/// Returns true if arc emissions differ from the columns.
pub(crate) fn needs_composition(topology: &Topology, regularizers: &Regularizers) -> bool {
    !topology.is_plain() || !regularizers.has_no_shift()
}

/// Writes the arc emissions of an utterance; -inf where there is no such arc.
pub(crate) fn compose_emissions(lattice: &Lattice, regularizers: &Regularizers, out: &mut Vec<f64>) {
    let (arcs, frames) = (lattice.topology().arcs(), lattice.frames());
    out.clear();
    for (site, at) in lattice.sites() {
        out.extend(arcs.iter().enumerate().map(|(arc, kind)| match lattice.arc_target(arc, at) {
            ArcTarget::Outside => f64::NEG_INFINITY,
            _ => lattice.emission(site, at, arc) + regularizers.emission_shift(kind, at.frame, frames),
        }));
    }
}

/// Writes the adjoints of the columns from arc adjoints without regularizers.
///
/// `columns` must be 0.
pub(crate) fn scatter_adjoints(
    lattice: &Lattice,
    regularizers: &Regularizers,
    arc_adjoints: &[f64],
    columns: &mut [f64],
) {
    let (arcs, width) = (lattice.topology().arcs(), lattice.topology().columns());
    for ((site, at), arc_adjoints) in lattice.sites().zip(arc_adjoints.chunks_exact(arcs.len())) {
        for (arc, (kind, &adjoint)) in arcs.iter().zip(arc_adjoints).enumerate() {
            if adjoint == 0.0 {
                continue;
            }
            let mut factor = regularizers.adjoint_factor(kind.labels > 0);
            for term in lattice.topology().emission_terms(arc) {
                let site =
                    lattice.term_site(site, at, term).expect("an arc with an adjoint has all of its terms");
                columns[site * width + term.column] += factor * adjoint;
                factor = 1.0;
            }
        }
    }
}
