//! Losses, arc posteriors and adjoints of a batch of lattices.
use crate::{Arc, Error, Lattices, Result, Topology, Workspace};

/// Changes to emissions and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Regularisers {
    /// FastEmit λ: adjoints of label columns are multiplied by `1 + λ`, and the loss is left as it is (Yu et al. 2021,
    /// equation 9).
    pub fastemit: f64,
    /// [`delay`], `penalty · ((T-1)/2 - t)`, is added to the emission of every arc that emits a label at frame t, so that late labels
    /// cost more (Kang et al., arXiv 2211.00490, equation 6).
    pub delay_penalty: f64,
    /// Logit under-normalisation σ: subtracted from the emission of every arc, so that paths of few arcs, which big
    /// blanks and long durations make, are preferred (Xu et al., arXiv 2211.03541, section 3.2).
    pub sigma: f64,
}

impl Regularisers {
    pub(crate) fn check(&self) -> Result<()> {
        let Self { fastemit, delay_penalty, sigma } = *self;
        // Times a frame, what is added to an emission is still a number of f32.
        let (least, either) = ("at least 0, at most 1e30", "at least -1e30, at most 1e30");
        for (argument, found, fine, expected) in [
            ("fastemit", fastemit, (0.0..=1e30).contains(&fastemit), least),
            ("delay_penalty", delay_penalty, delay_penalty.abs() <= 1e30, either),
            ("sigma", sigma, (0.0..=1e30).contains(&sigma), least),
        ] {
            if !fine {
                return Err(Error::Regulariser { argument, expected, found });
            }
        }
        Ok(())
    }

    /// By what the adjoint of an arc's token is multiplied.
    pub(crate) fn factor(&self, emits: bool) -> f64 {
        if emits { 1.0 + self.fastemit } else { 1.0 }
    }

    /// What is added to the emission of an arc that leaves frame `t` of `frames`.
    pub(crate) fn shift(&self, arc: &Arc, t: usize, frames: usize) -> f64 {
        match arc.labels {
            0 => -self.sigma,
            _ => delay(self.delay_penalty, t, frames) - self.sigma,
        }
    }

    /// Whether emissions stay as they are.
    pub(crate) fn shift_nothing(&self) -> bool {
        self.delay_penalty == 0.0 && self.sigma == 0.0
    }
}

/// What a delay penalty adds to the emission of a label at frame `t` of `frames`: `penalty · ((T-1)/2 - t)`.
///
/// The product is rounded to `f32`, as fast_rnnt does, so that losses are the same to the last digits.
pub fn delay(penalty: f64, t: usize, frames: usize) -> f64 {
    let early = (frames as f64 - 1.0) / 2.0 - t as f64;
    f64::from(penalty as f32 * early as f32)
}

/// What the lattices say about their emissions.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    /// `-log P` of each utterance, *B*; +inf where no path has a positive probability.
    pub losses: Vec<f64>,
    /// `dloss/demission`, *N x S*, regularised; 0 for arcs that do not exist and for impossible utterances.
    pub adjoints: Vec<f64>,
    /// Regularisers of each token's column.
    factors: Vec<f64>,
    columns: usize,
}

impl Posterior {
    /// Probability that a path visits each site, *N*: the posteriors of the arcs that leave it, `γ(m) = Σ_n o(m -> n)`.
    ///
    /// Along each anti-diagonal of regular RNN-T it sums to 1, along each frame of modified RNN-T. In constrained RNN-T a
    /// path also visits the site whose blank a label forces. 0 for impossible utterances.
    ///
    /// # Errors
    /// Lattices of another batch.
    pub fn occupancies(&self, lattices: &Lattices) -> Result<Vec<f64>> {
        expect("lattices.sites", self.adjoints.len() / self.columns, lattices.sites())?;
        expect("lattices.batch", self.losses.len(), lattices.batch())?;
        let leaving =
            |adjoints: &[f64]| adjoints.iter().zip(&self.factors).map(|(a, factor)| -a / factor).sum();
        Ok(self.adjoints.chunks_exact(self.columns).map(leaving).collect())
    }
}

/// Sums over all paths of each lattice, forwards and backwards.
///
/// The formulas are at the top of the crate. To call this again and again, use a [`Workspace`].
///
/// # Shapes
/// `emissions` *N x S* with S the number of columns of the topology, sites packed as [`Lattices`] says. Entries of
/// arcs that would leave the lattice (a label at u = U) mean nothing. Log-probabilities below -1e289 count as -inf in whole
/// lattices.
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow. An utterance without a path is not an
/// error: its loss is +inf and its adjoints are 0.
///
/// # Cost
/// O(N S) time and memory, in parallel over utterances and over the two directions of each. Nothing takes a logarithm
/// but the loss, and each emission is exponentiated twice. A step of a path rounds by about 1e-16 of the probabilities
/// that it sums; where they are close to 1, of their difference to 1. So a loss is right to 12 digits, however long the
/// lattice and even if the loss is 1e-12, and so are adjoints that are not tiny. Bands of retained sites are summed as
/// logarithms: a step rounds by about 1e-16 of the log-sum that it passes.
pub fn forward_backward(
    lattices: &Lattices,
    topology: &Topology,
    emissions: &[f64],
    regularisers: &Regularisers,
) -> Result<Posterior> {
    let mut out = Posterior {
        losses: vec![0.0; lattices.batch()],
        adjoints: vec![0.0; lattices.sites() * topology.columns()],
        factors: (0..topology.tokens()).map(|column| regularisers.factor(topology.emits(column))).collect(),
        columns: topology.columns(),
    };
    let (losses, adjoints) = (&mut out.losses, &mut out.adjoints);
    Workspace::new().forward_backward(lattices, topology, emissions, regularisers, losses, adjoints)?;
    Ok(out)
}

/// Compares a length with what the other arguments imply.
pub(crate) fn expect(argument: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Length { argument, expected, found }) }
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
        let bad = Regularisers { fastemit: -1.0, ..Regularisers::default() };
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
