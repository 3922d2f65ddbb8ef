//! Transducer lattice of one utterance as a graph for semiring recursions.
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
    /// Emissions of the utterance: one row per site, one column per term of the topology.
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
        expect_len("emissions", lattices.num_sites() * topology.num_columns(), emissions.len())?;
        let lattice = Self::new_unchecked(lattices, topology, emissions, utterance);
        lattice.check_emissions()?;
        Ok(lattice)
    }

    /// Returns the lattice of an utterance without a check of the emissions.
    pub(crate) fn new_unchecked(
        lattices: &'a Lattices,
        topology: &'a Topology,
        emissions: &'a [f64],
        utterance: usize,
    ) -> Self {
        let (range, columns) = (lattices.site_range(utterance), topology.num_columns());
        let emissions = &emissions[range.start * columns..range.end * columns];
        Self { lattices, topology, utterance, emissions }
    }

    /// Fails for the first emission that is NaN or +inf.
    pub(crate) fn check_emissions(&self) -> Result<()> {
        match self.arcs().find(|arc| arc.log_prob.is_nan() || arc.log_prob == f64::INFINITY) {
            None => Ok(()),
            Some(Transition { source, arc, log_prob: value, .. }) => {
                let Site { frame, label } = self.site(source);
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
        self.lattices.num_frames(self.utterance)
    }

    /// Returns the site of a state.
    pub fn site(&self, state: usize) -> Site {
        self.lattices.site(self.utterance, state)
    }

    pub(crate) fn emissions(&self) -> &'a [f64] {
        self.emissions
    }

    /// Iterates over the sites with their indices in the utterance.
    pub(crate) fn indexed_sites(&self) -> impl DoubleEndedIterator<Item = (usize, Site)> + '_ {
        let index = |site| self.lattices.site_index(self.utterance, site).expect("the site exists");
        self.lattices.utterance_sites(self.utterance).map(move |site| (index(site), site))
    }

    /// Returns the target of an arc from a site.
    pub(crate) fn arc_target(&self, arc: usize, from: Site) -> ArcTarget {
        self.topology.arc_target(arc, from, self.lattices, self.utterance)
    }

    /// Returns the emission of an arc: the sum of its terms.
    ///
    /// The arc leaves the site `source` of index `source_index`.
    pub(crate) fn emission(&self, source_index: usize, source: Site, arc: usize) -> f64 {
        let columns = self.topology.num_columns();
        let value = |term: &EmissionTerm| match self.term_site_index(source_index, source, term) {
            Some(index) => self.emissions[index * columns + term.column],
            None => f64::NEG_INFINITY,
        };
        self.topology.emission_terms(arc).iter().map(value).sum()
    }

    /// Returns the index of the site whose column is an emission term.
    ///
    /// The term's arc leaves the site `source` of index `source_index`.
    pub(crate) fn term_site_index(
        &self,
        source_index: usize,
        source: Site,
        term: &EmissionTerm,
    ) -> Option<usize> {
        match term.label_offset {
            0 => Some(source_index),
            offset => {
                self.lattices.site_index(self.utterance, Site { label: source.label + offset, ..source })
            }
        }
    }

    /// Iterates over the arcs from a site.
    fn site_arcs(
        &self,
        source_index: usize,
        source: Site,
    ) -> impl DoubleEndedIterator<Item = Transition> + use<'a> {
        let lattice = *self;
        (0..self.topology.arcs().len()).filter_map(move |arc| {
            let target = match lattice.arc_target(arc, source) {
                ArcTarget::Site(target_index) => Some(target_index),
                ArcTarget::End => None,
                ArcTarget::Outside => return None,
            };
            let log_prob = lattice.emission(source_index, source, arc);
            Some(Transition { source: source_index, target, arc, log_prob })
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
        self.indexed_sites().flat_map(|(index, site)| self.site_arcs(index, site))
    }

    fn arcs_from(&self, state: usize) -> impl Iterator<Item = Transition> {
        self.site_arcs(state, self.site(state))
    }
}
