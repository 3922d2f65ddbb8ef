//! Samples paths of a recognition lattice from their posterior distribution.
//!
//! β, the log-sum over the paths from a state to the end (`potentials.rs`), gives the probability
//! of each arc from it; a path is sampled arc by arc.
use kernels::{Real, ScratchReq};
use rnnt_dp::PathRng;

use crate::{
    Error, Frames, LatticePath, LatticeSession, Merge, RecognitionLattice, Result,
    n_best::first_max,
    plan::WalkMemory,
    potentials::{PathWalk, StateArcs},
};

impl<F: Real> LatticeSession<F> {
    /// Returns `count` independent paths of each utterance, sampled from the posterior.
    ///
    /// None where all paths are blocked.
    ///
    /// ```text
    /// P(path) = exp(weight(path) - log D)        P(arc | state) = exp(w(arc) + β(target) - β(state))
    /// ```
    /// D is the sum over all paths, w the weight of an arc, `target` its target state.
    ///
    /// Each path has a separate random stream, determined by `seed` and the indices of utterance
    /// and path. Threads, other utterances and `count` do not change it.
    /// [`distances`](Self::distances) returns `log D`.
    ///
    /// ```
    /// use lattice::{
    ///     AlignmentLattice, Frames, FullNGram, LatticeSession, RecognitionLattice, TableWeightFn,
    /// };
    /// // One frame: the label is three times as probable as the blank.
    /// let weights = [0.0, 3f64.ln()];
    /// let (context, table) = (FullNGram::new(1, 0)?, TableWeightFn::new(&weights, &[1, 1, 2])?);
    /// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
    /// let frames = Frames::new(&[0.0], &[1, 1, 1], &[1])?;
    /// let paths = LatticeSession::default().sample_paths(&lattice, &frames, 400, 1)?;
    /// let labels = paths[0].iter().filter(|path| path.alignment == [1]).count();
    /// assert!((250..350).contains(&labels));
    /// # Ok::<(), lattice::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`distances`](Self::distances); more paths than fit into memory.
    ///
    /// # Cost
    /// As [`n_best_paths`](Self::n_best_paths).
    pub fn sample_paths(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        count: usize,
        seed: u64,
    ) -> Result<Vec<Vec<LatticePath>>> {
        let max_paths = isize::MAX as usize / size_of::<LatticePath>();
        if count > max_paths {
            return Err(Error::shape("count", format!("at most {max_paths} paths"), count));
        }
        let per_utterance = StateArcs::<F>::scratch(lattice.context());
        let memory = WalkMemory { per_frame: ScratchReq::EMPTY, per_utterance };
        self.walks(lattice, frames, Merge::Sum, memory, |utterance, walk| {
            let count = if walk.total() > f64::NEG_INFINITY { count } else { 0 };
            let mut arcs = StateArcs::default();
            Ok((0..count)
                .map(|path| sample_path(walk, &mut arcs, PathRng::new(seed, utterance, path)))
                .collect())
        })
    }
}

/// Samples one path, arc by arc.
fn sample_path<F: Real>(walk: &PathWalk<F>, arcs: &mut StateArcs<F>, mut rng: PathRng) -> LatticePath {
    let alignment = vec![0; walk.positions.end()];
    let mut path = LatticePath { alignment, per_frame: walk.positions.per_frame(), weight: 0.0 };
    let (mut position, mut state) = (0, walk.context.start());
    while position < walk.positions.end() {
        walk.arc_scores(position, state, arcs);
        let (_, max_score) = first_max(&arcs.scores);
        arcs.scores.iter_mut().for_each(|score| *score -= max_score);
        kernels::exp(&mut arcs.scores);
        let label = rng.weighted_index(&arcs.scores);
        path.alignment[position] = label as u32;
        path.weight += arcs.weights[label];
        (position, state) = walk.next_position(position, state, label);
    }
    path
}
