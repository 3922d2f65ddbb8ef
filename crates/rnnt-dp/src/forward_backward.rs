//! Losses, arc posteriors and adjoints of a batch of lattices.
use rayon::prelude::*;

use crate::{Error, Lattices, Result, Topology, log_add, topology::Landing};

/// Changes to the gradient that leave the loss as it is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Regularisers {
    /// FastEmit λ: adjoints of arcs that emit a label are multiplied by `1 + λ` (Yu et al. 2021, equation 9).
    pub fastemit: f64,
}

/// What the lattices say about their emissions.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    /// `-log P` of each utterance, *B*; +inf where no path has a positive probability.
    pub losses: Vec<f64>,
    /// `dloss/demission`, *N x S*, regularised; 0 for arcs that do not exist and for impossible utterances.
    pub adjoints: Vec<f64>,
    /// Forward log-sums, *N*; -inf where no path arrives.
    pub log_alpha: Vec<f64>,
    /// Backward log-sums, *N*; -inf where no path goes on.
    pub log_beta: Vec<f64>,
}

impl Posterior {
    /// Probability that a path visits each site, *N*: `γ = exp(α + β - log P)`.
    ///
    /// Along each anti-diagonal of regular RNN-T it sums to 1. 0 for impossible utterances.
    ///
    /// # Errors
    /// Lattices of another batch.
    pub fn occupancies(&self, lattices: &Lattices) -> Result<Vec<f64>> {
        let expect = |argument, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(Error::Length { argument, expected, found }),
        };
        expect("lattices.sites", self.log_alpha.len(), lattices.sites())?;
        expect("lattices.batch", self.losses.len(), lattices.batch())?;
        let mut occupancies = vec![0.0; lattices.sites()];
        for utterance in (0..lattices.batch()).filter(|&b| self.losses[b].is_finite()) {
            for site in lattices.range(utterance) {
                let log = self.log_alpha[site] + self.log_beta[site] + self.losses[utterance];
                occupancies[site] = log.exp();
            }
        }
        Ok(occupancies)
    }
}

/// Sums over all paths of each lattice, forwards and backwards.
///
/// The formulas are at the top of the crate.
///
/// # Shapes
/// `emissions` *N x S* with S the number of arcs of the topology, sites packed as [`Lattices`] says. Entries of
/// arcs that would leave the lattice (a label at u = U) are not read.
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow. An utterance without a path is not an error: its loss is
/// +inf and its adjoints are 0.
///
/// # Cost
/// O(N S) time, in parallel over utterances, `N (S + 2)` numbers. Each step of a path rounds at most at the size of
/// the log-sums it passes, so that a loss errs by less than `(T + U) · 4e-16` times the largest of them.
pub fn forward_backward(
    lattices: &Lattices,
    topology: &Topology,
    emissions: &[f64],
    regularisers: &Regularisers,
) -> Result<Posterior> {
    let (n, arcs) = (lattices.sites(), topology.arcs().len());
    if emissions.len() != n * arcs {
        return Err(Error::Length { argument: "emissions", expected: n * arcs, found: emissions.len() });
    }
    let fastemit = regularisers.fastemit;
    if !fastemit.is_finite() || fastemit < 0.0 {
        return Err(Error::Regulariser { argument: "fastemit", found: fastemit });
    }
    let mut out = Posterior {
        losses: vec![0.0; lattices.batch()],
        adjoints: vec![0.0; n * arcs],
        log_alpha: vec![f64::NEG_INFINITY; n],
        log_beta: vec![f64::NEG_INFINITY; n],
    };
    let adjoints = lattices.split_mut(&mut out.adjoints, arcs);
    let alphas = lattices.split_mut(&mut out.log_alpha, 1);
    let betas = lattices.split_mut(&mut out.log_beta, 1);
    let work: Vec<_> = adjoints.into_iter().zip(alphas).zip(betas).zip(&mut out.losses).enumerate().collect();
    let bad = work.into_par_iter().map(|(utterance, (((adjoints, alpha), beta), loss))| {
        let range = lattices.range(utterance);
        let walk = Walk {
            lattices,
            topology,
            utterance,
            emissions: &emissions[range.start * arcs..range.end * arcs],
        };
        walk.check()?;
        walk.forward(alpha);
        walk.backward(beta);
        *loss = -beta[0];
        if loss.is_nan() || *loss == f64::NEG_INFINITY {
            return Err(Error::Overflow { utterance, loss: *loss });
        }
        if loss.is_finite() {
            walk.adjoints(alpha, beta, *loss, fastemit, adjoints);
        }
        Ok(())
    });
    // In utterance order, so that the same mistake always gives the same message.
    bad.collect::<Vec<Result<()>>>().into_iter().collect::<Result<()>>()?;
    Ok(out)
}

/// One utterance's lattice.
struct Walk<'a> {
    lattices: &'a Lattices,
    topology: &'a Topology,
    utterance: usize,
    emissions: &'a [f64],
}

