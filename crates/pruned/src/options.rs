//! Options of the pruned transducer's first pass: topology, smoothing, regularizers.
use rnnt_dp::Topology;

use crate::{Error, Result, label_arc::LabelArc};

/// Largest size of the delay penalty and of FastEmit's λ.
const MAX_REGULARIZER: f64 = 1e30;

/// Label rows over which the unigram of the am-only term is averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unigram {
    /// The U + 1 rows of the utterance; other utterances do not change its loss.
    #[default]
    Utterance,
    /// All label rows, including padding, as in fast_rnnt.
    AllRows,
}

/// Options of the first pass; the default is the simple joiner without smoothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// Arcs of a site: a blank and a label, each of at most one frame.
    pub topology: Topology,
    /// Weight of the log-probabilities of the label scores only.
    pub lm_only_scale: f64,
    /// Weight of the log-probabilities of the frame scores with the unigram only.
    pub am_only_scale: f64,
    /// Rows of the unigram; unused if `am_only_scale` is 0.
    pub unigram: Unigram,
    /// λ of `e(label at t) += λ ((T-1)/2 - t)`; positive values favor early labels.
    ///
    /// Kang et al. 2023; see [`delay`](rnnt_dp::delay_shift).
    pub delay_penalty: f64,
    /// FastEmit λ: label adjoints are multiplied by `1 + λ`.
    ///
    /// The blank that must follow a label of the constrained topology is not scaled. Losses and
    /// occupancies do not change.
    pub fastemit: f64,
}

impl Options {
    /// Returns the weight of the joint log-probabilities.
    pub(crate) fn joint_scale(&self) -> f64 {
        1.0 - self.lm_only_scale - self.am_only_scale
    }

    /// Returns whether all utterances share a unigram.
    pub(crate) fn shares_unigram(&self) -> bool {
        self.am_only_scale != 0.0 && self.unigram == Unigram::AllRows
    }

    /// Checks the options; returns the label arc of the topology.
    pub(crate) fn check(&self) -> Result<LabelArc> {
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
            if !(0.0..=MAX_REGULARIZER).contains(&found) {
                return Err(Error::Option { argument, expected, found });
            }
        }
        LabelArc::new(&self.topology)
    }
}
