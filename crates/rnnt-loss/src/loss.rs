//! Reductions, and kinds of loss: each says which arcs there are and which numbers belong to it alone.
use rnnt_dp::Topology;

use crate::{Error, Pruning, Result, Targets, error::expect_len};

/// What a session computes; options that all kinds know are in [`Options`](crate::Options).
///
/// ```
/// use rnnt_loss::{Loss, Options, Session};
/// let options = Options { loss: Loss::tdt(&[0, 1, 2, 4])?, fastemit: 0.01, ..Options::default() };
/// let session = Session::<f32>::new(&options)?;
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// Blank and label (Graves 2012), and big blanks where the topology has them (Xu et al., arXiv 2211.03541).
    Transducer {
        /// Which arcs leave a site. Its columns are blank, next label, then the big blanks of
        /// [`Targets::with_big_blanks`](crate::Targets::with_big_blanks).
        topology: Topology,
        /// Where the token's log-probabilities come from.
        tokens: Tokens,
        /// Logit under-normalisation σ, subtracted from the log-probability of each token: with big blanks, a preference for
        /// paths of few arcs.
        sigma: f64,
    },
    /// Token-and-duration transducer (Xu et al., arXiv 2304.06795): a softmax over tokens and one over durations.
    ///
    /// ```text
    /// P(token, d | t, u) = softmax(tokens h)_token · softmax(durations h)_d · exp(-σ)
    /// loss = (1 - ω) TDT + ω RNN-T
    /// ```
    ///
    /// The RNN-T loss of the mixture has the same tokens, no durations and no σ: the mean of what NeMo draws at random. An
    /// utterance whose frames no sum of durations reaches has the loss +inf and no gradient.
    Tdt {
        /// [`Topology::tdt`]: columns are blank, next label, and the classes of the duration head in their order.
        topology: Topology,
        /// σ above.
        sigma: f64,
        /// ω above, from 0 to 1.
        omega: f64,
    },
    /// Connectionist temporal classification (Graves et al. 2006): hidden rows belong to frames.
    ///
    /// ```text
    /// e(t, c) = z_c - logZ(t)      loss = -log Σ_alignments exp Σ_t e(t, c_t)
    /// ```
    Ctc,
    /// A trivial joiner over the whole lattice chooses the sites that the joint network sees (Kuang et al., arXiv 2206.13236).
    Pruned {
        /// Which arcs leave a site, in both passes; blank and label alone.
        topology: Topology,
        /// Where the second pass's log-probabilities come from.
        tokens: Tokens,
        /// How sites are chosen.
        pruning: Pruning,
    },
}

/// Where the log-probabilities of blank and labels come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tokens {
    /// One softmax over all classes.
    #[default]
    Softmax,
    /// Blank factorisation (HAT, Variani et al., arXiv 2003.07705): the blank is a sigmoid of its own score, labels share what
    /// it leaves by a softmax without it.
    FactoredBlank,
}

impl Default for Loss {
    /// [`Loss::rnnt`]
    fn default() -> Self {
        Self::rnnt()
    }
}

impl Loss {
    /// Regular RNN-T under one softmax.
    pub fn rnnt() -> Self {
        Self::over(Topology::rnnt())
    }

    /// Blank and label over any topology, under one softmax.
    pub fn over(topology: Topology) -> Self {
        Self::Transducer { topology, tokens: Tokens::Softmax, sigma: 0.0 }
    }

    /// Regular RNN-T with a factored blank.
    pub fn hat() -> Self {
        Self::Transducer { topology: Topology::rnnt(), tokens: Tokens::FactoredBlank, sigma: 0.0 }
    }

    /// Regular RNN-T with big blanks of these durations.
    ///
    /// # Errors
    /// Those of [`Topology::multi_blank`].
    pub fn multi_blank(durations: &[usize]) -> Result<Self> {
        Ok(Self::over(Topology::multi_blank(durations)?))
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
        Self::Pruned { topology: Topology::rnnt(), tokens: Tokens::Softmax, pruning }
    }

    /// The arcs; none for CTC.
    pub fn topology(&self) -> Option<&Topology> {
        match self {
            Self::Transducer { topology, .. }
            | Self::Tdt { topology, .. }
            | Self::Pruned { topology, .. } => Some(topology),
            Self::Ctc => None,
        }
    }

