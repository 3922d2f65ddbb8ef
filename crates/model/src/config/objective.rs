//! What a model's configuration means for lattice, loss and search.
use rnnt_loss::{Loss, Options, Pruning, Scales, Tokens, Topology};

use super::ModelConfig;
use crate::config::{LossConfig, Terms};
use crate::{Error, Result};

impl ModelConfig {
    /// The moves of the lattice and of the search: those of blank and label, and what the loss adds to them.
    ///
    /// # Errors
    /// Durations that no topology has; [`ModelConfig::check`] finds them first. [`Error::RecipeValue`] for a recognition lattice.
    pub fn topology(&self) -> Result<Topology> {
        let topology = match &self.loss.kind {
            LossConfig::Tdt { durations, .. } => Topology::tdt(durations),
            LossConfig::MultiBlank { durations, .. } => {
                self.terms.topology.clone().with_big_blanks(durations)
            }
            LossConfig::Rnnt { .. } | LossConfig::Pruned { .. } => Ok(self.terms.topology.clone()),
            LossConfig::Gnat(_) => return Err(not_a_transducer()),
        };
        Ok(topology.map_err(rnnt_loss::Error::from)?)
    }

    /// Options of the loss.
    ///
    /// # Errors
    /// As [`ModelConfig::topology`].
    pub fn loss_options(&self) -> Result<Options> {
        let Terms { fastemit, delay_penalty, label_smoothing, z_loss, .. } = self.terms;
        let loss = self.kind()?;
        Ok(Options {
            loss,
            fastemit,
            delay_penalty,
            label_smoothing,
            z_loss,
            ..self.loss.options.options(self.ctc_options())
        })
    }

    fn kind(&self) -> Result<Loss> {
        let topology = self.topology()?;
        Ok(match self.loss.kind {
            LossConfig::Rnnt { factored_blank } => {
                let tokens = if factored_blank { Tokens::FactoredBlank } else { Tokens::Softmax };
                Loss::Transducer { topology, tokens, sigma: 0.0 }
            }
            LossConfig::Tdt { sigma, omega, .. } => Loss::Tdt { topology, sigma, omega },
            LossConfig::MultiBlank { sigma, .. } => {
                Loss::Transducer { topology, tokens: Tokens::Softmax, sigma }
            }
            LossConfig::Gnat(_) => return Err(not_a_transducer()),
            LossConfig::Pruned { s_range, lm_only_scale, am_only_scale, .. } => {
                let pruning = Pruning { s_range, lm_only_scale, am_only_scale, ..Pruning::default() };
                Loss::Pruned { topology, tokens: Tokens::Softmax, pruning }
            }
        })
    }

    /// Options of the auxiliary CTC loss, which is not regularised.
    pub(crate) fn ctc_options(&self) -> Options {
        let (precision, budget) = (self.terms.precision.precision(), self.loss.options.budget);
        Options { precision, budget: budget.bytes, keep_scores: budget.keep_scores, ..Options::of(Loss::Ctc) }
    }

    /// Factors of both losses of pruned training at a step of the run.
    pub(crate) fn scales(&self, step: u64) -> Scales {
        let LossConfig::Pruned { simple_scale, warm_steps, .. } = self.loss.kind else {
            return Scales::default();
        };
        let scales = Scales { simple: simple_scale, ..Scales::default() };
        scales.warm_up(step as usize, warm_steps as usize)
    }
}

fn not_a_transducer() -> Error {
    let (expected, found) = ("a transducer".into(), "gnat".into());
    Error::RecipeValue { key: "loss.kind".into(), expected, found }
}
