//! Our pruned loss as the subject of a measurement.
use pruned::Source;
use rnnt_loss::{Head, Layout, Options, ProjectedLoss, Pruning, Workspace};

use super::answer::{PruningReport, Shape};
use super::case::{Budget, PrunedWork};
use super::error::Result;
use super::gradients::Gradients;
use super::inputs::Inputs;
use super::loss::{gradients, options};
use super::subject::Subject;
use super::trivial::{AnySource, Trivial};

/// [`rnnt_loss::pruned_loss`] on a batch, both passes, with buffers that stay, as in training.
pub struct Pruned {
    work: PrunedWork,
    inputs: Inputs,
    trivial: Trivial,
    options: Options,
    workspace: Workspace<f32>,
    /// Of the last step.
    retained: Option<usize>,
}

impl Pruned {
    /// Takes the batch.
    ///
    /// # Errors
    /// Options that the loss refuses.
    pub fn new(work: PrunedWork, inputs: Inputs, trivial: Trivial, budget: Budget) -> Result<Self> {
        let options = options(budget, 0.0, false);
        Ok(Self { work, inputs, trivial, workspace: Workspace::new(&options)?, options, retained: None })
    }
}

fn loss<S: Source<f32>>(
    source: &S,
    inputs: &Inputs,
    pruning: &Pruning,
    workspace: &mut Workspace<f32>,
) -> Result<(usize, ProjectedLoss<f32>)> {
    let Inputs { frames, labels, weight, bias, targets, sizes } = inputs;
    let layout = Layout::Padded { frames: sizes.frames, positions: sizes.labels + 1 };
    let head = Head::new(weight, Some(bias), sizes.hidden).map_err(rnnt_loss::Error::from)?;
    let weights = vec![1.0; sizes.batch];
    let out = workspace.pruned_loss(source, frames, labels, &head, layout, targets, pruning, &weights)?;
    Ok((out.ranges.sites(), out.second))
}

impl Subject for Pruned {
    fn shape(&self) -> Shape {
        self.inputs.sizes.shape()
    }

    fn result_bytes(&self) -> u64 {
        self.inputs.sizes.bytes() + self.work.source_bytes()
    }

    fn operations(&self) -> Option<u64> {
        Some(self.work.first_operations() + self.work.second_operations(&self.options).ok()?)
    }

    fn step(&mut self) -> Result<Gradients> {
        let Self { inputs, workspace, .. } = self;
        let pruning = self.work.pruning();
        let (retained, second) =
            match self.trivial.source(&inputs.frames, &inputs.labels, inputs.sizes.hidden)? {
                AnySource::Matrices(source) => loss(&source, inputs, &pruning, workspace)?,
                AnySource::Heads(source) => loss(&source, inputs, &pruning, workspace)?,
            };
        self.retained = Some(retained);
        Ok(gradients(second))
    }

    fn pruning_report(&self) -> Option<PruningReport> {
        Some(self.work.report(self.retained?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Knowledge, Lengths, LossWork, Method, Scores};
    use crate::gradients::{largest_difference, write};
    use crate::measure::prepare_pruned;

    #[test]
    fn both_ways_have_the_same_sites_and_gradients() {
        for (scores, lengths) in [(Scores::Matrices, Lengths::Even), (Scores::Heads, Lengths::Ragged)] {
            let loss = LossWork {
                batch: 3,
                frames: 30,
                labels: 12,
                hidden: 32,
                classes: 70,
                model: Knowledge::Sharp,
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
