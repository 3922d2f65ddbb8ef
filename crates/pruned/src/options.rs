//! What a caller may choose.
use rnnt_dp::Topology;

use crate::{Error, Result, moves::Moves};

/// Which label rows the unigram of the am-only term is averaged over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unigram {
    /// The U + 1 rows of the utterance itself, so that no other utterance changes its loss.
    #[default]
    Utterance,
    /// Every label row there is, padding included: what fast_rnnt does.
    AllRows,
}

/// Options of the first pass; the default is the plain trivial joiner, without smoothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// Which arcs leave a site: those of a blank and a label, each of one frame at most.
    pub topology: Topology,
    /// Share of the log-probabilities that the label scores have alone.
    pub lm_only_scale: f64,
    /// Share of the log-probabilities that the frame scores and the unigram have alone.
    pub am_only_scale: f64,
    /// What the unigram is averaged over; nothing asks for it where `am_only_scale` is 0.
    pub unigram: Unigram,
    /// λ of `e(label at t) += λ ((T-1)/2 - t)`: favours early labels where positive (Kang et al. 2023); see
    /// [`delay`](rnnt_dp::delay).
    pub delay_penalty: f64,
    /// FastEmit λ: adjoints of the labels' log-probabilities are multiplied by `1 + λ` (not those of the blanks that constrained
    /// labels force); losses and occupancies stay as they are.
    pub fastemit: f64,
}

impl Options {
    /// Share of the joint log-probabilities.
    pub(crate) fn joint_scale(&self) -> f64 {
        1.0 - self.lm_only_scale - self.am_only_scale
    }

    /// Whether a unigram is there that all utterances have in common.
    pub(crate) fn shares_unigram(&self) -> bool {
        self.am_only_scale != 0.0 && self.unigram == Unigram::AllRows
    }

    /// What the first pass does with the topology.
    pub(crate) fn check(&self) -> Result<Moves> {
        for (argument, found) in [
            ("lm_only_scale", self.lm_only_scale),
            ("am_only_scale", self.am_only_scale),
            ("lm_only_scale + am_only_scale", self.lm_only_scale + self.am_only_scale),
        ] {
            if !(0.0..=1.0).contains(&found) {
                return Err(Error::Option { argument, expected: "a number from 0 to 1", found });
            }
        }
        for (argument, found, expected) in [
            ("delay_penalty", self.delay_penalty.abs(), "a number from -1e30 to 1e30"),
            ("fastemit", self.fastemit, "a number from 0 to 1e30"),
        ] {
            if !(0.0..=1e30).contains(&found) {
                return Err(Error::Option { argument, expected, found });
            }
        }
        Moves::new(&self.topology)
    }
}
