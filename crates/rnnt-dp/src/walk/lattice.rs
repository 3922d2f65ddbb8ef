//! Transducer lattice of one utterance as a graph for the arc walk.
use super::{Graph, Transition};
use crate::{
    EmissionTerm, Error, Lattices, Result, Site, Topology, forward_backward::expect_len, topology::ArcTarget,
};

/// The graph of an utterance, in any topology, full or banded; states are sites in their order.
#[derive(Debug, Clone, Copy)]
pub struct Lattice<'a> {
    lattices: &'a Lattices,
    topology: &'a Topology,
    utterance: usize,
    /// Emissions of the utterance.
    emissions: &'a [f64],
}

impl<'a> Lattice<'a> {
    /// Returns the lattice of an utterance of a batch.
    ///
    /// # Shapes
    /// `emissions` *N x S*, of the whole batch.
    ///
    /// # Errors
    /// A wrong length; an emission of the utterance that is NaN or +inf.
    ///
    /// # Panics
    /// If the utterance does not exist.
    pub fn new(
        lattices: &'a Lattices,
        topology: &'a Topology,
        emissions: &'a [f64],
        utterance: usize,
    ) -> Result<Self> {
        expect_len("emissions", lattices.sites() * topology.columns(), emissions.len())?;
        let lattice = Self::unchecked(lattices, topology, emissions, utterance);
        lattice.check()?;
        Ok(lattice)
    }

    pub(crate) fn unchecked(
        lattices: &'a Lattices,
        topology: &'a Topology,
        emissions: &'a [f64],
        utterance: usize,
    ) -> Self {
        let (range, columns) = (lattices.site_range(utterance), topology.columns());
        let emissions = &emissions[range.start * columns..range.end * columns];
        Self { lattices, topology, utterance, emissions }
    }

    /// Fails for the first emission that is NaN or +inf.
    pub(crate) fn check(&self) -> Result<()> {
        match self.arcs().find(|arc| arc.log_prob.is_nan() || arc.log_prob == f64::INFINITY) {
            None => Ok(()),
            Some(Transition { from, arc, log_prob: value, .. }) => {
                let Site { frame, label } = self.site(from);
                Err(Error::Emission { utterance: self.utterance, frame, label, arc, value })
            }
        }
    }

    /// The topology.
    pub fn topology(&self) -> &'a Topology {
        self.topology
    }

    /// T, the number of frames.
    pub fn frames(&self) -> usize {
        self.lattices.frames(self.utterance)
    }

    /// Returns the site of a state.
    pub fn site(&self, state: usize) -> Site {
        self.lattices.site(self.utterance, state)
    }

    pub(crate) fn emissions(&self) -> &'a [f64] {
        self.emissions
    }

    /// Iterates over the sites with their indices.
    pub(crate) fn sites(&self) -> impl DoubleEndedIterator<Item = (usize, Site)> + '_ {
        let index = |at| self.lattices.site_index(self.utterance, at).expect("the site exists");
        self.lattices.utterance_sites(self.utterance).map(move |at| (index(at), at))
    }

    /// Returns the target of an arc from a site.
    pub(crate) fn arc_target(&self, arc: usize, from: Site) -> ArcTarget {
        self.topology.arc_target(arc, from, self.lattices, self.utterance)
    }

    /// Returns the emission of an arc: the sum of its terms.
    pub(crate) fn emission(&self, site: usize, at: Site, arc: usize) -> f64 {
        let columns = self.topology.columns();
        let value = |term: &EmissionTerm| match self.term_site(site, at, term) {
            Some(site) => self.emissions[site * columns + term.column],
            None => f64::NEG_INFINITY,
        };
        self.topology.emission_terms(arc).iter().map(value).sum()
    }

    /// Returns the site index of an emission term of an arc.
    ///
    /// The arc leaves the site `at` of index `site`.
    pub(crate) fn term_site(&self, site: usize, at: Site, term: &EmissionTerm) -> Option<usize> {
        match term.labels {
            0 => Some(site),
            labels => self.lattices.site_index(self.utterance, Site { label: at.label + labels, ..at }),
        }
    }

    /// Iterates over the arcs from a site.
    fn site_arcs(&self, (site, at): (usize, Site)) -> impl DoubleEndedIterator<Item = Transition> + use<'a> {
        let lattice = *self;
        (0..self.topology.arcs().len()).filter_map(move |arc| {
            let to = match lattice.arc_target(arc, at) {
                ArcTarget::Site(to) => Some(to),
                ArcTarget::End => None,
                ArcTarget::Outside => return None,
            };
            Some(Transition { from: site, to, arc, log_prob: lattice.emission(site, at, arc) })
        })
    }
}

impl Graph for Lattice<'_> {
    fn states(&self) -> usize {
        self.lattices.site_range(self.utterance).len()
    }

    /// None if pruning removed the first site.
    fn start(&self) -> Option<usize> {
        self.lattices.site_index(self.utterance, Site { frame: 0, label: 0 })
    }

    fn arcs(&self) -> impl DoubleEndedIterator<Item = Transition> {
        self.sites().flat_map(|site| self.site_arcs(site))
    }

    fn arcs_from(&self, state: usize) -> impl Iterator<Item = Transition> {
        self.site_arcs((state, self.site(state)))
    }
}
