//! Transducer loss and its gradient (adjoints) for a batch of lattices.
//!
//! Also defines the regularizers: FastEmit, delay penalty and logit under-normalization.
use crate::{Error, Lattices, Result, Topology, TopologyArc, Workspace};

/// Regularizers of the loss: FastEmit, delay penalty and logit under-normalization.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Regularizers {
    /// FastEmit λ: adjoints of label columns are multiplied by `1 + λ`.
    ///
    /// The loss is unchanged (Yu et al. 2021, equation 9).
    pub fastemit: f64,
    /// Delay penalty: raises the cost of late labels.
    ///
    /// [`delay_shift`], `penalty · ((T-1)/2 - t)`, is added to the emission of every arc that emits
    /// a label at frame t (Kang et al., arXiv 2211.00490, equation 6).
    pub delay_penalty: f64,
    /// Logit under-normalization σ: subtracted from the emission of every arc.
    ///
    /// It favors paths of few arcs, which big blanks and long durations allow (Xu et al., arXiv
    /// 2211.03541, section 3.2).
    pub sigma: f64,
}

/// Largest magnitude of a regularizer.
///
/// It keeps the shift of an emission, a penalty times a frame, in the range of `f32`.
const MAX_REGULARIZER: f64 = 1e30;

impl Regularizers {
    /// Fails if a regularizer is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { fastemit, delay_penalty, sigma } = *self;
        let (nonnegative, any_sign) = ("at least 0, at most 1e30", "at least -1e30, at most 1e30");
        for (argument, found, is_valid, expected) in [
            ("fastemit", fastemit, (0.0..=MAX_REGULARIZER).contains(&fastemit), nonnegative),
            ("delay_penalty", delay_penalty, delay_penalty.abs() <= MAX_REGULARIZER, any_sign),
            ("sigma", sigma, (0.0..=MAX_REGULARIZER).contains(&sigma), nonnegative),
        ] {
            if !is_valid {
                return Err(Error::Regularizer { argument, expected, found });
            }
        }
        Ok(())
    }

    /// Factor of the adjoint of an arc's token.
    pub(crate) fn adjoint_factor(&self, emits: bool) -> f64 {
        if emits { 1.0 + self.fastemit } else { 1.0 }
    }

    /// Shift of the emission of an arc at frame `t` of `frames`.
    pub(crate) fn emission_shift(&self, arc: &TopologyArc, t: usize, frames: usize) -> f64 {
        match arc.labels {
            0 => -self.sigma,
            _ => delay_shift(self.delay_penalty, t, frames) - self.sigma,
        }
    }

    /// Returns true if no emission is shifted.
    pub(crate) fn has_no_shift(&self) -> bool {
        self.delay_penalty == 0.0 && self.sigma == 0.0
    }
}

/// Returns the shift of a label emission by a delay penalty: `penalty · ((T-1)/2 - t)`.
///
/// `t` is the frame of the label and T = `frames`.
///
/// The product is rounded to `f32`, as in fast_rnnt, so that losses match to the last digits.
pub fn delay_shift(penalty: f64, t: usize, frames: usize) -> f64 {
    let offset = (frames as f64 - 1.0) / 2.0 - t as f64;
    f64::from(penalty as f32 * offset as f32)
}

/// Losses and adjoints of a batch of lattices.
#[derive(Debug, Clone, PartialEq)]
pub struct Posterior {
    /// `-log P` of each utterance, *B*; +inf without a path of positive probability.
    pub losses: Vec<f64>,
    /// `dloss/demission`, *N x S*, regularized.
    ///
    /// 0 for arcs that do not exist and for impossible utterances.
    pub adjoints: Vec<f64>,
    /// Factor of each token's column in the adjoints; see [`Regularizers::fastemit`].
    token_factors: Vec<f64>,
    columns: usize,
}

