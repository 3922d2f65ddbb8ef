//! Benchmark of the pruned transducer loss: one `Session`, both passes.
use rnnt_loss::{Loss, Options, PassScales, PrunedInputs, Session};

use super::case::{Budget, PrunedWork};
use super::error::Result;
use super::gradients::NamedGradients;
use super::inputs::LossInputs;
use super::loss::{joint_inputs, named_gradients, session_options};
use super::simple_joiner::SimpleScores;
use super::workload::Workload;
use super::workload::{CaseShape, PruningReport};

/// Both passes of a [`Session`] on a batch; buffers are reused, as in training.
pub(crate) struct PrunedWorkload {
    work: PrunedWork,
    inputs: LossInputs,
    simple: SimpleScores,
    session: Session<f32>,
    /// Retained sites of the last step.
    retained_sites: Option<usize>,
}

impl PrunedWorkload {
    /// Creates a session for a batch.
    ///
    /// # Errors
    /// If the loss does not support the options.
    pub(crate) fn new(
        work: PrunedWork,
        inputs: LossInputs,
        simple: SimpleScores,
        budget: Budget,
    ) -> Result<Self> {
        let options = Options { loss: Loss::pruned(work.pruning()), ..session_options(budget, 0.0, false) };
        Ok(Self { work, inputs, simple, session: Session::new(&options)?, retained_sites: None })
    }
}

impl Workload for PrunedWorkload {
    fn shape(&self) -> CaseShape {
        self.inputs.sizes.shape()
    }

    fn result_bytes(&self) -> u64 {
        self.inputs.sizes.bytes() + self.work.first_pass_bytes()
    }

    fn operations(&self) -> Option<u64> {
        Some(
            self.work.first_pass_operations()
                + self.work.second_pass_operations(self.session.options()).ok()?,
        )
    }

    fn step(&mut self) -> Result<NamedGradients> {
        let Self { inputs, simple, session, .. } = self;
        let simple = simple.first_pass_inputs(&inputs.frames, &inputs.labels, inputs.sizes.hidden)?;
        let joint = PrunedInputs { simple, joint: joint_inputs(inputs)?, scales: PassScales::default() };
        let out = session.sum(joint, &inputs.targets, &vec![1.0; inputs.sizes.batch])?;
        self.retained_sites = out.first_pass.as_ref().map(|first_pass| first_pass.ranges.sites());
        Ok(named_gradients(out))
    }

    fn pruning_report(&self) -> Option<PruningReport> {
        Some(self.work.pruning_report(self.retained_sites?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{FirstPassScores, LengthSpread, LossSizes, Method, Posteriors};
    use crate::gradients::{largest_difference, write_gradients};
    use crate::measure::prepare_pruned;

    #[test]
    fn panda_and_baseline_have_the_same_sites_and_gradients() {
        for (scores, lengths) in
            [(FirstPassScores::Matrices, LengthSpread::Even), (FirstPassScores::Heads, LengthSpread::Ragged)]
        {
            let loss = LossSizes {
                batch: 3,
                frames: 30,
                labels: 12,
                hidden: 32,
                classes: 70,
                posteriors: Posteriors::Peaked,
                lengths,
            };
            let work = PrunedWork { loss, s_range: 4, scores };
            let folder = tempfile::tempdir().unwrap();
            let step = |name: &str, method: Method| {
                let mut workload = prepare_pruned(&work, &method).unwrap();
                write_gradients(&folder.path().join(name), workload.step().unwrap()).unwrap();
                workload.pruning_report().unwrap().retained_sites
            };
            let retained_sites = [
                step("panda", Method::Pruned(Budget::Recompute)),
                step("kept", Method::Pruned(Budget::Unlimited)),
                step("dense", Method::PrunedBaseline),
            ];
            assert_eq!(retained_sites, [work.retained_sites(); 3]);
            for name in ["panda", "kept"] {
                let difference =
                    largest_difference(&folder.path().join(name), &folder.path().join("dense")).unwrap();
                assert!(difference > 0.0 && difference < 1e-5, "{name}: {difference}");
            }
        }
    }
}
