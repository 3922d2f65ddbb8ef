//! Best paths of all groups of a call: the choice of a search, and the one that computes all arc weights.
use kernels::Real;

use crate::{
    Frames, LatticePath, RecognitionLattice, Result,
    denominator::two,
    execution::{CallBuffers, Execution, check_sums},
    group::{UtteranceGroup, Wave},
    plan::{LatticeOperation, Options, Plan},
    screened,
};

/// A search for the best paths of a call, and the plan of its memory.
pub struct PathSearch<F: Real> {
    pub plan: Plan,
    pub run: SearchFn<F>,
}

type SearchFn<F> = fn(&mut Execution<F>, &Plan, &mut CallBuffers<F>) -> Result<Vec<LatticePath>>;

impl<F: Real> PathSearch<F> {
    /// The fastest search that the budget has memory for. All find the same paths.
    pub fn new(lattice: &RecognitionLattice<F>, frames: &Frames<F>, options: Options) -> Result<Self> {
        let plan = Plan::new(lattice, frames, None, (LatticeOperation::sum(true).best(), options))?;
        let all_arcs = Self { plan, run: best_paths };
        Ok(screened::search(lattice, &plan).unwrap_or(all_arcs))
    }
}

/// Finds the best paths of a call from all arc weights, wave by wave.
fn best_paths<F: Real>(
    execution: &mut Execution<F>,
    plan: &Plan,
    buffers: &mut CallBuffers<F>,
) -> Result<Vec<LatticePath>> {
    search_groups(execution, plan, buffers, search_waves)
}

/// Finds the best paths of a call, the backpointers of each group by `search`, which returns the weights of the paths.
pub fn search_groups<'a, F: Real>(
    execution: &mut Execution<'a, F>,
    plan: &Plan,
    buffers: &mut CallBuffers<F>,
    mut search: impl FnMut(&mut Execution<'a, F>, &UtteranceGroup, &mut CallBuffers<F>) -> Vec<f64>,
) -> Result<Vec<LatticePath>> {
    let mut paths = Vec::with_capacity(execution.frames.utterances());
    for group in plan.groups(execution.frames) {
        execution.set_frames(&group)?;
        buffers.best.begin(&execution.step, &group);
        let weights = search(execution, &group, buffers);
        check_sums(&weights, &group)?;
        for (at, &weight) in weights.iter().enumerate() {
            paths.push(buffers.best.walk_back(&execution.step, &group, at, weight));
        }
    }
    Ok(paths)
}

/// Fills in the backpointers of a group from all arc weights; returns the weights of its best paths.
pub fn search_waves<F: Real>(
    execution: &mut Execution<F>,
    group: &UtteranceGroup,
    buffers: &mut CallBuffers<F>,
) -> Vec<f64> {
    let (step, weights, waves) = (&execution.step, &*execution.weights, group.waves());
    let mut offsets = vec![0.0; group.len()];
    let mut arcs = buffers.denominator.take_buffers(2);
    let mut before: Option<Wave> = None;
    for at in 0..=waves {
        let wave = (at < waves).then(|| group.wave(at));
        let (ahead, behind) = two(&mut arcs, at % 2, (at + 1) % 2);
        rayon::join(
            || {
                if let (Some(wave), Some(buffer)) = (&wave, ahead) {
                    weights.forward(&wave.frames, buffer.room(step, wave.frames.len()));
                }
            },
            || {
                if let (Some(wave), Some(buffer)) = (&before, behind) {
                    let arcs = buffer.arcs(step, wave.frames.len());
                    buffers.best.forward(step, group, (at - 1, wave), arcs, &mut offsets);
                }
            },
        );
        before = wave;
    }
    buffers.denominator.give_buffers(arcs);
    buffers.best.path_weights(step.context().states(), &offsets)
}
