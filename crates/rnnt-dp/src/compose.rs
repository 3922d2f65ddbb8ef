//! Transducer arc emissions as sums of score columns (TDT, constrained topology, penalties).
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
pub(crate) fn compose_emissions(
    lattice: &Lattice,
    regularizers: &Regularizers,
    arc_emissions: &mut Vec<f64>,
) {
    let (arcs, frames) = (lattice.topology().arcs(), lattice.frames());
    arc_emissions.clear();
    for (index, site) in lattice.indexed_sites() {
        arc_emissions.extend(arcs.iter().enumerate().map(|(arc, topology_arc)| {
            match lattice.arc_target(arc, site) {
                ArcTarget::Outside => f64::NEG_INFINITY,
                _ => {
                    lattice.emission(index, site, arc)
                        + regularizers.emission_shift(topology_arc, site.frame, frames)
                }
            }
        }));
    }
}

/// Writes the adjoints of the columns from arc adjoints without regularizers.
///
/// `column_adjoints` must be 0.
pub(crate) fn scatter_adjoints(
    lattice: &Lattice,
    regularizers: &Regularizers,
    arc_adjoints: &[f64],
    column_adjoints: &mut [f64],
) {
    let (arcs, columns) = (lattice.topology().arcs(), lattice.topology().num_columns());
    for ((index, site), arc_adjoints) in lattice.indexed_sites().zip(arc_adjoints.chunks_exact(arcs.len())) {
        for (arc, (topology_arc, &adjoint)) in arcs.iter().zip(arc_adjoints).enumerate() {
            if adjoint == 0.0 {
                continue;
            }
            // The FastEmit factor applies to the token's column, which comes first.
            let mut factor = regularizers.adjoint_factor(topology_arc.labels > 0);
            for term in lattice.topology().emission_terms(arc) {
                let term_index = lattice
                    .term_site_index(index, site, term)
                    .expect("an arc with an adjoint has all of its terms");
                column_adjoints[term_index * columns + term.column] += factor * adjoint;
                factor = 1.0;
            }
        }
    }
}