impl Posterior {
    /// Returns the probability that a path visits each site, *N*.
    ///
    /// It is the sum of the posteriors of the arcs that leave the site, `γ(m) = Σ_n o(m -> n)`.
    ///
    /// It sums to 1 along each anti-diagonal in regular RNN-T, and along each frame in modified
    /// RNN-T. In constrained RNN-T a path also visits the site whose blank a label forces. 0 for
    /// impossible utterances.
    ///
    /// # Errors
    /// Lattices of another batch.
    pub fn occupancies(&self, lattices: &Lattices) -> Result<Vec<f64>> {
        expect_len("lattices.sites", self.adjoints.len() / self.columns, lattices.num_sites())?;
        expect_len("lattices.batch", self.losses.len(), lattices.batch())?;
        let occupancy =
            |adjoints: &[f64]| adjoints.iter().zip(&self.token_factors).map(|(a, factor)| -a / factor).sum();
        Ok(self.adjoints.chunks_exact(self.columns).map(occupancy).collect())
    }
}

/// Returns the loss and the adjoints of each lattice: a sum over all its paths.
///
/// The crate documentation has the formulas. For repeated calls, use a [`Workspace`].
///
/// # Shapes
/// `emissions` *N x S*, where S is the number of columns of the topology and sites are packed as in
/// [`Lattices`]. Entries of arcs that would leave the lattice (a label at u = U) are not used. In
/// full lattices, log-probabilities below -1e289 count as -inf.
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow. An utterance
/// without a path is not an error: its loss is +inf and its adjoints are 0.
///
/// # Cost
/// O(N S) time and memory, in parallel over utterances and over the two directions of each. Only
/// the loss takes a logarithm, and each emission is exponentiated twice. A step of a path rounds by
/// about 1e-16 of the probabilities that it sums, or of their difference to 1 where they are close
/// to 1. A loss is therefore accurate to 12 digits for any lattice size, even if it is as small as
/// 1e-12; so are adjoints that are not tiny. Bands of retained sites are summed as logarithms: a
/// step rounds by about 1e-16 of the log-sum.
pub fn forward_backward(
    lattices: &Lattices,
    topology: &Topology,
    emissions: &[f64],
    regularizers: &Regularizers,
) -> Result<Posterior> {
    let mut out = Posterior {
        losses: vec![0.0; lattices.batch()],
        adjoints: vec![0.0; lattices.num_sites() * topology.num_columns()],
        token_factors: (0..topology.num_tokens())
            .map(|column| regularizers.adjoint_factor(topology.emits(column)))
            .collect(),
        columns: topology.num_columns(),
    };
    let (losses, adjoints) = (&mut out.losses, &mut out.adjoints);
    Workspace::new().forward_backward(lattices, topology, emissions, regularizers, losses, adjoints)?;
    Ok(out)
}

