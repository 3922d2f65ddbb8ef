//! What a caller may choose.
use panda_core::{DEFAULT_BUDGET, Plan, Precision};
use rnnt_dp::Regularizers;

use crate::{Activation, Error, Loss, Result};

/// Options of a session; the default is the plain transducer loss with a tanh joint.
///
/// Losses are `-log P` under the probabilities that label smoothing, delay penalty and σ have changed, plus the z-loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Kind of the loss.
    pub loss: Loss,
    /// Nonlinearity of the joint.
    pub activation: Activation,
    /// FastEmit λ: scales the gradient of label arcs by `1 + λ`; the reported loss stays `-log P`.
    pub fastemit: f64,
    /// [`Regularizers::delay_penalty`]: adds `delay_penalty · ((T-1)/2 - t)` to the log-probability of each label.
    pub delay_penalty: f64,
    /// Label smoothing ε: each token's log-probability is mixed with the mean over all classes,
    /// `(1 - ε) log p(c) + ε/C Σ log p`, before the lattice sums over paths. Wants a head, and neither a factored blank nor a
    /// clamp; every class must be possible.
    pub label_smoothing: f64,
    /// z-loss: adds `z_loss` times the mean of `logZ²` over an utterance's sites (those that were retained) to its loss, so that
    /// scores stay small. With several heads it is the log-sum of the first one's: of tokens, not durations; of labels without a
    /// factored blank.
    pub z_loss: f64,
    /// Clips each element of the gradient of the scores of one utterance's own loss to `-clamp ..= clamp`,
    /// before any weight of the utterance is applied (torchaudio's meaning). Not together with label smoothing.
    pub clamp: Option<f64>,
    /// Leaves the sites of smallest occupancy out of the gradient as long as what they sum to stays below
    /// `skip · (T + U)` in each utterance; the error is bounded by [`Skipped`](crate::Skipped). 0, the default, is
    /// exact; 1e-6 is lost in the rounding of `f32`. Not together with a z-loss, and not for CTC, where all frames weigh the
    /// same.
    pub skip: f64,
    /// Limit on the bytes that a call holds in addition to its arguments and results; 56 MiB by default.
    pub budget: usize,
    /// Whether scores may be kept from forward to backward, for as many sites as the budget has room for (the
    /// default). Otherwise all of them are recomputed, and apart from a few numbers per site no more of the budget
    /// is used than [`DEFAULT_BUDGET`].
    pub keep_scores: bool,
    /// What the factors of the head's products are rounded to.
    pub precision: Precision,
    /// How the work is cut, whatever the type of the rows; chosen from shape and budget when `None`, and otherwise not held to the
    /// budget.
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
    /// Options of a kind of loss, all else at its default.
    pub fn of(loss: Loss) -> Self {
        Self { loss, ..Self::default() }
    }

    /// Fails for numbers that make no sense; the lattice checks its own.
    pub(crate) fn check(&self) -> Result<()> {
        self.loss.check()?;
        if !(0.0..1.0).contains(&self.skip) {
            return Err(Error::Skip { found: self.skip });
        }
        for (argument, found, most) in
            [("label_smoothing", self.label_smoothing, 1.0), ("z_loss", self.z_loss, f64::MAX)]
        {
            if !(0.0..=most).contains(&found) {
                return Err(Error::Regulariser { argument, most, found });
            }
        }
        if self.smooths() {
            if let Some(found) = self.clamp {
                return Err(Error::misplaced("clamp", "where labels are smoothed", found));
            }
            if self.loss.factors_blank() {
                return Err(Error::Smoothing);
            }
        }
        if self.skip > 0.0 && self.z_loss > 0.0 {
            return Err(Error::misplaced("skip", "with a z-loss, which reaches every site", self.skip));
        }
        if self.skip > 0.0 && self.loss == Loss::Ctc {
            return Err(Error::misplaced("skip", "for CTC", self.skip));
        }
        Ok(())
    }

    /// Bytes of the budget by which the work is divided.
    pub(crate) fn working_bytes(&self) -> usize {
        if self.keep_scores { self.budget } else { self.budget.min(DEFAULT_BUDGET) }
    }

    /// Whether scores of a head may be kept; those of heads of few classes always.
    pub(crate) fn keeps_scores(&self, head: usize) -> bool {
        self.keep_scores || head > 0
    }

    pub(crate) fn smooths(&self) -> bool {
        self.label_smoothing > 0.0
    }

    /// Fails for what only a head makes possible.
    pub(crate) fn without_head(&self) -> Result<()> {
        match (self.smooths(), self.loss.factors_blank()) {
            (true, _) => Err(Error::Smoothing),
            (_, true) => Err(Error::FactoredBlank),
            _ => Ok(()),
        }
    }

    pub(crate) fn regularisers(&self) -> Regularizers {
        let sigma = self.loss.sigma();
        Regularizers { fastemit: self.fastemit, delay_penalty: self.delay_penalty, sigma }
    }
}
