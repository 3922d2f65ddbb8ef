//! Viterbi search over a recognition lattice, by groups of utterances.
//!
//! The search computes all arc weights (here), or only those that may be the best (`screened.rs`);
//! both write the backpointers of `best_path.rs`. A group is a range of utterances that are
//! processed together, a wave a range of their frames.
use kernels::Real;

use crate::{
    Frames, LatticePath, RecognitionLattice, Result,
    denominator::pair_mut,
    execution::{BoundCall, CallBuffers, check_sums},
    plan::{LatticeOperation, Options, Plan},
    utterance_group::{UtteranceGroup, Wave},
};

/// A search for the best paths, with its memory plan.
pub(crate) struct PathSearch<F: Real> {
    pub plan: Plan,
    /// Runs the search.
    pub run: SearchFn<F>,
}

type SearchFn<F> = fn(&mut BoundCall<F>, &Plan, &mut CallBuffers<F>) -> Result<Vec<LatticePath>>;

impl<F: Real> PathSearch<F> {
    /// Creates the search that computes all arc weights.
    pub(crate) fn over_all_arcs(
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        options: Options,
    ) -> Result<Self> {
        let plan = Plan::new(lattice, frames, None, LatticeOperation::sum(true).with_best_paths(), options)?;
        Ok(Self { plan, run: best_paths })
    }
}

/// Finds the best paths from all arc weights, wave by wave.
fn best_paths<F: Real>(
    call: &mut BoundCall<F>,
    plan: &Plan,
    buffers: &mut CallBuffers<F>,
) -> Result<Vec<LatticePath>> {
    search_groups(call, plan, buffers, search_waves)
}

/// Finds the best paths of a call; `search` writes backpointers and returns path weights.
pub(crate) fn search_groups<'a, F: Real>(
    call: &mut BoundCall<'a, F>,
    plan: &Plan,
    buffers: &mut CallBuffers<F>,
    mut search: impl FnMut(&mut BoundCall<'a, F>, &UtteranceGroup, &mut CallBuffers<F>) -> Vec<f64>,
) -> Result<Vec<LatticePath>> {
    let mut paths = Vec::with_capacity(call.frames.utterances());
    for group in plan.groups(call.frames) {
        call.set_frames(&group)?;
        buffers.backpointers.start(&call.step, &group);
        let weights = search(call, &group, buffers);
        check_sums(&weights, &group)?;
        for (index, &weight) in weights.iter().enumerate() {
            paths.push(buffers.backpointers.trace_back(&call.step, &group, index, weight));
        }
    }
    Ok(paths)
}

/// Writes the backpointers of a group from all arc weights; returns its path weights.
pub(crate) fn search_waves<F: Real>(
    call: &mut BoundCall<F>,
    group: &UtteranceGroup,
    buffers: &mut CallBuffers<F>,
) -> Vec<f64> {
    let (step, weights, waves) = (&call.step, &*call.weights, group.waves());
    let mut offsets = vec![0.0; group.len()];
    let mut arcs = buffers.denominator.take_buffers(2);
    let mut previous_wave: Option<Wave> = None;
    for wave_index in 0..=waves {
        let wave = (wave_index < waves).then(|| group.wave(wave_index));
        let (current, previous) = pair_mut(&mut arcs, wave_index % 2, (wave_index + 1) % 2);
        rayon::join(
            || {
                if let (Some(wave), Some(buffer)) = (&wave, current) {
                    weights.forward(&wave.frames, buffer.arcs_mut(step, wave.frames.len()));
                }
            },
            || {
                if let (Some(wave), Some(buffer)) = (&previous_wave, previous) {
                    let arcs = buffer.arcs(step, wave.frames.len());
                    buffers.backpointers.forward(step, group, wave_index - 1, wave, arcs, &mut offsets);
                }
            },
        );
        previous_wave = wave;
    }
    buffers.denominator.return_buffers(arcs);
    buffers.backpointers.path_weights(step.context().states(), &offsets)
}
