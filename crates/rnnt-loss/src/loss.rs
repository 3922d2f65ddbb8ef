//! Kinds of losses (transducer, TDT, CTC, pruned) and reductions over a batch.
use rnnt_dp::Topology;

use crate::{Error, Pruning, Result, Targets, error::expect_len};

/// The loss that a session computes; common options are in [`Options`](crate::Options).
///
/// ```
/// use rnnt_loss::{Loss, Options, Session};
/// let options = Options { loss: Loss::tdt(&[0, 1, 2, 4])?, fastemit: 0.01, ..Options::default() };
/// let session = Session::<f32>::new(&options)?;
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// Transducer loss (Graves 2012), optionally with big blanks (Xu et al., arXiv 2211.03541).
    Transducer {
        /// Arcs of the lattice.
        ///
        /// Columns are blank, next label, then the big blanks of
        /// [`Targets::with_big_blanks`](crate::Targets::with_big_blanks).
        topology: Topology,
        /// Normalization of the token log-probabilities.
        tokens: TokenNormalization,
        /// Logit under-normalization σ, subtracted from each token's log-probability.
        ///
        /// With big blanks it favors paths of few arcs.
        sigma: f64,
    },
    /// Token-and-duration transducer (Xu et al., arXiv 2304.06795): a softmax over tokens and one
    /// over durations.
    ///
    /// ```text
    /// P(token, d | t, u) = softmax(tokens h)_token · softmax(durations h)_d · exp(-σ)
    /// loss = (1 - ω) TDT + ω RNN-T
    /// ```
    ///
    /// The RNN-T loss of the mixture has the same tokens, no durations and no σ: the mean of the
    /// random choice in NeMo. An utterance whose length is not a sum of durations has the loss +inf
    /// and no gradient.
    Tdt {
        /// Arcs of the lattice, [`Topology::tdt`].
        ///
        /// Columns are blank, next label, and the classes of the duration head in order.
        topology: Topology,
        /// Logit under-normalization σ.
        sigma: f64,
        /// Share ω of the RNN-T loss, from 0 to 1.
        omega: f64,
    },
    /// Connectionist temporal classification (Graves et al. 2006): hidden rows belong to frames.
    ///
    /// ```text
    /// e(t, c) = z_c - logZ(t)      loss = -log Σ_alignments exp Σ_t e(t, c_t)
    /// ```
    Ctc,
    /// Pruned transducer loss (Kuang et al., arXiv 2206.13236).
    ///
    /// A simple joiner over the whole lattice selects the sites of the joint network.
    Pruned {
        /// Arcs of the lattice in both passes; only blank and label.
        topology: Topology,
        /// Normalization of the token log-probabilities in the second pass.
        tokens: TokenNormalization,
        /// Selection of the sites.
        pruning: Pruning,
    },
}

/// Normalization of the log-probabilities of blank and labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenNormalization {
    /// One softmax over all classes.
    #[default]
    Softmax,
    /// Factored blank (HAT, Variani et al., arXiv 2003.07705).
    ///
    /// The blank is a sigmoid of its score; labels share the rest by a softmax.
    FactoredBlank,
}

impl Default for Loss {
    /// Returns [`Loss::rnnt`].
    fn default() -> Self {
        Self::rnnt()
    }
}

impl Loss {
    /// Regular RNN-T with one softmax.
    pub fn rnnt() -> Self {
        Self::with_topology(Topology::rnnt())
    }

    /// Transducer loss of a topology, with one softmax.
    pub fn with_topology(topology: Topology) -> Self {
        Self::Transducer { topology, tokens: TokenNormalization::Softmax, sigma: 0.0 }
    }

    /// Regular RNN-T with a factored blank.
    pub fn hat() -> Self {
        Self::Transducer { topology: Topology::rnnt(), tokens: TokenNormalization::FactoredBlank, sigma: 0.0 }
    }

    /// Regular RNN-T with big blanks of the given durations.
    ///
    /// # Errors
    /// Those of [`Topology::multi_blank`].
    pub fn multi_blank(durations: &[usize]) -> Result<Self> {
        Ok(Self::with_topology(Topology::multi_blank(durations)?))
    }

    /// Token-and-duration transducer without σ and ω.
    ///
    /// # Errors
    /// Those of [`Topology::tdt`].
    pub fn tdt(durations: &[usize]) -> Result<Self> {
        Ok(Self::Tdt { topology: Topology::tdt(durations)?, sigma: 0.0, omega: 0.0 })
    }

    /// Pruned regular RNN-T.
    pub fn pruned(pruning: Pruning) -> Self {
        Self::Pruned { topology: Topology::rnnt(), tokens: TokenNormalization::Softmax, pruning }
    }

    /// Arcs of the lattice; none for CTC.
    pub fn topology(&self) -> Option<&Topology> {
        match self {
            Self::Transducer { topology, .. }
            | Self::Tdt { topology, .. }
            | Self::Pruned { topology, .. } => Some(topology),
            Self::Ctc => None,
        }
    }