impl Walk<'_> {
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

    fn check(&self) -> Result<()> {
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

    fn adjoints(&self, alpha: &[f64], beta: &[f64], loss: f64, fastemit: f64, adjoints: &mut [f64]) {
        let arcs = self.topology.arcs();
        for (site, arc, landing, emission) in self.arcs() {
            let occupancy = (alpha[site] + emission + after(landing, beta) + loss).exp();
            let scale = if arcs[arc].labels > 0 { 1.0 + fastemit } else { 1.0 };
            adjoints[site * arcs.len() + arc] = -scale * occupancy;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// All emissions log 1/2: every path has T + U arcs, and there are C(T+U-1, U) of them.
    #[test]
    fn counts_paths() {
        let lattices = Lattices::new(vec![1, 5, 3, 1], vec![0, 2, 4, 3]).unwrap();
        let emissions = vec![0.5f64.ln(); lattices.sites() * 2];
        let out =
            forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularisers::default()).unwrap();
        for (loss, (steps, paths)) in
            out.losses.iter().zip([(1.0, 1.0), (7.0, 15.0), (7.0, 15.0), (4.0, 1.0)])
        {
            let want: f64 = steps * 2f64.ln() - f64::ln(paths);
            assert!((loss - want).abs() < 1e-12, "{loss} {want}");
        }
    }

    /// One arc a frame: every path has T arcs, and there are C(T, U) of them, none if U > T.
    #[test]
    fn counts_modified_paths() {
        let lattices = Lattices::new(vec![1, 5, 3, 2], vec![1, 2, 3, 3]).unwrap();
        let emissions = vec![0.5f64.ln(); lattices.sites() * 2];
        let out =
            forward_backward(&lattices, &Topology::modified(), &emissions, &Regularisers::default()).unwrap();
        for (loss, (steps, paths)) in out.losses.iter().zip([(1.0, 1.0), (5.0, 10.0), (3.0, 1.0)]) {
            let want: f64 = steps * 2f64.ln() - f64::ln(paths);
            assert!((loss - want).abs() < 1e-12, "{loss} {want}");
        }
        assert_eq!(out.losses[3], f64::INFINITY);
        let labels: f64 = lattices.range(1).map(|site| -out.adjoints[site * 2 + 1]).sum();
        assert!((labels - 2.0).abs() < 1e-12);
    }

    #[test]
    fn occupancies_sum_as_the_topology_demands() {
        let lattices = Lattices::new(vec![4, 6], vec![3, 0]).unwrap();
        let emissions: Vec<f64> = (0..lattices.sites() * 2).map(|i| -((i * 7 % 11) as f64) / 3.0).collect();
        let out =
            forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularisers::default()).unwrap();
        let gamma = out.occupancies(&lattices).unwrap();
        for b in 0..2 {
            let (t, u) = (lattices.frames(b), lattices.labels(b));
            let range = lattices.range(b);
            let sum = |arc: usize| range.clone().map(|site| -out.adjoints[site * 2 + arc]).sum::<f64>();
            assert!((sum(0) - t as f64).abs() < 1e-12 && (sum(1) - u as f64).abs() < 1e-12);
            for d in 0..t + u {
                let diagonal = lattices.sites_of(b).zip(&gamma[range.clone()]);
                let on = diagonal.filter(|(s, _)| s.frame + s.label == d).map(|(_, g)| g).sum::<f64>();
                assert!((on - 1.0).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn impossible_utterances_are_values_and_leave_others_alone() {
        let lattices = Lattices::new(vec![2, 2], vec![1, 1]).unwrap();
        let mut emissions = vec![-1.0; 16];
        emissions[3 * 2] = f64::NEG_INFINITY; // the last blank of utterance 0
        let out =
            forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularisers::default()).unwrap();
        assert_eq!(out.losses[0], f64::INFINITY);
        assert!(out.adjoints[..8].iter().all(|a| *a == 0.0) && out.losses[1].is_finite());
        assert!(out.occupancies(&lattices).unwrap()[..4].iter().all(|g| *g == 0.0));
    }

    #[test]
    fn bad_emissions_are_named() {
        let lattices = Lattices::new(vec![2, 2], vec![1, 1]).unwrap();
        let run = |e: &[f64]| forward_backward(&lattices, &Topology::rnnt(), e, &Regularisers::default());
        let mut emissions = vec![-1.0; 16];
        emissions[3] = f64::NAN; // a label at u = U: never read
        assert!(run(&emissions).is_ok());
        emissions[13] = f64::NAN;
        let error = run(&emissions).unwrap_err();
        assert!(matches!(error, Error::Emission { utterance: 1, frame: 1, label: 0, arc: 1, .. }), "{error}");
        assert!(matches!(run(&emissions[1..]), Err(Error::Length { expected: 16, found: 15, .. })));
        let bad = Regularisers { fastemit: -1.0 };
        let error = forward_backward(&lattices, &Topology::rnnt(), &[-1.0; 16], &bad).unwrap_err();
        assert!(matches!(error, Error::Regulariser { argument: "fastemit", .. }));
        let run = |e: f64| forward_backward(&lattices, &Topology::rnnt(), &[e; 16], &Regularisers::default());
        assert!(matches!(run(1e308), Err(Error::Overflow { utterance: 0, .. })));
        let other = Lattices::new(vec![1], vec![1]).unwrap();
        assert!(matches!(run(-1.0).unwrap().occupancies(&other), Err(Error::Length { .. })));
        assert_eq!(Lattices::new(vec![], vec![]), Err(Error::EmptyBatch));
        assert_eq!(Lattices::new(vec![1, 0], vec![1, 1]), Err(Error::NoFrames { utterance: 1 }));
        assert!(matches!(Lattices::new(vec![usize::MAX], vec![1]), Err(Error::TooLarge { .. })));
    }
}
