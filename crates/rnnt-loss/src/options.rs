//! What a caller may choose.
use panda_core::{Activation, MemoryBudget, Plan, Precision, Real, Workspace};
use rnnt_dp::{Regularisers, Topology};

use crate::{Error, Result};

/// Options of the loss; the default is the plain transducer loss with a tanh joint.
///
/// Losses are `-log P` under the probabilities that label smoothing, delay penalty and σ have changed, plus the z-loss.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// Nonlinearity of the joint.
    pub activation: Activation,
    /// Which arcs leave a site. Its columns are blank, next label, then big blanks ([`Targets::with_big_blanks`]) or the
    /// durations of [`tdt_loss`](crate::tdt_loss).
    ///
    /// [`Targets::with_big_blanks`]: crate::Targets::with_big_blanks
    pub topology: Topology,
    /// Blank factorisation (HAT, Variani et al., arXiv 2003.07705): the blank is a sigmoid of its own score, labels share what
    /// it leaves by a softmax without it. Known to the doors that have a head.
    pub factored_blank: bool,
    /// FastEmit λ: scales the gradient of label arcs by `1 + λ`; the reported loss stays `-log P`.
    pub fastemit: f64,
    /// [`Regularisers::delay_penalty`]: adds `delay_penalty · ((T-1)/2 - t)` to the log-probability of each label.
    pub delay_penalty: f64,
    /// [`Regularisers::sigma`]: logit under-normalisation of multi-blank and TDT, subtracted from the log-probability of
    /// each token.
    pub sigma: f64,
    /// Share ω of the plain RNN-T loss in [`tdt_loss`](crate::tdt_loss), from 0 to 1; without durations it has to be 0.
    pub omega: f64,
    /// Label smoothing ε: each token's log-probability is mixed with the mean over all classes,
    /// `(1 - ε) log p(c) + ε/C Σ log p`, before the lattice sums over paths. Known to the doors that have a head and do not
    /// factor the blank; every class must be possible.
    pub label_smoothing: f64,
    /// z-loss: adds `z_loss` times the mean of `logZ²` over an utterance's sites (those that were retained) to its loss, so that
    /// scores stay small. With several heads it is the log-sum of the first one's: of tokens, not durations; of labels without a
    /// factored blank.
    pub z_loss: f64,
    /// Clips each element of the gradient of the scores of one utterance's own loss to `-clamp ..= clamp`,
    /// before any weight of the utterance is applied (torchaudio's meaning). Not together with label smoothing.
    pub clamp: Option<f64>,
    /// How many bytes the loss may hold beside its arguments and results.
    pub budget: MemoryBudget,
    /// What the factors of the head's products are rounded to.
    pub precision: Precision,
    /// Leaves the sites of smallest occupancy out of the gradient as long as what they sum to stays below
    /// `skip · (T + U)` in each utterance; the error is bounded by [`Skipped`](crate::Skipped). 0, the default, is
    /// exact; 1e-6 is lost in the rounding of `f32`. Doors that return no [`Skipped`](crate::Skipped) leave out as much and
    /// say nothing. Not together with a z-loss, and not for CTC, where all frames weigh the same.
    pub skip: f64,
    /// How the work is cut; chosen from shape and budget when `None`.
    pub plan: Option<Plan<f32>>,
}

impl Options {
    /// Fails for numbers that make no sense; the lattice checks its own.
    pub(crate) fn check(&self) -> Result<()> {
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
        if self.label_smoothing > 0.0
            && let Some(found) = self.clamp
        {
            return Err(Error::misplaced("clamp", "where labels are smoothed", found));
        }
        if self.skip > 0.0 && self.z_loss > 0.0 {
            return Err(Error::misplaced("skip", "with a z-loss, which reaches every site", self.skip));
        }
        match self.omega {
            omega if (0.0..=1.0).contains(&omega) => Ok(()),
            found => Err(Error::Omega { found }),
        }
    }

    /// Fails for what only a door with a head knows how to do.
    pub(crate) fn without_head(&self) -> Result<()> {
        match self.label_smoothing {
            0.0 => Ok(()),
            _ => Err(Error::Smoothing),
        }
    }

    pub(crate) fn regularisers(&self) -> Regularisers {
        Regularisers { fastemit: self.fastemit, delay_penalty: self.delay_penalty, sigma: self.sigma }
    }

    pub(crate) fn workspace<F: Real>(&self) -> Result<Workspace<F>> {
        let workspace = match self.plan {
            None => Workspace::new(self.budget),
            Some(plan) => Workspace::with_plan(plan.to())?,
        };
        Ok(workspace.with_precision(self.precision))
    }
}
