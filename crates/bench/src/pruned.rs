//! Our pruned loss as the subject of a measurement.
use rnnt_loss::{Loss, Options, PassScales, PrunedInputs, Session};

use super::answer::Workload;
use super::answer::{CaseShape, PruningReport};
use super::case::{Budget, PrunedWork};
use super::error::Result;
use super::gradients::NamedGradients;
use super::inputs::LossInputs;
use super::loss::{gradients, joint, options};
use super::trivial::Trivial;

/// A [`Session`] on a batch, both passes, with buffers that stay, as in training.
pub struct Pruned {
    work: PrunedWork,
    inputs: LossInputs,
    trivial: Trivial,
    session: Session<f32>,
    /// Of the last step.
    retained: Option<usize>,
}

impl Pruned {
    /// Takes the batch.
    ///
    /// # Errors
    /// Options that the loss refuses.
    pub fn new(work: PrunedWork, inputs: LossInputs, trivial: Trivial, budget: Budget) -> Result<Self> {
        let options = Options { loss: Loss::pruned(work.pruning()), ..options(budget, 0.0, false) };
        Ok(Self { work, inputs, trivial, session: Session::new(&options)?, retained: None })
    }
}

impl Workload for Pruned {
    fn shape(&self) -> CaseShape {
        self.inputs.sizes.shape()
    }

    fn result_bytes(&self) -> u64 {
        self.inputs.sizes.bytes() + self.work.source_bytes()
    }

    fn operations(&self) -> Option<u64> {
        Some(self.work.first_operations() + self.work.second_operations(self.session.options()).ok()?)
    }

    fn step(&mut self) -> Result<NamedGradients> {
        let Self { inputs, trivial, session, .. } = self;
        let simple = trivial.source(&inputs.frames, &inputs.labels, inputs.sizes.hidden)?;
        let both = PrunedInputs { simple, joint: joint(inputs)?, scales: PassScales::default() };
        let out = session.sum(both, &inputs.targets, &vec![1.0; inputs.sizes.batch])?;
        self.retained = out.first_pass.as_ref().map(|found| found.ranges.sites());
        Ok(gradients(out))
    }

    fn pruning_report(&self) -> Option<PruningReport> {
        Some(self.work.report(self.retained?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{FirstPassScores, LengthSpread, LossWork, Method, Posteriors};
    use crate::gradients::{largest_difference, write};
    use crate::measure::prepare_pruned;

    #[test]
    fn both_ways_have_the_same_sites_and_gradients() {
        for (scores, lengths) in
            [(FirstPassScores::Matrices, LengthSpread::Even), (FirstPassScores::Heads, LengthSpread::Ragged)]
        {
            let loss = LossWork {
                batch: 3,
                frames: 30,
                labels: 12,
                hidden: 32,
                classes: 70,
                model: Posteriors::Peaked,
                lengths,
            };
            let work = PrunedWork { loss, s_range: 4, scores };
            let folder = tempfile::tempdir().unwrap();
            let step = |name: &str, method: Method| {
                let mut subject = prepare_pruned(&work, &method).unwrap();
                write(&folder.path().join(name), subject.step().unwrap()).unwrap();
                subject.pruning_report().unwrap().retained
            };
            let retained = [
                step("ours", Method::Pruned(Budget::Recompute)),
                step("kept", Method::Pruned(Budget::Unlimited)),
                step("dense", Method::PrunedTextbook),
            ];
            assert_eq!(retained, [work.retained(); 3]);
            for name in ["ours", "kept"] {
                let difference =
                    largest_difference(&folder.path().join(name), &folder.path().join("dense")).unwrap();
                assert!(difference > 0.0 && difference < 1e-5, "{name}: {difference}");
            }
        }
    }
}
