//! Log-sums of all sites: the recursions of Graves 2012 as they are written, over logarithms.
use rayon::prelude::*;

use crate::{
    Error, Lattices, Result, Site, Topology,
    forward_backward::expect,
    log_add,
    topology::{Landing, Part},
};

/// Forward and backward log-sums of the packed sites.
#[derive(Debug, Clone, PartialEq)]
pub struct LogSums {
    /// `α`, *N*: log-sum over the partial paths that lead to a site; -inf where no path arrives.
    pub log_alpha: Vec<f64>,
    /// `β`, *N*: log-sum over those that lead on to the end; -inf where no path goes on. That of a lattice's first site
    /// is `log P`.
    pub log_beta: Vec<f64>,
}

/// Forward and backward log-sums of each lattice.
///
/// [`forward_backward`](fn@crate::forward_backward) does without logarithms and is much faster; these are for those who want
/// to see every sum.
///
/// # Shapes
/// `emissions` *N x S*, as there.
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow.
///
/// # Cost
/// O(N S) time, in parallel over utterances; `2 N` numbers. Each step of a path rounds at the size of the log-sum that it
/// passes.
pub fn log_sums(lattices: &Lattices, topology: &Topology, emissions: &[f64]) -> Result<LogSums> {
    expect("emissions", lattices.sites() * topology.columns(), emissions.len())?;
    let mut out = LogSums {
        log_alpha: vec![f64::NEG_INFINITY; lattices.sites()],
        log_beta: vec![f64::NEG_INFINITY; lattices.sites()],
    };
    let alphas = lattices.split_mut(&mut out.log_alpha, 1);
    let betas = lattices.split_mut(&mut out.log_beta, 1);
    let work: Vec<_> = alphas.into_iter().zip(betas).enumerate().collect();
    let outcomes = work.into_par_iter().map(|(utterance, (alpha, beta))| {
        let walk = Walk::new(lattices, topology, emissions, utterance);
        walk.check()?;
        walk.forward(alpha);
        walk.backward(beta);
        let loss = walk.loss(beta);
        if loss.is_nan() || loss == f64::NEG_INFINITY {
            return Err(Error::Overflow { utterance, loss });
        }
        Ok(())
    });
    // In utterance order, so that the same mistake always gives the same message.
    outcomes.collect::<Vec<Result<()>>>().into_iter().collect::<Result<()>>()?;
    Ok(out)
}

/// One utterance's lattice, arc by arc, whatever its topology and however much of it was retained.
pub(crate) struct Walk<'a> {
    lattices: &'a Lattices,
    pub topology: &'a Topology,
    utterance: usize,
    /// Those of the utterance.
    pub emissions: &'a [f64],
}

impl<'a> Walk<'a> {
    pub fn new(
        lattices: &'a Lattices,
        topology: &'a Topology,
        emissions: &'a [f64],
        utterance: usize,
    ) -> Self {
        let (range, columns) = (lattices.range(utterance), topology.columns());
        let emissions = &emissions[range.start * columns..range.end * columns];
        Self { lattices, topology, utterance, emissions }
    }

    /// `(site index, arc, landing, emission)` of every arc that exists, in site order.
    pub fn arcs(&self) -> impl DoubleEndedIterator<Item = (usize, usize, Landing, f64)> + '_ {
        let arcs = self.topology.arcs().len();
        self.sites().flat_map(move |(site, at)| {
            (0..arcs).filter_map(move |arc| match self.land(arc, at) {
                Landing::Nowhere => None,
                landing => Some((site, arc, landing, self.emission(site, at, arc))),
            })
        })
    }

    /// The sites and their indices.
    pub fn sites(&self) -> impl DoubleEndedIterator<Item = (usize, Site)> + '_ {
        let index = |at| self.lattices.place(self.utterance, at).expect("it is one of the sites");
        self.lattices.sites_of(self.utterance).map(move |at| (index(at), at))
    }

    /// T
    pub fn frames(&self) -> usize {
        self.lattices.frames(self.utterance)
    }

    /// Where an arc leads.
    pub fn land(&self, arc: usize, from: Site) -> Landing {
        self.topology.land(arc, from, self.lattices, self.utterance)
    }

    /// The sum of an arc's columns.
    pub fn emission(&self, site: usize, at: Site, arc: usize) -> f64 {
        let columns = self.topology.columns();
        let value = |part: Part| match self.partner(site, at, part) {
            Some(site) => self.emissions[site * columns + part.column],
            None => f64::NEG_INFINITY,
        };
        self.topology.parts(arc).map(value).sum()
    }

    /// The site whose column is a part of the emission of an arc that leaves from `at`, which is `site`.
    pub fn partner(&self, site: usize, at: Site, part: Part) -> Option<usize> {
        match part.labels {
            0 => Some(site),
            labels => self.lattices.place(self.utterance, Site { label: at.label + labels, ..at }),
        }
    }

    /// Names the first emission that is NaN or +inf.
    pub fn check(&self) -> Result<()> {
        match self.arcs().find(|&(.., e)| e.is_nan() || e == f64::INFINITY) {
            None => Ok(()),
            Some((site, arc, _, value)) => {
                let at = self.lattices.sites_of(self.utterance).nth(site);
                let Site { frame, label } = at.expect("an arc leaves from a site");
                Err(Error::Emission { utterance: self.utterance, frame, label, arc, value })
            }
        }
    }

    /// The site in which paths begin, if it was retained.
    pub fn start(&self) -> Option<usize> {
        self.lattices.place(self.utterance, Site { frame: 0, label: 0 })
    }

    /// `alpha` arrives as -inf. Arcs only lead to later sites, so one pass in site order is enough.
    pub fn forward(&self, alpha: &mut [f64]) {
        if let Some(start) = self.start() {
            alpha[start] = 0.0;
        }
        for (site, _, landing, emission) in self.arcs() {
            if let Landing::Site(to) = landing {
                alpha[to] = log_add(alpha[to], alpha[site] + emission);
            }
        }
    }

    /// `beta` arrives as -inf.
    pub fn backward(&self, beta: &mut [f64]) {
        for (site, _, landing, emission) in self.arcs().rev() {
            beta[site] = log_add(beta[site], emission + after(landing, beta));
        }
    }

    /// `-log P`.
    pub fn loss(&self, beta: &[f64]) -> f64 {
        self.start().map_or(f64::INFINITY, |start| -beta[start])
    }
}

/// `β` where an arc lands.
pub(crate) fn after(landing: Landing, beta: &[f64]) -> f64 {
    match landing {
        Landing::Site(to) => beta[to],
        Landing::End => 0.0,
        Landing::Nowhere => f64::NEG_INFINITY,
    }
}