    /// Whether the blank is a sigmoid of its own.
    pub(crate) fn factors_blank(&self) -> bool {
        let (Self::Transducer { tokens, .. } | Self::Pruned { tokens, .. }) = self else { return false };
        *tokens == Tokens::FactoredBlank
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

    /// Durations, which follow the tokens among the columns.
    pub(crate) fn durations(&self) -> usize {
        match self {
            Self::Tdt { topology, .. } => topology.columns() - topology.tokens(),
            _ => 0,
        }
    }

    /// Fails for a number that makes no sense; the lattice checks its own.
    pub(crate) fn check(&self) -> Result<()> {
        if let Self::Pruned { pruning, .. } = self {
            pruning.check()?;
        }
        if let Self::Tdt { topology, .. } = self
            && self.durations() == 0
        {
            let (made_of, found) = ("blank, label, at least one duration", topology.columns());
            return Err(Error::Columns { expected: topology.tokens() + 1, made_of, found });
        }
        match self.omega() {
            omega if (0.0..=1.0).contains(&omega) => Ok(()),
            found => Err(Error::Omega { found }),
        }
    }

    /// Fails unless the topology has the columns that the targets have classes for.
    pub(crate) fn check_columns(&self, targets: &Targets) -> Result<()> {
        let Some(topology) = self.topology() else { return Ok(()) };
        if self.factors_blank() && targets.tokens() > 2 {
            let found = targets.tokens() - 2;
            return Err(Error::misplaced("targets.big_blanks", "with a factored blank", found));
        }
        let tokens = targets.tokens();
        for (expected, made_of, found) in [
            (tokens + self.durations(), "blank, label, big blanks, durations", topology.columns()),
            (tokens, "blank, label, big blanks, durations not counted", topology.tokens()),
        ] {
            if expected != found {
                return Err(Error::Columns { expected, made_of, found });
            }
        }
        for (arc, kind) in topology.arcs().iter().enumerate() {
            let (expected, found) = (usize::from(topology.arc_token(arc) == 1), kind.labels);
            if expected != found {
                return Err(Error::Arc { arc, expected, found });
            }
        }
        Ok(())
    }
}

/// Named reductions: each is a weighted sum `Σ_b w_b loss_b`, and `w_b` is also the factor of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// `w = 1`
    Sum,
    /// `w = 1 / B` (torchaudio's `mean`, NeMo's `mean_batch`)
    #[default]
    Mean,
    /// `w = 1 / (B U_b)`, with 1 for U = 0 (NeMo's `mean`)
    MeanPerTarget,
    /// `w = 1 / Σ U_b`, with 1 for a sum of 0 (NeMo's `mean_volume`)
    MeanVolume,
}

impl Reduction {
    /// `w_b` of every utterance.
    pub fn weights(&self, targets: &Targets) -> Vec<f64> {
        let batch = targets.batch() as f64;
        let labels = |b: usize| targets.labels(b).len();
        let volume = (0..targets.batch()).map(labels).sum::<usize>().max(1) as f64;
        let weight = |b: usize| match self {
            Self::Sum => 1.0,
            Self::Mean => 1.0 / batch,
            Self::MeanPerTarget => 1.0 / (batch * labels(b).max(1) as f64),
            Self::MeanVolume => 1.0 / volume,
        };
        (0..targets.batch()).map(weight).collect()
    }

    /// `Σ_b w_b loss_b` over the utterances that a path explains; an infinite loss has no gradient and is left
    /// out of the sum, so that it does not hide the others.
    ///
    /// # Errors
    /// Not one loss for each utterance; a loss that is NaN or -inf.
    pub fn reduce(&self, losses: &[f64], targets: &Targets) -> Result<f64> {
        expect_len("losses", targets.batch(), losses.len())?;
        if let Some(utterance) = losses.iter().position(|loss| loss.is_nan() || *loss == f64::NEG_INFINITY) {
            return Err(Error::Loss { utterance, found: losses[utterance] });
        }
        let weighted = losses.iter().zip(self.weights(targets)).filter(|(loss, _)| loss.is_finite());
        Ok(weighted.map(|(loss, weight)| loss * weight).sum())
    }
}
