//! The n best paths.
//!
//! The best path from any state is known (`potentials.rs`), so a path is told by where it leaves the best continuation of another one,
//! and what it loses there:
//!
//! ```text
//! loss(arc from s) = max over arcs e from s of (w(e) + β(e)) - (w(arc) + β(arc))        >= 0, and 0 on the way of a path found
//! ```
//! Each path found offers all ways to leave it behind its own turn; the offer of least loss is the next best path (Lawler 1972;
//! Eppstein 1998). Losses of ties are 0 exactly, whatever the rounding of the sums.
use kernels::{Real, ScratchReq};

use crate::{
    Frames, LatticePath, LatticeSession, Merge, RecognitionLattice, Result,
    potentials::{PathWalk, StateArcs},
};

/// Where a path turns off another one.
struct PathDeviation {
    loss: f64,
    /// Weight up to and with the arc.
    weight: f64,
    /// The path it leaves, by its number.
    from: usize,
    place: usize,
    state: usize,
    label: u32,
}

impl<F: Real> LatticeSession<F> {
    /// The `count` best paths of each utterance, best first, all different; fewer where there are fewer that are not blocked.
    ///
    /// Exact: the n-th has the n-th largest weight. Of paths of equal weight, those come first that turn off an earlier one
    /// first; the very first takes the blank, then the lowest label, where [`best_paths`](Self::best_paths) settles ties at the
    /// end of arcs.
    ///
    /// ```
    /// use lattice::{AlignmentLattice, Frames, FullNGram, RecognitionLattice, LatticeSession, TableWeightFn};
    /// let weights = [0.0f64, 0.5, -1.0, 2.0]; // (blank, label 1) in two frames, one context state
    /// let (context, table) = (FullNGram::new(1, 0)?, TableWeightFn::new(&weights, &[2, 1, 2])?);
    /// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
    /// let frames = Frames::new(&[0.0, 1.0], &[1, 2, 1], &[2])?;
    /// let paths = LatticeSession::default().n_best_paths(&lattice, &frames, 3)?;
    /// let found: Vec<_> = paths[0].iter().map(|path| (&path.alignment[..], path.weight)).collect();
    /// assert_eq!(found, [(&[1, 1][..], 2.5), (&[0, 1], 2.0), (&[1, 0], -0.5)]);
    /// # Ok::<(), lattice::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`distances`](Self::distances).
    ///
    /// # Cost
    /// Arc weights of all frames once and N A C numbers of 8 bytes an utterance; then, for each path, the arcs of one state a frame.
    pub fn n_best_paths(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        count: usize,
    ) -> Result<Vec<Vec<LatticePath>>> {
        let turns = ScratchReq::new::<PathDeviation>(count.saturating_add(1));
        let memory = [ScratchReq::EMPTY, turns.and(StateArcs::<F>::scratch(lattice.context()))];
        self.walks(lattice, frames, (Merge::Max, memory), |_, walk| Ok(n_best(walk, count)))
    }
}

fn n_best<F: Real>(walk: &PathWalk<F>, count: usize) -> Vec<LatticePath> {
    let mut found: Vec<LatticePath> = Vec::new();
    // In order, and no more than are still wanted.
    let mut turns: Vec<PathDeviation> = Vec::new();
    let mut row = StateArcs::default();
    let per_frame = walk.places.per_frame();
    let mut go_on = (walk.total() > f64::NEG_INFINITY && count > 0).then(|| {
        let path = LatticePath { alignment: vec![0; walk.places.end()], per_frame, weight: 0.0 };
        (path, 0.0, 0, walk.context.start())
    });
    while let Some((mut path, so_far, mut place, mut state)) = go_on {
        let wanted = count - found.len() - 1;
        while place < walk.places.end() {
            walk.look(place, state, &mut row);
            let (best, top) = first_max(&row.scores);
            for (label, &score) in row.scores.iter().enumerate() {
                let loss = so_far + (top - score);
                let late = turns.len() >= wanted && turns.last().is_none_or(|last| loss >= last.loss);
                if label == best || score == f64::NEG_INFINITY || late {
                    continue;
                }
                let at = turns.partition_point(|turn| turn.loss <= loss);
                let weight = path.weight + row.weights[label];
                turns.insert(
                    at,
                    PathDeviation { loss, weight, from: found.len(), place, state, label: label as u32 },
                );
                turns.truncate(wanted);
            }
            path.alignment[place] = best as u32;
            path.weight += row.weights[best];
            (place, state) = walk.follow(place, state, best);
        }
        found.push(path);
        go_on = (!turns.is_empty()).then(|| {
            let turn = turns.remove(0);
            let mut alignment = vec![0; walk.places.end()];
            alignment[..turn.place].copy_from_slice(&found[turn.from].alignment[..turn.place]);
            alignment[turn.place] = turn.label;
            let (place, state) = walk.follow(turn.place, turn.state, turn.label as usize);
            (LatticePath { alignment, per_frame, weight: turn.weight }, turn.loss, place, state)
        });
    }
    // Sums in another order may differ in the last place.
    found.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    found
}

/// The first of the largest.
pub fn first_max(values: &[f64]) -> (usize, f64) {
    let larger = |best: (usize, f64), (at, &x): (usize, &f64)| if x > best.1 { (at, x) } else { best };
    values.iter().enumerate().fold((0, f64::NEG_INFINITY), larger)
}
