//! The suites: which cases, which systems.
mod losses;
mod models;

use std::path::PathBuf;

use rnnt_loss::Precision;

use super::case::LengthSpread::Ragged;
use super::case::Posteriors::Flat;
use super::case::{Budget, LossWork, Method, Plan, System};
use super::error::{Error, Result};

/// Names on the command line.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Suite {
    /// Classes from 512 to 262,144
    Classes,
    /// Utterances from 1 to 1,024
    Batch,
    /// Ten lengths from 50 frames and 10 labels to 500 and 100
    Lengths,
    /// Lattices alone, their emissions given
    Dp,
    /// Sites of no occupancy left out of the gradient
    Skip,
    /// One thread up to all cores
    Threads,
    /// Whole lattice and pruned one, dense and by the selected normaliser, over the classes
    Pruned,
    /// Greedy search of batches from 1 to 32, RNN-T and TDT
    Decode,
    /// Training steps and best paths of recognition lattices (GNAT, LAST), contexts of 0 to 2 labels
    Lattice,
    /// Whole training steps of MLPerf's model, batches of 4 and 16
    Train,
}

/// What a suite may depend on.
pub struct Choice {
    /// Whether the smallest honest part is enough.
    pub quick: bool,
    /// Threads of all systems but those of the suite `threads`.
    pub threads: usize,
    /// Budget of ours, if it is not the suite's own.
    pub budget: Option<usize>,
    /// Checkpoint and manifest of the suite `skip`.
    pub model: Option<(PathBuf, PathBuf)>,
}

impl Suite {
    /// The cases.
    ///
    /// # Errors
    /// [`Error::Argument`] without threads.
    pub fn plan(self, choice: &Choice) -> Result<Plan> {
        if choice.threads == 0 {
            let (argument, expected) = ("threads", "at least 1");
            return Err(Error::Argument { argument, expected, found: "0".to_owned() });
        }
        Ok(match self {
            Self::Classes => losses::classes(choice),
            Self::Batch => losses::batch(choice),
            Self::Lengths => losses::lengths(choice),
            Self::Dp => losses::dp(choice),
            Self::Skip => losses::skip(choice),
            Self::Threads => losses::threads(choice),
            Self::Pruned => losses::pruned(choice),
            Self::Decode => models::decode(choice),
            Self::Lattice => models::lattice(choice),
            Self::Train => models::train(choice),
        })
    }
}

/// N = 2,600 sites of one utterance, T = 100 and U = 25, H = 512.
const fn middle(classes: usize) -> LossWork {
    LossWork { batch: 1, frames: 100, labels: 25, hidden: 512, classes, model: Flat, lengths: Ragged }
}

/// Many short utterances, case S5 of the specification: N = 6,662.
const SHORT: LossWork =
    LossWork { batch: 16, frames: 50, labels: 10, hidden: 1024, classes: 4096, model: Flat, lengths: Ragged };

impl Choice {
    fn system(&self, name: &str, method: Method) -> System {
        System { name: name.to_owned(), method, threads: self.threads }
    }

    /// Ours, scores recomputed unless the command line says otherwise.
    fn ours(&self) -> System {
        let budget = self.budget.map_or(Budget::Recompute, Budget::Bytes);
        self.system("ours", Method::Ours { budget, skip: 0.0, bf16: false })
    }

    /// Ours, all scores kept.
    fn ours_kept(&self) -> System {
        self.system("ours-kept", Method::Ours { budget: Budget::Unlimited, skip: 0.0, bf16: false })
    }

    /// Ours, scores recomputed, products in bf16 where the machine has instructions for that.
    fn ours_bf16(&self) -> Option<System> {
        let budget = self.budget.map_or(Budget::Recompute, Budget::Bytes);
        let method = Method::Ours { budget, skip: 0.0, bf16: true };
        Precision::Bf16.is_native().then(|| self.system("ours-bf16", method))
    }

    fn dense(&self) -> System {
        self.system("dense", Method::Textbook)
    }
}

/// 8192 as 8,192
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([1, 999, 1024, 262_144].map(thousands), ["1", "999", "1,024", "262,144"]);
    }

    #[test]
    fn every_suite_has_a_quick_part_whose_cases_have_names_of_their_own() {
        for suite in <Suite as clap::ValueEnum>::value_variants() {
            let count = |quick| {
                let choice = Choice { quick, threads: 2, budget: None, model: None };
                let cases = suite.plan(&choice).unwrap().cases;
                let names: std::collections::BTreeSet<_> =
                    cases.iter().map(|case| case.name.clone()).collect();
                assert_eq!(names.len(), cases.len());
                assert!(cases.iter().all(
                    |case| ["ours", "pruned"].contains(&&*case.systems[0].name) && case.systems.len() > 1
                ));
                cases.len()
            };
            assert!((1..=count(false)).contains(&count(true)));
        }
    }
}
