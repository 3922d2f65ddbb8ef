//! Loss and adjoints of a pruned lattice, in the log semiring.
//!
//! Pruning retained a band of a few label positions for each frame. Anti-diagonals of a few sites
//! would not pay off, so the arcs of the band are listed once, and the forward and the backward
//! recursion iterate over the list.
use kernels::{ScratchReq, ensure_capacity};

use crate::{
    TopologyArc,
    semiring::Log,
    topology::ArcTarget,
    walk::{self, Graph, Lattice, Transition, beta_after},
};

/// Memory of banded lattices, reused from one lattice to the next.
#[derive(Debug, Default)]
pub(crate) struct Banded {
    arcs: Vec<ArcEntry>,
    alpha: Vec<f64>,
    beta: Vec<f64>,
}

/// Emission index, source site and target site of an arc; [`END`] is the end of the path.
type ArcEntry = (usize, u32, u32);

/// Target of an arc that ends the path.
const END: u32 = u32::MAX;

/// A lattice as a list of arcs, ordered by source site.
struct BandArcs<'a> {
    arcs: &'a [ArcEntry],
    emissions: &'a [f64],
    arcs_per_site: usize,
    start: Option<usize>,
}

impl BandArcs<'_> {
    fn arc(&self, &(index, from, to): &ArcEntry) -> Transition {
        let to = (to != END).then_some(to as usize);
        Transition { from: from as usize, to, arc: index, log_prob: self.emissions[index] }
    }
}

impl Graph for BandArcs<'_> {
    fn states(&self) -> usize {
        self.emissions.len() / self.arcs_per_site
    }

    fn start(&self) -> Option<usize> {
        self.start
    }

    fn arcs(&self) -> impl DoubleEndedIterator<Item = Transition> {
        self.arcs.iter().map(|entry| self.arc(entry))
    }

    fn arcs_from(&self, state: usize) -> impl Iterator<Item = Transition> {
        let first = self.arcs.partition_point(|&(_, from, _)| (from as usize) < state);
        let arcs = self.arcs[first..].iter().take_while(move |&&(_, from, _)| from as usize == state);
        arcs.map(|entry| self.arc(entry))
    }
}

impl Banded {
    /// Reserves memory for `arcs` arcs and `sites` sites.
    pub fn reserve(&mut self, arcs: usize, sites: usize) {
        ensure_capacity(&mut self.arcs, arcs);
        ensure_capacity(&mut self.alpha, sites);
        ensure_capacity(&mut self.beta, sites);
    }

    /// Scratch memory of [`Self::reserve`].
    pub fn scratch(arcs: usize, sites: usize) -> ScratchReq {
        ScratchReq::new::<ArcEntry>(arcs).and(ScratchReq::new::<f64>(sites).times(2))
    }

    /// Writes `-factor(arc)` times the posterior of each arc; returns the loss.
    pub fn run(
        &mut self,
        lattice: &Lattice,
        emissions: &[f64],
        factor: impl Fn(&TopologyArc) -> f64,
        adjoints: &mut [f64],
    ) -> f64 {
        let Self { arcs, alpha, beta } = self;
        let topology_arcs = lattice.topology().arcs();
        arcs.clear();
        for (site, at) in lattice.sites() {
            arcs.extend((0..topology_arcs.len()).filter_map(|arc| {
                let to = match lattice.arc_target(arc, at) {
                    ArcTarget::Site(to) => to as u32,
                    ArcTarget::End => END,
                    ArcTarget::Outside => return None,
                };
                Some((site * topology_arcs.len() + arc, site as u32, to))
            }));
        }
        let graph = BandArcs { arcs, emissions, arcs_per_site: topology_arcs.len(), start: lattice.start() };
        alpha.resize(graph.states(), 0.0);
        beta.resize(graph.states(), 0.0);
        adjoints.fill(0.0);
        walk::backward::<Log, _>(&graph, |arc| arc.log_prob, beta);
        let log_p = graph.start.map_or(f64::NEG_INFINITY, |start| beta[start]);
        if log_p.is_finite() {
            walk::forward_visit::<Log, _>(
                &graph,
                |arc| arc.log_prob,
                alpha,
                |arc, before| {
                    let posterior = (before + arc.log_prob + beta_after::<Log>(arc, beta) - log_p).exp();
                    adjoints[arc.arc] = -factor(&topology_arcs[arc.arc % topology_arcs.len()]) * posterior;
                },
            );
        }
        -log_p
    }
}
