//! Paths drawn from the posterior.
use kernels::{Real, ScratchReq};
use rnnt_dp::Draws;

use crate::{
    Error, Frames, LatticePath, LatticeSession, Merge, RecognitionLattice, Result,
    n_best::first_max,
    potentials::{PathWalk, StateArcs},
};

impl<F: Real> LatticeSession<F> {
    /// `count` independent paths of each utterance, exactly from the posterior; none where all paths are blocked.
    ///
    /// ```text
    /// P(path) = exp(weight(path) - log D)        P(arc | state) = exp(w(arc) + β(arc) - β(state))
    /// ```
    /// The randomness of a path is a stream of its own, named by `seed`, utterance and index of the path: neither threads nor other
    /// utterances nor `count` change it. `log D` is in [`distances`](Self::distances).
    ///
    /// ```
    /// use lattice::{AlignmentLattice, Frames, FullNGram, RecognitionLattice, LatticeSession, TableWeightFn};
    /// let weights = [0.0, 3f64.ln()]; // one frame: the label is three times as probable as the blank
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
    /// As [`distances`](Self::distances); more paths than memory has addresses for.
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
        let most = isize::MAX as usize / size_of::<LatticePath>();
        if count > most {
            return Err(Error::shape("count", format!("at most {most} paths"), count));
        }
        let memory = [ScratchReq::EMPTY, StateArcs::<F>::scratch(lattice.context())];
        self.walks(lattice, frames, (Merge::Sum, memory), |utterance, walk| {
            let count = if walk.total() > f64::NEG_INFINITY { count } else { 0 };
            let mut row = StateArcs::default();
            Ok((0..count).map(|path| draw(walk, &mut row, Draws::new(seed, utterance, path))).collect())
        })
    }
}

fn draw<F: Real>(walk: &PathWalk<F>, row: &mut StateArcs<F>, mut draws: Draws) -> LatticePath {
    let alignment = vec![0; walk.places.end()];
    let mut path = LatticePath { alignment, per_frame: walk.places.per_frame(), weight: 0.0 };
    let (mut place, mut state) = (0, walk.context.start());
    while place < walk.places.end() {
        walk.look(place, state, row);
        let (_, top) = first_max(&row.scores);
        row.scores.iter_mut().for_each(|score| *score -= top);
        kernels::exp(&mut row.scores);
        let label = draws.pick(&row.scores);
        path.alignment[place] = label as u32;
        path.weight += row.weights[label];
        (place, state) = walk.follow(place, state, label);
    }
    path
}
