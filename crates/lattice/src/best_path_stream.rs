//! The best path of frames that come bit by bit.
//!
//! What is kept: the best weight of each context state, and the back pointers of frames that are not certain. A frame is certain when
//! the back pointers of all states meet behind it: whatever comes, the best path begins so. Blocked states do not count, nor, if a
//! margin is given, those that have fallen behind the best one by more: they are given up with what they disagree about. In a full
//! n-gram nothing is ever certain without one, because the state without a label comes from nothing but blanks.
use kernels::Real;

use crate::{
    ArcsMut, BoundWeights, Error, LatticePath, RecognitionLattice, Result,
    beam::set_frames,
    plan::ARCS_PER_WAVE,
    step::{FrameStep, StepScratch},
};

/// Best paths of a stream, which end as [`best_paths`](crate::LatticeSession::best_paths) of the whole: always with an infinite margin, with
/// another one if no path wins in the end that had fallen behind by more.
///
/// ```
/// use lattice::{AlignmentLattice, BestPathStream, FullNGram, RecognitionLattice, TableWeightFn};
/// let (context, table) = (FullNGram::new(1, 0)?, TableWeightFn::new(&[0.0, 1.0, 0.0, -1.0], &[2, 1, 2])?);
/// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
/// let mut stream = BestPathStream::new(&lattice, f64::INFINITY)?;
/// assert_eq!(stream.push(&[0.0, 1.0])?, [1, 0]); // one state: all is certain at once
/// assert_eq!(stream.finish().weight, 1.0);
/// # Ok::<(), lattice::Error>(())
/// ```
pub struct BestPathStream<'a, F> {
    lattice: RecognitionLattice<'a, F>,
    step: FrameStep<'a>,
    weights: Box<dyn BoundWeights<F> + 'a>,
    margin: f64,
    room: StepScratch<F>,
    /// Best weight of each state, less the offset.
    state: Vec<F>,
    next: Vec<F>,
    offset: f64,
    /// Back pointers of frames that are not certain.
    from: Vec<u32>,
    count: Vec<u32>,
    frames: usize,
}

impl<'a, F: Real> BestPathStream<'a, F> {
    /// Before the first frame. `margin`: by how much weight a state may fall behind before it is not waited for.
    ///
    /// # Errors
    /// A margin that is negative or NaN, parameters that do not fit together.
    pub fn new(lattice: &RecognitionLattice<'a, F>, margin: f64) -> Result<Self> {
        if margin.is_nan() || margin < 0.0 {
            return Err(Error::shape("margin", "a weight of at least 0", margin));
        }
        let (step, states) = (lattice.step(), lattice.context().states());
        let mut state = vec![F::ZERO; states];
        step.begin(&mut state);
        Ok(Self {
            lattice: *lattice,
            weights: lattice.weight_fn().bind(&mut Vec::new())?,
            margin,
            step,
            room: StepScratch::default(),
            next: vec![F::ZERO; states],
            state,
            offset: 0.0,
            from: Vec::new(),
            count: Vec::new(),
            frames: 0,
        })
    }

    /// More frames, *n x F*. Returns the alignment of those frames that became certain, A labels each, the oldest first.
    ///
    /// # Errors
    /// Rows that are none leave the stream as it was, weights that are NaN or +inf end it.
    ///
    /// # Cost
    /// Arc weights of the frames; 4 bytes for each state, and for each label of a frame, of the frames that are not certain yet,
    /// which are walked through once.
    pub fn push(&mut self, rows: &[F]) -> Result<Vec<u32>> {
        let new = set_frames(&self.lattice, &mut *self.weights, rows, self.frames)?;
        let (c, v) = (self.lattice.context().states(), self.lattice.context().vocabulary());
        let [per_from, per_count] = self.step.kept();
        let window = ARCS_PER_WAVE.div_ceil(c * (1 + v)).max(1);
        let (mut blank, mut lexical) = (Vec::new(), Vec::new());
        let all: Vec<usize> = (0..new).collect();
        for wave in all.chunks(window) {
            blank.resize(wave.len() * c, F::ZERO);
            lexical.resize(wave.len() * c * v, F::ZERO);
            self.weights.forward(wave, ArcsMut { blank: &mut blank, lexical: &mut lexical });
            for arcs in blank.chunks_exact(c).zip(lexical.chunks_exact(c * v)) {
                let (from, count) = (self.from.len(), self.count.len());
                self.from.resize(from + per_from, 0);
                self.count.resize(count + per_count, 0);
                let kept = (&mut self.from[from..], &mut self.count[count..]);
                let offset = self.step.best(&mut self.room, arcs, &self.state, &mut self.next, kept).to_f64();
                if offset.is_nan() || offset == f64::INFINITY {
                    return Err(Error::Overflow { utterance: 0, value: offset });
                }
                self.offset += offset;
                std::mem::swap(&mut self.state, &mut self.next);
            }
        }
        self.frames += new;
        Ok(self.take_certain())
    }

