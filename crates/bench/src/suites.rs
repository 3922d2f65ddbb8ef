//! Suites of the program `bench`: names on the command line, cases and systems.
mod losses;
mod models;

use std::path::PathBuf;

use rnnt_loss::Precision;

use super::case::LengthSpread::Ragged;
use super::case::Posteriors::Flat;
use super::case::{Budget, LossSizes, Method, Plan, System};
use super::error::{Error, Result};

/// Suites by their names on the command line.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Suite {
    /// Classes from 512 to 262,144
    Classes,
    /// Utterances from 1 to 1,024
    Batch,
    /// Ten lengths from 50 frames and 10 labels to 500 frames and 100 labels
    Lengths,
    /// Lattice recursions with given emissions
    Dp,
    /// Gradients that skip sites of little occupancy
    Skip,
    /// Threads from 1 to all cores
    Threads,
    /// Full and pruned lattice, dense and selected normalizer, by number of classes
    Pruned,
    /// Greedy search of RNN-T and TDT, batches from 1 to 32
    Decode,
    /// Recognition lattices (GNAT, LAST): training steps and best paths, contexts of 0 to 2 labels
    Lattice,
    /// Training steps of MLPerf's RNN-T, batches of 4 and 16
    Train,
    /// FastConformer encoders of 110 and 600 million weights, 30 and 300 seconds
    Encoder,
}

/// Options of a suite.
pub(crate) struct SuiteOptions {
    /// True for the smallest cases only.
    pub quick: bool,
    /// Threads of all systems except those of the suite `threads`.
    pub threads: usize,
    /// Memory budget of panda's loss, if not the default of the suite.
    pub budget: Option<usize>,
    /// Checkpoint and manifest of the suite `skip`.
    pub model: Option<(PathBuf, PathBuf)>,
}

impl Suite {
    /// Returns the cases of the suite.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 threads.
    pub(crate) fn plan(self, options: &SuiteOptions) -> Result<Plan> {
        if options.threads == 0 {
            let (argument, expected) = ("threads", "at least 1");
            return Err(Error::Argument { argument, expected, found: "0".to_owned() });
        }
        Ok(match self {
            Self::Classes => losses::classes(options),
            Self::Batch => losses::batch(options),
            Self::Lengths => losses::lengths(options),
            Self::Dp => losses::dp(options),
            Self::Skip => losses::skip(options),
            Self::Threads => losses::threads(options),
            Self::Pruned => losses::pruned(options),
            Self::Decode => models::decode(options),
            Self::Lattice => models::lattice(options),
            Self::Train => models::train(options),
            Self::Encoder => models::encoder(options),
        })
    }
}

/// One utterance of N = 2,600 sites, T = 100, U = 25, H = 512.
const fn medium_utterance(classes: usize) -> LossSizes {
    LossSizes { batch: 1, frames: 100, labels: 25, hidden: 512, classes, posteriors: Flat, lengths: Ragged }
}

/// Case S5: 16 short utterances of N = 6,662 sites.
const SHORT_UTTERANCES: LossSizes = LossSizes {
    batch: 16,
    frames: 50,
    labels: 10,
    hidden: 1024,
    classes: 4096,
    posteriors: Flat,
    lengths: Ragged,
};

impl SuiteOptions {
    fn system(&self, name: &str, method: Method) -> System {
        System { name: name.to_owned(), method, threads: self.threads }
    }

    /// Panda with recomputed scores, or with the budget of the command line.
    fn panda(&self) -> System {
        let budget = self.budget.map_or(Budget::Recompute, Budget::Bytes);
        self.system("panda", Method::Panda { budget, skip: 0.0, bf16: false })
    }

    /// Panda with all scores kept.
    fn panda_kept(&self) -> System {
        self.system("panda-kept", Method::Panda { budget: Budget::Unlimited, skip: 0.0, bf16: false })
    }

    /// Panda with products in bf16; none without instructions for bf16.
    fn panda_bf16(&self) -> Option<System> {
        let budget = self.budget.map_or(Budget::Recompute, Budget::Bytes);
        let method = Method::Panda { budget, skip: 0.0, bf16: true };
        Precision::Bf16.is_native().then(|| self.system("panda-bf16", method))
    }

    fn dense(&self) -> System {
        self.system("dense", Method::Baseline)
    }
}

/// Formats a number with thousands separators, 8192 as 8,192.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!([1, 999, 1024, 262_144].map(thousands), ["1", "999", "1,024", "262,144"]);
    }

    #[test]
    fn quick_suites_are_parts_and_case_names_are_unique() {
        for suite in <Suite as clap::ValueEnum>::value_variants() {
            let count =
                |quick| {
                    let options = SuiteOptions { quick, threads: 2, budget: None, model: None };
                    let cases = suite.plan(&options).unwrap().cases;
                    let names: std::collections::BTreeSet<_> =
                        cases.iter().map(|case| case.name.clone()).collect();
                    assert_eq!(names.len(), cases.len());
                    assert!(cases.iter().all(|case| ["panda", "pruned"].contains(&&*case.systems[0].name)
                        && case.systems.len() > 1));
                    cases.len()
                };
            assert!((1..=count(false)).contains(&count(true)));
        }
    }
}
