//! Options of a loss session: the loss, its regularizers, and the memory budget.
use panda_core::{DEFAULT_BUDGET, Plan, Precision};
use rnnt_dp::Regularizers;

use crate::{Activation, Error, Loss, Result};

/// Options of a session; the default is the plain transducer loss with tanh.
///
/// Losses are `-log P` under probabilities with label smoothing, delay penalty and σ (of [`Loss`]),
/// plus the z-loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The loss.
    pub loss: Loss,
    /// Nonlinearity of the joint network.
    pub activation: Activation,
    /// FastEmit λ: scales the gradient of label arcs by `1 + λ`; the reported loss stays `-log P`.
    pub fastemit: f64,
    /// Delay penalty: adds `delay_penalty · ((T-1)/2 - t)` to each label's log-probability.
    pub delay_penalty: f64,
    /// Label smoothing ε, before the lattice sums over paths.
    ///
    /// Each token's log-probability is mixed with the mean over all classes, `(1 - ε) log p(c) +
    /// ε/C Σ log p`. It requires a head and finite scores, and cannot be combined with a factored
    /// blank or a clamp.
    pub label_smoothing: f64,
    /// z-loss: adds `z_loss` times the mean of `logZ²` over the sites, so that scores stay small.
    ///
    /// The mean is per utterance, over its sites (with pruning, the retained ones). `logZ` is that
    /// of the token head; it includes neither durations nor a factored blank.
    pub z_loss: f64,
    /// Clips each element of the score gradient to `-clamp ..= clamp`, as in torchaudio.
    ///
    /// It clips the gradient of one utterance's loss before the weight of the utterance. It cannot
    /// be combined with label smoothing.
    pub clamp: Option<f64>,
    /// Excludes sites of the lowest occupancy from the gradient; 0, the default, is exact.
    ///
    /// Their occupancies sum to less than `skip · (T + U)` in each utterance, and
    /// [`SkippedSites`](crate::SkippedSites) bounds the error; 1e-6 is below the rounding of `f32`.
    /// It cannot be combined with a z-loss, nor with CTC, where all frames have the same occupancy.
    pub skip: f64,
    /// Limit on the bytes of a call; 56 MiB by default.
    ///
    /// Arguments and results are not included.
    pub budget: usize,
    /// Whether scores are kept for the backward pass, within the budget.
    ///
    /// The default is true. Otherwise all scores are recomputed, and at most [`DEFAULT_BUDGET`] is
    /// used, plus a few numbers per site.
    pub keep_scores: bool,
    /// Precision of the factors of the head's products.
    pub precision: Precision,
    /// Blocking of the work; chosen from shape and budget if `None`.
    ///
    /// An explicit plan may exceed the budget.
    pub plan: Option<Plan<f32>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            loss: Loss::default(),
            activation: Activation::default(),
            fastemit: 0.0,
            delay_penalty: 0.0,
            label_smoothing: 0.0,
            z_loss: 0.0,
            clamp: None,
            skip: 0.0,
            budget: DEFAULT_BUDGET,
            keep_scores: true,
            precision: Precision::default(),
            plan: None,
        }
    }
}

impl Options {
    /// Default options with a loss.
    pub fn new(loss: Loss) -> Self {
        Self { loss, ..Self::default() }
    }

    /// Fails for options out of range; the lattice checks its regularizers.
    pub(crate) fn check(&self) -> Result<()> {
        self.loss.check()?;
        if !(0.0..1.0).contains(&self.skip) {
            return Err(Error::Skip { found: self.skip });
        }
        for (argument, found, max) in
            [("label_smoothing", self.label_smoothing, 1.0), ("z_loss", self.z_loss, f64::MAX)]
        {
            if !(0.0..=max).contains(&found) {
                return Err(Error::Regularizer { argument, max, found });
            }
        }
        if self.has_label_smoothing() {
            if let Some(found) = self.clamp {
                return Err(Error::incompatible("clamp", "with label smoothing", found));
            }
            if self.loss.factors_blank() {
                return Err(Error::Smoothing);
            }
        }
        if self.skip > 0.0 && self.z_loss > 0.0 {
            return Err(Error::incompatible("skip", "with a z-loss, which reaches every site", self.skip));
        }
        if self.skip > 0.0 && self.loss == Loss::Ctc {
            return Err(Error::incompatible("skip", "for CTC", self.skip));
        }
        Ok(())
    }

    /// Bytes of the budget that determine the blocking.
    pub(crate) fn working_bytes(&self) -> usize {
        if self.keep_scores { self.budget } else { self.budget.min(DEFAULT_BUDGET) }
    }

    /// Whether scores of a head may be kept; always for the small heads after the first.
    pub(crate) fn may_keep_scores(&self, head: usize) -> bool {
        self.keep_scores || head > 0
    }

    pub(crate) fn has_label_smoothing(&self) -> bool {
        self.label_smoothing > 0.0
    }

    /// Fails for options that require a head.
    pub(crate) fn check_without_head(&self) -> Result<()> {
        match (self.has_label_smoothing(), self.loss.factors_blank()) {
            (true, _) => Err(Error::Smoothing),
            (_, true) => Err(Error::FactoredBlank),
            _ => Ok(()),
        }
    }

    pub(crate) fn regularizers(&self) -> Regularizers {
        let sigma = self.loss.sigma();
        Regularizers { fastemit: self.fastemit, delay_penalty: self.delay_penalty, sigma }
    }
}
