//! What the columns of a lattice are made of: one softmax over all tokens, or several.
//!
//! | columns | heads | emissions |
//! |---|---|---|
//! | tokens | all classes | `r_c` |
//! | tokens and durations | tokens; durations | `r_c`, `r_d` |
//! | factored blank | labels; blank alone | `log σ(z_∅)`; `log σ(-z_∅) + r_c` |
//!
//! with `r` a log-probability of the head's own softmax. A factored blank (HAT, Variani et al., arXiv 2003.07705,
//! equations 8-10) needs a raw score: the log-sum of a head of one class is just that.
use std::borrow::Cow;

use panda_core::{Normalized, Selection};

use crate::{Error, Options, Result, Targets, smoothing::log_z};

/// Where the columns come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Columns {
    Tokens,
    TokensAndDurations(usize),
    FactoredBlank,
}

/// A head's share: what was asked of it, and its answer.
pub(crate) struct Part<F> {
    pub selection: Selection,
    pub normalized: Normalized<F>,
}

/// Adjoints of a head's log-probabilities and log-sums.
pub(crate) struct PartAdjoints {
    pub emissions: Vec<f64>,
    pub log_z: Option<Vec<f64>>,
}

impl Columns {
    /// Fails unless the topology has the columns that there are, made as the options say.
    pub fn check(self, targets: &Targets, options: &Options) -> Result<()> {
        if options.factored_blank && self != Self::FactoredBlank {
            return Err(Error::FactoredBlank);
        }
        if self == Self::FactoredBlank && targets.tokens() > 2 {
            let found = targets.tokens() - 2;
            return Err(Error::misplaced("targets.big_blanks", "with a factored blank", found));
        }
        if self.durations() == 0 && options.omega > 0.0 {
            return Err(Error::misplaced("omega", "without durations", options.omega));
        }
        let (topology, tokens) = (&options.topology, targets.tokens());
        for (expected, made_of, found) in [
            (tokens + self.durations(), "blank, label, big blanks, durations", topology.columns()),
            (tokens, "blank, label, big blanks, durations not counted", topology.tokens()),
        ] {
            if expected != found {
                return Err(Error::Columns { expected, made_of, found });
            }
        }
        for (arc, kind) in topology.arcs().iter().enumerate() {
            let (expected, found) = (usize::from(topology.token_of(arc) == 1), kind.labels);
            if expected != found {
                return Err(Error::Arc { arc, expected, found });
            }
        }
        Ok(())
    }

    /// Durations, which follow the tokens.
    pub fn durations(self) -> usize {
        match self {
            Self::TokensAndDurations(count) => count,
            Self::Tokens | Self::FactoredBlank => 0,
        }
    }

    /// By how much the gradients of a site's scores, in all heads together, can exceed the sum of its adjoints: each head
    /// that normalises has twice those of its own; a blank alone has at most one of them.
    pub fn reach(self) -> f64 {
        match self {
            Self::Tokens => 2.0,
            Self::TokensAndDurations(_) => 4.0,
            Self::FactoredBlank => 3.0,
        }
    }

    /// Names the class of the whole head that an error about one of the heads means.
    pub fn of_whole(self, error: panda_core::Error, head: usize, blank: u32) -> panda_core::Error {
        match (self, error) {
            (Self::FactoredBlank, panda_core::Error::InfiniteWeight { class, value }) => {
                let blank = blank as usize;
                let class = if head == 0 { class + usize::from(class >= blank) } else { blank };
                panda_core::Error::InfiniteWeight { class, value }
            }
            (_, error) => error,
        }
    }

    /// What each head is asked for.
    pub fn selections(self, targets: &Targets) -> Result<Vec<Selection>> {
        let sites = targets.lattices().sites();
        Ok(match self {
            Self::Tokens => vec![targets.selection()?],
            Self::TokensAndDurations(count) => {
                let all = (0..sites).flat_map(|_| 0..count as u32).collect();
                vec![targets.selection()?, Selection::new(all, vec![true; sites * count], count)?]
            }
            Self::FactoredBlank => {
                vec![targets.labels_without_blank()?, Selection::new(Vec::new(), Vec::new(), 0)?]
            }
        })
    }

    /// Emissions *N x S* from the answers.
    pub fn emissions<F: panda_core::Real>(self, parts: &[Part<F>]) -> Cow<'_, [f64]> {
        let [first, ..] = parts else { unreachable!("there is a head") };
        let tokens = &first.normalized.emissions;
        match self {
            Self::Tokens => Cow::Borrowed(tokens),
            Self::TokensAndDurations(count) => {
                let rows = tokens.chunks_exact(2).zip(parts[1].normalized.emissions.chunks_exact(count));
                rows.flat_map(|(tokens, durations)| tokens.iter().chain(durations)).copied().collect()
            }
            Self::FactoredBlank => {
                let blanks = blank_scores(&parts[1]);
                tokens.iter().zip(blanks).flat_map(|(r, z)| [log_sigmoid(z), log_sigmoid(-z) + r]).collect()
            }
        }
    }

    /// Adjoints of the answers from those of the emissions.
    pub fn adjoints<F: panda_core::Real>(self, parts: &[Part<F>], adjoints: Vec<f64>) -> Vec<PartAdjoints> {
        let plain = |emissions| PartAdjoints { emissions, log_z: None };
        match self {
            Self::Tokens => vec![plain(adjoints)],
            Self::TokensAndDurations(count) => {
                let rows = || adjoints.chunks_exact(2 + count);
                let tokens = rows().flat_map(|row| &row[..2]).copied().collect();
                vec![plain(tokens), plain(rows().flat_map(|row| &row[2..]).copied().collect())]
            }
            Self::FactoredBlank => {
                let labels = adjoints.chunks_exact(2).map(|row| row[1]).collect();
                let rows = adjoints.chunks_exact(2).zip(blank_scores(&parts[1]));
                // d log σ(z) = σ(-z), d log σ(-z) = -σ(z)
                let blank =
                    |(row, z): (&[f64], f64)| row[0] * log_sigmoid(-z).exp() - row[1] * log_sigmoid(z).exp();
                let log_z = Some(rows.map(blank).collect());
                vec![plain(labels), PartAdjoints { emissions: Vec::new(), log_z }]
            }
        }
    }
}

/// The scores of a head of one class: its log-sums.
fn blank_scores<F: panda_core::Real>(part: &Part<F>) -> impl Iterator<Item = f64> + '_ {
    log_z(&part.normalized)
}

/// `log(1 / (1 + exp(-z)))`, exact at either end.
fn log_sigmoid(z: f64) -> f64 {
    z.min(0.0) - (-z.abs()).exp().ln_1p()
}
