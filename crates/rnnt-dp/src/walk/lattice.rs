//! One utterance's lattice as a graph: its sites, and an arc for each move that lands.
use super::{Graph, Transition};
use crate::{Error, Lattices, Part, Result, Site, Topology, forward_backward::expect, topology::Landing};

/// The graph of an utterance, whatever its topology and however much of it was retained. States are sites in their order.
#[derive(Debug, Clone, Copy)]
pub struct Lattice<'a> {
    lattices: &'a Lattices,
    topology: &'a Topology,
    utterance: usize,
    /// Those of the utterance.
    emissions: &'a [f64],
}

impl<'a> Lattice<'a> {
    /// The lattice of an utterance of a batch.
    ///
    /// # Shapes
    /// `emissions` *N x S*, of the whole batch.
    ///
    /// # Errors
    /// A wrong length; an emission of the utterance that is NaN or +inf.
    ///
    /// # Panics
    /// If there is no such utterance.
    pub fn new(
        lattices: &'a Lattices,
        topology: &'a Topology,
        emissions: &'a [f64],
        utterance: usize,
    ) -> Result<Self> {
        expect("emissions", lattices.sites() * topology.columns(), emissions.len())?;
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
        let (range, columns) = (lattices.range(utterance), topology.columns());
        let emissions = &emissions[range.start * columns..range.end * columns];
        Self { lattices, topology, utterance, emissions }
    }

    /// Names the first emission that is NaN or +inf.
    pub(crate) fn check(&self) -> Result<()> {
        match self.arcs().find(|arc| arc.log_prob.is_nan() || arc.log_prob == f64::INFINITY) {
            None => Ok(()),
            Some(Transition { from, arc, log_prob: value, .. }) => {
                let Site { frame, label } = self.site(from);
                Err(Error::Emission { utterance: self.utterance, frame, label, arc, value })
            }
        }
    }

    /// Its moves.
    pub fn topology(&self) -> &'a Topology {
        self.topology
    }

    /// T
    pub fn frames(&self) -> usize {
        self.lattices.frames(self.utterance)
    }

    /// The site that a state is.
    pub fn site(&self, state: usize) -> Site {
        self.lattices.site(self.utterance, state)
    }

    pub(crate) fn emissions(&self) -> &'a [f64] {
        self.emissions
    }

    /// The sites and their indices.
    pub(crate) fn sites(&self) -> impl DoubleEndedIterator<Item = (usize, Site)> + '_ {
        let index = |at| self.lattices.place(self.utterance, at).expect("it is one of the sites");
        self.lattices.sites_of(self.utterance).map(move |at| (index(at), at))
    }

    /// Where an arc leads.
    pub(crate) fn land(&self, arc: usize, from: Site) -> Landing {
        self.topology.land(arc, from, self.lattices, self.utterance)
    }

    /// The sum of an arc's columns.
    pub(crate) fn emission(&self, site: usize, at: Site, arc: usize) -> f64 {
        let columns = self.topology.columns();
        let value = |part: &Part| match self.partner(site, at, part) {
            Some(site) => self.emissions[site * columns + part.column],
            None => f64::NEG_INFINITY,
        };
        self.topology.parts(arc).iter().map(value).sum()
    }

    /// The site whose column is a part of the emission of an arc that leaves from `at`, which is `site`.
    pub(crate) fn partner(&self, site: usize, at: Site, part: &Part) -> Option<usize> {
        match part.labels {
            0 => Some(site),
            labels => self.lattices.place(self.utterance, Site { label: at.label + labels, ..at }),
        }
    }

    /// The arcs from a site.
    fn from(&self, (site, at): (usize, Site)) -> impl DoubleEndedIterator<Item = Transition> + use<'a> {
        let lattice = *self;
        (0..self.topology.arcs().len()).filter_map(move |arc| {
            let to = match lattice.land(arc, at) {
                Landing::Site(to) => Some(to),
                Landing::End => None,
                Landing::Nowhere => return None,
            };
            Some(Transition { from: site, to, arc, log_prob: lattice.emission(site, at, arc) })
        })
    }
}

impl Graph for Lattice<'_> {
    fn states(&self) -> usize {
        self.lattices.range(self.utterance).len()
    }

    /// Pruning may have left it out.
    fn start(&self) -> Option<usize> {
        self.lattices.place(self.utterance, Site { frame: 0, label: 0 })
    }

    fn arcs(&self) -> impl DoubleEndedIterator<Item = Transition> {
        self.sites().flat_map(|site| self.from(site))
    }

    fn leaving(&self, state: usize) -> impl Iterator<Item = Transition> {
        self.from((state, self.site(state)))
    }
}