    /// Returns whether the blank is factored.
    pub(crate) fn factors_blank(&self) -> bool {
        let (Self::Transducer { tokens, .. } | Self::Pruned { tokens, .. }) = self else { return false };
        *tokens == TokenNormalization::FactoredBlank
    }

    pub(crate) fn sigma(&self) -> f64 {
        match *self {
            Self::Transducer { sigma, .. } | Self::Tdt { sigma, .. } => sigma,
            Self::Ctc | Self::Pruned { .. } => 0.0,
        }
    }

    pub(crate) fn omega(&self) -> f64 {
        if let Self::Tdt { omega, .. } = *self { omega } else { 0.0 }
    }

    /// Number of durations, whose columns follow those of the tokens.
    pub(crate) fn num_durations(&self) -> usize {
        match self {
            Self::Tdt { topology, .. } => topology.num_columns() - topology.num_tokens(),
            _ => 0,
        }
    }

    /// Fails for parameters out of range; the lattice checks σ.
    pub(crate) fn check(&self) -> Result<()> {
        if let Self::Pruned { pruning, .. } = self {
            pruning.check()?;
        }
        if let Self::Tdt { topology, .. } = self
            && self.num_durations() == 0
        {
            let (made_of, found) = ("blank, label, at least one duration", topology.num_columns());
            return Err(Error::Columns { expected: topology.num_tokens() + 1, made_of, found });
        }
        match self.omega() {
            omega if (0.0..=1.0).contains(&omega) => Ok(()),
            found => Err(Error::Omega { found }),
        }
    }

    /// Fails unless the columns of the topology match the targets.
    pub(crate) fn check_columns(&self, targets: &Targets) -> Result<()> {
        let Some(topology) = self.topology() else { return Ok(()) };
        let big_blanks = targets.num_big_blanks();
        if self.factors_blank() && big_blanks > 0 {
            return Err(Error::incompatible("targets.big_blanks", "with a factored blank", big_blanks));
        }
        let tokens = targets.num_token_columns();
        for (expected, made_of, found) in [
            (tokens + self.num_durations(), "blank, label, big blanks, durations", topology.num_columns()),
            (tokens, "blank, label, big blanks, without durations", topology.num_tokens()),
        ] {
            if expected != found {
                return Err(Error::Columns { expected, made_of, found });
            }
        }
        for (arc, topology_arc) in topology.arcs().iter().enumerate() {
            let (expected, found) = (usize::from(topology.arc_token(arc) == 1), topology_arc.labels);
            if expected != found {
                return Err(Error::Arc { arc, expected, found });
            }
        }
        Ok(())
    }
}

/// Reduction of the losses of a batch to a weighted sum `Σ_b w_b loss_b`.
///
/// `w_b` is also the factor of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// Sum: `w = 1`.
    Sum,
    /// Mean over utterances: `w = 1 / B` (torchaudio's `mean`, NeMo's `mean_batch`).
    #[default]
    Mean,
    /// Mean per label: `w = 1 / (B U_b)`, with 1 for U = 0 (NeMo's `mean`).
    MeanPerTarget,
    /// Mean over labels: `w = 1 / Σ U_b`, with 1 for a sum of 0 (NeMo's `mean_volume`).
    MeanVolume,
}

impl Reduction {
    /// Returns the weight `w_b` of every utterance.
    pub fn weights(&self, targets: &Targets) -> Vec<f64> {
        let batch = targets.batch() as f64;
        let labels = |b: usize| targets.labels(b).len();
        let total_labels = (0..targets.batch()).map(labels).sum::<usize>().max(1) as f64;
        let weight = |b: usize| match self {
            Self::Sum => 1.0,
            Self::Mean => 1.0 / batch,
            Self::MeanPerTarget => 1.0 / (batch * labels(b).max(1) as f64),
            Self::MeanVolume => 1.0 / total_labels,
        };
        (0..targets.batch()).map(weight).collect()
    }

    /// Returns `Σ_b w_b loss_b` over the utterances with a path.
    ///
    /// Infinite losses have no gradient and are excluded from the sum.
    ///
    /// # Errors
    /// Not one loss per utterance; a loss that is NaN or -inf.
    pub fn reduce(&self, losses: &[f64], targets: &Targets) -> Result<f64> {
        expect_len("losses", targets.batch(), losses.len())?;
        if let Some(utterance) = losses.iter().position(|loss| loss.is_nan() || *loss == f64::NEG_INFINITY) {
            return Err(Error::Loss { utterance, found: losses[utterance] });
        }
        let weighted = losses.iter().zip(self.weights(targets)).filter(|(loss, _)| loss.is_finite());
        Ok(weighted.map(|(loss, weight)| loss * weight).sum())
    }
}