/// Checks a length against the one implied by the other arguments.
pub(crate) fn expect_len(argument: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Length { argument, expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Emissions are log 1/2: every path has T + U arcs, and there are C(T+U-1, U) paths.
    #[test]
    fn losses_count_paths() {
        let lattices = Lattices::new(vec![1, 5, 3, 1], vec![0, 2, 4, 3]).unwrap();
        let emissions = vec![0.5f64.ln(); lattices.num_sites() * 2];
        let out =
            forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularizers::default()).unwrap();
        for (loss, (steps, paths)) in
            out.losses.iter().zip([(1.0, 1.0), (7.0, 15.0), (7.0, 15.0), (4.0, 1.0)])
        {
            let expected: f64 = steps * 2f64.ln() - f64::ln(paths);
            assert!((loss - expected).abs() < 1e-12, "{loss} {expected}");
        }
    }

    /// One arc per frame: every path has T arcs, and there are C(T, U) paths, none if U > T.
    #[test]
    fn losses_count_modified_paths() {
        let lattices = Lattices::new(vec![1, 5, 3, 2], vec![1, 2, 3, 3]).unwrap();
        let emissions = vec![0.5f64.ln(); lattices.num_sites() * 2];
        let out =
            forward_backward(&lattices, &Topology::modified(), &emissions, &Regularizers::default()).unwrap();
        for (loss, (steps, paths)) in out.losses.iter().zip([(1.0, 1.0), (5.0, 10.0), (3.0, 1.0)]) {
            let expected: f64 = steps * 2f64.ln() - f64::ln(paths);
            assert!((loss - expected).abs() < 1e-12, "{loss} {expected}");
        }
        assert_eq!(out.losses[3], f64::INFINITY);
        let expected_labels: f64 = lattices.site_range(1).map(|site| -out.adjoints[site * 2 + 1]).sum();
        assert!((expected_labels - 2.0).abs() < 1e-12);
    }

    #[test]
    fn occupancies_sum_to_one_on_diagonals() {
        let lattices = Lattices::new(vec![4, 6], vec![3, 0]).unwrap();
        let emissions: Vec<f64> =
            (0..lattices.num_sites() * 2).map(|i| -((i * 7 % 11) as f64) / 3.0).collect();
        let out =
            forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularizers::default()).unwrap();
        let gamma = out.occupancies(&lattices).unwrap();
        for b in 0..2 {
            let (frames, labels) = (lattices.num_frames(b), lattices.num_labels(b));
            let range = lattices.site_range(b);
            let posterior_sum =
                |arc: usize| range.clone().map(|site| -out.adjoints[site * 2 + arc]).sum::<f64>();
            assert!(
                (posterior_sum(0) - frames as f64).abs() < 1e-12
                    && (posterior_sum(1) - labels as f64).abs() < 1e-12
            );
            for d in 0..frames + labels {
                let diagonal = lattices.utterance_sites(b).zip(&gamma[range.clone()]);
                let visits = diagonal.filter(|(s, _)| s.frame + s.label == d).map(|(_, g)| g).sum::<f64>();
                assert!((visits - 1.0).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn impossible_utterances_do_not_affect_others() {
        let lattices = Lattices::new(vec![2, 2], vec![1, 1]).unwrap();
        let mut emissions = vec![-1.0; 16];
        emissions[3 * 2] = f64::NEG_INFINITY; // the last blank of utterance 0
        let out =
            forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularizers::default()).unwrap();
        assert_eq!(out.losses[0], f64::INFINITY);
        assert!(out.adjoints[..8].iter().all(|a| *a == 0.0) && out.losses[1].is_finite());
        assert!(out.occupancies(&lattices).unwrap()[..4].iter().all(|g| *g == 0.0));
    }

    #[test]
    fn errors_name_the_invalid_argument() {
        let lattices = Lattices::new(vec![2, 2], vec![1, 1]).unwrap();
        let run = |e: &[f64]| forward_backward(&lattices, &Topology::rnnt(), e, &Regularizers::default());
        let mut emissions = vec![-1.0; 16];
        emissions[3] = f64::NAN; // a label at u = U: never read
        assert!(run(&emissions).is_ok());
        emissions[13] = f64::NAN;
        let error = run(&emissions).unwrap_err();
        assert!(matches!(error, Error::Emission { utterance: 1, frame: 1, label: 0, arc: 1, .. }), "{error}");
        assert!(matches!(run(&emissions[1..]), Err(Error::Length { expected: 16, found: 15, .. })));
        let bad = Regularizers { fastemit: -1.0, ..Regularizers::default() };
        let error = forward_backward(&lattices, &Topology::rnnt(), &[-1.0; 16], &bad).unwrap_err();
        assert!(matches!(error, Error::Regularizer { argument: "fastemit", .. }));
        let run = |e: f64| forward_backward(&lattices, &Topology::rnnt(), &[e; 16], &Regularizers::default());
        assert!(matches!(run(1e308), Err(Error::Overflow { utterance: 0, .. })));
        let small = Lattices::new(vec![1], vec![1]).unwrap();
        assert!(matches!(run(-1.0).unwrap().occupancies(&small), Err(Error::Length { .. })));
        assert_eq!(Lattices::new(vec![], vec![]), Err(Error::EmptyBatch));
        assert_eq!(Lattices::new(vec![1, 0], vec![1, 1]), Err(Error::NoFrames { utterance: 1 }));
        assert!(matches!(Lattices::new(vec![usize::MAX], vec![1]), Err(Error::TooLarge { .. })));
    }
}
