//! Log-sums of all sites: the recursions of Graves 2012 as they are written, over logarithms.
use rayon::prelude::*;

use crate::{Error, Lattices, Result, Topology, forward_backward::expect, log_add, topology::Landing};

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
    expect("emissions", lattices.sites() * topology.arcs().len(), emissions.len())?;
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
        let loss = -beta[0];
        if loss.is_nan() || loss == f64::NEG_INFINITY {
            return Err(Error::Overflow { utterance, loss });
        }
        Ok(())
    });
    // In utterance order, so that the same mistake always gives the same message.
    outcomes.collect::<Vec<Result<()>>>().into_iter().collect::<Result<()>>()?;
    Ok(out)
}

/// One utterance's lattice, arc by arc.
pub(crate) struct Walk<'a> {
    lattices: &'a Lattices,
    topology: &'a Topology,
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
        let (range, arcs) = (lattices.range(utterance), topology.arcs().len());
        Self { lattices, topology, utterance, emissions: &emissions[range.start * arcs..range.end * arcs] }
    }

    /// `(site index, arc, landing, emission)` of every arc that exists, in site order.
    fn arcs(&self) -> impl DoubleEndedIterator<Item = (usize, usize, Landing, f64)> + '_ {
        let (frames, labels) = (self.lattices.frames(self.utterance), self.lattices.labels(self.utterance));
        let arcs = self.topology.arcs().len();
        (0..frames * (labels + 1)).flat_map(move |site| {
            let at = crate::Site { frame: site / (labels + 1), label: site % (labels + 1) };
            (0..arcs).filter_map(move |arc| match self.topology.land(arc, at, frames, labels) {
                Landing::Nowhere => None,
                landing => Some((site, arc, landing, self.emissions[site * arcs + arc])),
            })
        })
    }

    /// Names the first emission that is NaN or +inf.
    pub fn check(&self) -> Result<()> {
        let labels = self.lattices.labels(self.utterance);
        match self.arcs().find(|&(.., e)| e.is_nan() || e == f64::INFINITY) {
            None => Ok(()),
            Some((site, arc, _, value)) => Err(Error::Emission {
                utterance: self.utterance,
                frame: site / (labels + 1),
                label: site % (labels + 1),
                arc,
                value,
            }),
        }
    }

    /// `alpha` arrives as -inf. Arcs only lead to later sites, so one pass in site order is enough.
    fn forward(&self, alpha: &mut [f64]) {
        alpha[0] = 0.0;
        for (site, _, landing, emission) in self.arcs() {
            if let Landing::Site(to) = landing {
                alpha[to] = log_add(alpha[to], alpha[site] + emission);
            }
        }
    }

    /// `beta` arrives as -inf.
    fn backward(&self, beta: &mut [f64]) {
        for (site, _, landing, emission) in self.arcs().rev() {
            beta[site] = log_add(beta[site], emission + after(landing, beta));
        }
    }
}

/// `β` where an arc lands.
fn after(landing: Landing, beta: &[f64]) -> f64 {
    match landing {
        Landing::Site(to) => beta[to],
        Landing::End => 0.0,
        Landing::Nowhere => f64::NEG_INFINITY,
    }
}
