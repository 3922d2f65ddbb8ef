//! Transducer loss and adjoints of a pruned lattice, in the log semiring.
//!
//! Pruning retained a band of a few label positions for each frame. Anti-diagonals of a few sites
//! would not pay off, so the arcs of the band are listed once, and the forward (α) and the backward
//! (β) recursion iterate over the list. Full lattices use `utterance.rs` instead.
use kernels::{ScratchReq, ensure_capacity};

use crate::{
    TopologyArc,
    semiring::Log,
    topology::ArcTarget,
    walk::{self, Graph, Lattice, Transition, beta_after},
};

/// Buffers of banded lattices, reused from one lattice to the next.
#[derive(Debug, Default)]
pub(crate) struct BandedScratch {
    arcs: Vec<BandArc>,
    /// α of each retained site.
    alpha: Vec<f64>,
    /// β of each retained site.
    beta: Vec<f64>,
}

/// An arc between retained sites.
#[derive(Debug)]
struct BandArc {
    /// Index of the arc's emission in the row-major emissions of the lattice.
    emission: usize,
    /// Index of the source site.
    source: u32,
    /// Index of the target site, or [`END`].
    target: u32,
}

/// Target of an arc that ends the path.
const END: u32 = u32::MAX;

/// A lattice as a list of arcs, ordered by source site.
struct BandGraph<'a> {
    arcs: &'a [BandArc],
    emissions: &'a [f64],
    arcs_per_site: usize,
    start: Option<usize>,
}

impl BandGraph<'_> {
    /// Returns an arc as a transition; its `arc` is the emission index.
    fn transition(&self, &BandArc { emission, source, target }: &BandArc) -> Transition {
        let target = (target != END).then_some(target as usize);
        Transition { source: source as usize, target, arc: emission, log_prob: self.emissions[emission] }
    }
}

impl Graph for BandGraph<'_> {
    fn states(&self) -> usize {
        self.emissions.len() / self.arcs_per_site
    }

    fn start(&self) -> Option<usize> {
        self.start
    }

    fn arcs(&self) -> impl DoubleEndedIterator<Item = Transition> {
        self.arcs.iter().map(|arc| self.transition(arc))
    }

    fn arcs_from(&self, state: usize) -> impl Iterator<Item = Transition> {
        let first_arc = self.arcs.partition_point(|arc| (arc.source as usize) < state);
        let arcs = self.arcs[first_arc..].iter().take_while(move |arc| arc.source as usize == state);
        arcs.map(|arc| self.transition(arc))
    }
}

impl BandedScratch {
    /// Reserves memory for `arcs` arcs and `sites` sites.
    pub(crate) fn reserve(&mut self, arcs: usize, sites: usize) {
        ensure_capacity(&mut self.arcs, arcs);
        ensure_capacity(&mut self.alpha, sites);
        ensure_capacity(&mut self.beta, sites);
    }

    /// Scratch memory of [`Self::reserve`].
    pub(crate) fn scratch(arcs: usize, sites: usize) -> ScratchReq {
        ScratchReq::new::<BandArc>(arcs).and(ScratchReq::new::<f64>(sites).times(2))
    }

    /// Writes `-factor(arc)` times the posterior of each arc; returns the loss.
    ///
    /// `emissions` and `adjoints` have one element for each site and arc of the topology.
    pub(crate) fn forward_backward(
        &mut self,
        lattice: &Lattice,
        emissions: &[f64],
        factor: impl Fn(&TopologyArc) -> f64,
        adjoints: &mut [f64],
    ) -> f64 {
        let Self { arcs, alpha, beta } = self;
        let topology_arcs = lattice.topology().arcs();
        // The list of arcs.
        arcs.clear();
        for (index, site) in lattice.indexed_sites() {
            arcs.extend((0..topology_arcs.len()).filter_map(|arc| {
                let target = match lattice.arc_target(arc, site) {
                    ArcTarget::Site(target_index) => target_index as u32,
                    ArcTarget::End => END,
                    ArcTarget::Outside => return None,
                };
                let emission = index * topology_arcs.len() + arc;
                Some(BandArc { emission, source: index as u32, target })
            }));
        }
        let graph = BandGraph { arcs, emissions, arcs_per_site: topology_arcs.len(), start: lattice.start() };
        alpha.resize(graph.states(), 0.0);
        beta.resize(graph.states(), 0.0);
        adjoints.fill(0.0);
        // β, and from it the loss.
        walk::backward::<Log, _>(&graph, |arc| arc.log_prob, beta);
        let log_p = graph.start.map_or(f64::NEG_INFINITY, |start| beta[start]);
        // α, and at each of its arcs the posterior.
        if log_p.is_finite() {
            walk::forward_visit::<Log, _>(
                &graph,
                |arc| arc.log_prob,
                alpha,
                |arc, source_alpha| {
                    let posterior =
                        (source_alpha + arc.log_prob + beta_after::<Log>(arc, beta) - log_p).exp();
                    adjoints[arc.arc] = -factor(&topology_arcs[arc.arc % topology_arcs.len()]) * posterior;
                },
            );
        }
        -log_p
    }
}
