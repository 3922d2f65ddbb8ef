//! One lattice of which pruning retained a band: the arc walk in the log semiring.
//!
//! Bands are a few sites wide, so that nothing is gained from anti-diagonals. Where a band lies is worked out once, as a list of
//! arcs, which either recursion goes through.
use kernels::{ScratchReq, ensure_capacity};

use crate::{
    Arc,
    semiring::Log,
    topology::Landing,
    walk::{self, Graph, Lattice, Transition, after},
};

/// Memory that is kept from one lattice to the next.
#[derive(Debug, Default)]
pub(crate) struct Banded {
    arcs: Vec<ArcEntry>,
    alpha: Vec<f64>,
    beta: Vec<f64>,
}

/// Where an arc that exists is among all, the site that it leaves, and the one it lands on, [`END`] for the end.
type ArcEntry = (usize, u32, u32);

const END: u32 = u32::MAX;

/// A lattice whose arcs are written down.
struct BandArcs<'a> {
    arcs: &'a [ArcEntry],
    emissions: &'a [f64],
    kinds: usize,
    start: Option<usize>,
}

impl BandArcs<'_> {
    fn arc(&self, &(at, from, to): &ArcEntry) -> Transition {
        let to = (to != END).then_some(to as usize);
        Transition { from: from as usize, to, arc: at, log_prob: self.emissions[at] }
    }
}

impl Graph for BandArcs<'_> {
    fn states(&self) -> usize {
        self.emissions.len() / self.kinds
    }

    fn start(&self) -> Option<usize> {
        self.start
    }

    fn arcs(&self) -> impl DoubleEndedIterator<Item = Transition> {
        self.arcs.iter().map(|entry| self.arc(entry))
    }

    fn leaving(&self, state: usize) -> impl Iterator<Item = Transition> {
        let first = self.arcs.partition_point(|&(_, from, _)| (from as usize) < state);
        let mine = self.arcs[first..].iter().take_while(move |&&(_, from, _)| from as usize == state);
        mine.map(|entry| self.arc(entry))
    }
}

impl Banded {
    /// Makes room for so many arcs and sites.
    pub fn reserve(&mut self, arcs: usize, sites: usize) {
        ensure_capacity(&mut self.arcs, arcs);
        ensure_capacity(&mut self.alpha, sites);
        ensure_capacity(&mut self.beta, sites);
    }

    /// Scratch of [`Self::reserve`].
    pub fn scratch(arcs: usize, sites: usize) -> ScratchReq {
        ScratchReq::new::<ArcEntry>(arcs).and(ScratchReq::new::<f64>(sites).times(2))
    }

    /// Writes `-factor(arc)` times the posterior of each arc; returns the loss.
    pub fn run(
        &mut self,
        lattice: &Lattice,
        emissions: &[f64],
        factor: impl Fn(&Arc) -> f64,
        adjoints: &mut [f64],
    ) -> f64 {
        let Self { arcs, alpha, beta } = self;
        let kinds = lattice.topology().arcs();
        arcs.clear();
        for (site, at) in lattice.sites() {
            arcs.extend((0..kinds.len()).filter_map(|arc| {
                let to = match lattice.land(arc, at) {
                    Landing::Site(to) => to as u32,
                    Landing::End => END,
                    Landing::Nowhere => return None,
                };
                Some((site * kinds.len() + arc, site as u32, to))
            }));
        }
        let graph = BandArcs { arcs, emissions, kinds: kinds.len(), start: lattice.start() };
        alpha.resize(graph.states(), 0.0);
        beta.resize(graph.states(), 0.0);
        adjoints.fill(0.0);
        walk::backward::<Log, _>(&graph, |arc| arc.log_prob, beta);
        let log_p = graph.start.map_or(f64::NEG_INFINITY, |start| beta[start]);
        if log_p.is_finite() {
            walk::forward_each::<Log, _>(
                &graph,
                |arc| arc.log_prob,
                alpha,
                |arc, before| {
                    let posterior = (before + arc.log_prob + after::<Log>(arc, beta) - log_p).exp();
                    adjoints[arc.arc] = -factor(&kinds[arc.arc % kinds.len()]) * posterior;
                },
            );
        }
        -log_p
    }
}