    /// The end: the alignment of the frames that [`push`](Self::push) has not given out, and the weight of the whole path.
    pub fn finish(self) -> LatticePath {
        let best = |best: usize, (at, &end): (usize, &F)| if end > self.state[best] { at } else { best };
        let end = self.state.iter().enumerate().fold(0, best);
        let weight = self.state[end].to_f64() + self.offset;
        let per_frame = self.step.alignment().num_states();
        let mut alignment = vec![0; self.kept_frames() * per_frame];
        if weight > f64::NEG_INFINITY {
            self.walk_back(self.kept_frames(), end, &mut alignment);
        }
        LatticePath { alignment, per_frame, weight }
    }

    /// Frames that are not certain.
    fn kept_frames(&self) -> usize {
        let [per_from, per_count] = self.step.kept();
        self.count.len().checked_div(per_count).unwrap_or_else(|| self.from.len() / per_from)
    }

    fn take_certain(&mut self) -> Vec<u32> {
        let [per_from, per_count] = self.step.kept();
        // The largest weight is 0.
        let behind = |state: &usize| self.state[*state].to_f64() < -self.margin;
        let live = |state: &usize| self.state[*state] > F::NEG_INFINITY;
        let all = 0..self.state.len();
        let mut states: Vec<usize> = all.clone().filter(|state| live(state) && !behind(state)).collect();
        let last = self.kept_frames();
        let mut frames = last;
        while states.len() > 1 && frames > 0 {
            frames -= 1;
            states.iter_mut().for_each(|state| *state = self.before(frames, *state, &mut []));
            states.sort_unstable();
            states.dedup();
        }
        let &[state] = &states[..] else { return Vec::new() };
        let origin = |end| (frames..last).rev().fold(end, |state, t| self.before(t, state, &mut []));
        let given_up: Vec<usize> =
            all.filter(|end| live(end) && behind(end) && origin(*end) != state).collect();
        given_up.into_iter().for_each(|end| self.state[end] = F::NEG_INFINITY);
        let mut alignment = vec![0; frames * self.step.alignment().num_states()];
        self.walk_back(frames, state, &mut alignment);
        self.from.drain(..frames * per_from);
        self.count.drain(..frames * per_count);
        alignment
    }

    /// Labels of the first frames on the way to a state behind them.
    fn walk_back(&self, frames: usize, mut state: usize, alignment: &mut [u32]) {
        let per_frame = self.step.alignment().num_states();
        for (frame, labels) in (0..frames).zip(alignment.chunks_exact_mut(per_frame)).rev() {
            state = self.before(frame, state, labels);
        }
    }

    /// The state before a frame from which the best way leads to one behind it; the labels on it, if there is room for them.
    fn before(&self, frame: usize, mut state: usize, labels: &mut [u32]) -> usize {
        let (c, v) = (self.lattice.context().states(), self.lattice.context().vocabulary());
        let [per_from, per_count] = self.step.kept();
        let from = &self.from[frame * per_from..][..per_from];
        let count = if per_count > 0 { self.count[frame * per_count + state] as usize } else { 1 };
        for i in (0..count).rev() {
            if let Some(arc) = from[i * c + state].checked_sub(1) {
                if let Some(label) = labels.get_mut(i) {
                    *label = arc % v as u32 + 1;
                }
                state = arc as usize / v;
            }
        }
        state
    }
}
