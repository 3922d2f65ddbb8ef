//! Forward and backward log-sums α and β at every transducer lattice site.
//!
//! This is the plain form of the loss's recursions, for inspection, sampling and tests.
use rayon::prelude::*;

use crate::{
    Error, Lattices, Result, Topology,
    forward_backward::expect_len,
    semiring::Log,
    walk::{self, Graph, Lattice},
};

/// Forward and backward log-sums of packed sites (N in the batch).
#[derive(Debug, Clone, PartialEq)]
pub struct LogSums {
    /// `α`, *N*: log-sum over the partial paths from the start to a site; -inf if there is none.
    pub log_alpha: Vec<f64>,
    /// `β`, *N*: log-sum over the partial paths from a site to the end.
    ///
    /// -inf if there is none. The value of a lattice's first site is `log P`.
    pub log_beta: Vec<f64>,
}

/// Returns the forward and backward log-sums of each lattice.
///
/// [`forward_backward`](fn@crate::forward_backward) avoids logarithms and is much faster; use this
/// function to inspect every sum.
///
/// # Shapes
/// `emissions` *N x S*, as in [`forward_backward`](fn@crate::forward_backward).
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow.
///
/// # Cost
/// O(N S) time, in parallel over utterances; `2 N` numbers. Each step of a path rounds relative to
/// the size of its log-sum.
pub fn log_sums(lattices: &Lattices, topology: &Topology, emissions: &[f64]) -> Result<LogSums> {
    expect_len("emissions", lattices.num_sites() * topology.num_columns(), emissions.len())?;
    let mut out =
        LogSums { log_alpha: vec![0.0; lattices.num_sites()], log_beta: vec![0.0; lattices.num_sites()] };
    let alphas = lattices.split_mut(&mut out.log_alpha, 1);
    let betas = lattices.split_mut(&mut out.log_beta, 1);
    let utterances: Vec<_> = alphas.into_iter().zip(betas).enumerate().collect();
    let outcomes = utterances.into_par_iter().map(|(utterance, (alpha, beta))| {
        let lattice = Lattice::new(lattices, topology, emissions, utterance)?;
        walk::forward::<Log, _>(&lattice, |arc| arc.log_prob, alpha);
        walk::backward::<Log, _>(&lattice, |arc| arc.log_prob, beta);
        let loss = lattice.start().map_or(f64::INFINITY, |start| -beta[start]);
        if loss.is_nan() || loss == f64::NEG_INFINITY {
            return Err(Error::Overflow { utterance, loss });
        }
        Ok(())
    });
    // In utterance order, so that the same error is returned for every thread count.
    outcomes.collect::<Vec<Result<()>>>().into_iter().collect::<Result<()>>()?;
    Ok(out)
}
