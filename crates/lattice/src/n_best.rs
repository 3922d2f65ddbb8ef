//! Exact search for the n best paths of a recognition lattice.
//!
//! The best continuation from any state, of weight β, is known (`potentials.rs`). A path is
//! therefore determined by the arc where it deviates from the best continuation of another path,
//! and by the loss there (s: state; w: weight of an arc):
//!
//! ```text
//! loss(arc from s) = max over arcs e from s of (w(e) + β(e)) - (w(arc) + β(arc))
//!                  >= 0, and 0 on the best continuation
//! ```
//! Each path adds all deviations after its own as candidates. The candidate of least loss is the
//! next best path (Lawler 1972; Eppstein 1998). Ties have a loss of exactly 0, regardless of
//! rounding in the sums.
use kernels::{Real, ScratchReq};

use crate::{
    Frames, LatticePath, LatticeSession, Merge, RecognitionLattice, Result,
    plan::WalkMemory,
    potentials::{PathWalk, StateArcs},
};

/// A deviation of a path from another one.
struct PathDeviation {
    /// Loss of the whole path: the weight of the best path minus its weight.
    loss: f64,
    /// Weight up to and including the arc.
    weight: f64,
    /// Index of the path it deviates from.
    from: usize,
    /// Position (frame and alignment state) and context state where the arc begins.
    position: usize,
    state: usize,
    /// Label of the arc; 0 is the blank.
    label: u32,
}

impl<F: Real> LatticeSession<F> {
    /// Returns the `count` best paths of each utterance, best first, all different.
    ///
    /// There are fewer if fewer paths have a weight above -inf.
    ///
    /// Exact: the n-th path has the n-th largest weight. Ties are ordered by where paths deviate
    /// from earlier ones. The first path prefers the blank, then the lowest label, while
    /// [`best_paths`](Self::best_paths) resolves ties at arc targets.
    ///
    /// ```
    /// use lattice::{
    ///     AlignmentLattice, Frames, FullNGram, LatticeSession, RecognitionLattice, TableWeightFn,
    /// };
    /// let weights = [0.0f64, 0.5, -1.0, 2.0]; // (blank, label 1) in two frames, one context state
    /// let (context, table) = (FullNGram::new(1, 0)?, TableWeightFn::new(&weights, &[2, 1, 2])?);
    /// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
    /// let frames = Frames::new(&[0.0, 1.0], &[1, 2, 1], &[2])?;
    /// let paths = LatticeSession::default().n_best_paths(&lattice, &frames, 3)?;
    /// let best: Vec<_> = paths[0].iter().map(|path| (&path.alignment[..], path.weight)).collect();
    /// assert_eq!(best, [(&[1, 1][..], 2.5), (&[0, 1], 2.0), (&[1, 0], -0.5)]);
    /// # Ok::<(), lattice::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`distances`](Self::distances).
    ///
    /// # Cost
    /// Arc weights of all frames once, and N A C numbers of 8 bytes for an utterance of N frames,
    /// with A alignment states and C context states; then, for each path, the arcs of one state per
    /// frame and alignment state that it visits.
    pub fn n_best_paths(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        count: usize,
    ) -> Result<Vec<Vec<LatticePath>>> {
        let deviations = ScratchReq::new::<PathDeviation>(count.saturating_add(1));
        let per_utterance = deviations.and(StateArcs::<F>::scratch(lattice.context()));
        let memory = WalkMemory { per_frame: ScratchReq::EMPTY, per_utterance };
        self.walks(lattice, frames, Merge::Max, memory, |_, walk| Ok(n_best(walk, count)))
    }
}

/// Returns the `count` best paths of an utterance, best first.
fn n_best<F: Real>(walk: &PathWalk<F>, count: usize) -> Vec<LatticePath> {
    let mut paths: Vec<LatticePath> = Vec::new();
    // Sorted by loss; no more than the number of paths that are still to be found.
    let mut deviations: Vec<PathDeviation> = Vec::new();
    let mut arcs = StateArcs::default();
    let per_frame = walk.positions.per_frame();
    // The next path, its loss, and the position and state from which it is completed.
    let mut next = (walk.total() > f64::NEG_INFINITY && count > 0).then(|| {
        let path = LatticePath { alignment: vec![0; walk.positions.end()], per_frame, weight: 0.0 };
        (path, 0.0, 0, walk.context.start())
    });
    while let Some((mut path, path_loss, mut position, mut state)) = next {
        let remaining = count - paths.len() - 1;
        // Follows the best continuation, and collects deviations.
        while position < walk.positions.end() {
            walk.arc_scores(position, state, &mut arcs);
            let (best_label, best_score) = first_max(&arcs.scores);
            for (label, &score) in arcs.scores.iter().enumerate() {
                let loss = path_loss + (best_score - score);
                let is_outranked =
                    deviations.len() >= remaining && deviations.last().is_none_or(|last| loss >= last.loss);
                if label == best_label || score == f64::NEG_INFINITY || is_outranked {
                    continue;
                }
                let index = deviations.partition_point(|deviation| deviation.loss <= loss);
                let weight = path.weight + arcs.weights[label];
                deviations.insert(
                    index,
                    PathDeviation { loss, weight, from: paths.len(), position, state, label: label as u32 },
                );
                deviations.truncate(remaining);
            }
            path.alignment[position] = best_label as u32;
            path.weight += arcs.weights[best_label];
            (position, state) = walk.next_position(position, state, best_label);
        }
        paths.push(path);
        // The start of the next path: the deviation of least loss.
        next = (!deviations.is_empty()).then(|| {
            let deviation = deviations.remove(0);
            let mut alignment = vec![0; walk.positions.end()];
            alignment[..deviation.position]
                .copy_from_slice(&paths[deviation.from].alignment[..deviation.position]);
            alignment[deviation.position] = deviation.label;
            let (position, state) =
                walk.next_position(deviation.position, deviation.state, deviation.label as usize);
            (LatticePath { alignment, per_frame, weight: deviation.weight }, deviation.loss, position, state)
        });
    }
    // Sums in different orders may differ in the last digit.
    paths.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    paths
}

/// Returns the index and value of the first of the largest values.
pub(crate) fn first_max(values: &[f64]) -> (usize, f64) {
    let larger = |best: (usize, f64), (index, &x): (usize, &f64)| if x > best.1 { (index, x) } else { best };
    values.iter().enumerate().fold((0, f64::NEG_INFINITY), larger)
}
