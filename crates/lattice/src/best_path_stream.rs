//! Viterbi search over a stream of frames: emits labels as soon as they are final.
//!
//! The stream stores the best weight of each context state, and the backpointers of frames that are
//! not final. A frame is final when the best paths to all states share one state at its end or
//! later: later frames cannot change the best path up to there. States without a path are ignored.
//! With a margin, states that are worse than the best one by more than the margin are ignored too,
//! and discarded if their best path differs there. In a full n-gram no frame becomes final without
//! a margin, because only blanks lead to the state without labels.
use kernels::Real;

use crate::{
    Arcs, ArcsMut, BoundWeights, Error, LatticePath, RecognitionLattice, Result,
    beam::set_stream_frames,
    plan::ARCS_PER_WAVE,
    step::{FrameBackpointers, FrameStep, StepScratch},
};

/// Best path of a stream, equal to [`best_paths`](crate::LatticeSession::best_paths) of the whole
/// input.
///
/// With a finite margin this holds unless the best path was at some frame worse than another by
/// more than the margin.
///
/// ```
/// use lattice::{AlignmentLattice, BestPathStream, FullNGram, RecognitionLattice, TableWeightFn};
/// let context = FullNGram::new(1, 0)?;
/// let table = TableWeightFn::new(&[0.0, 1.0, 0.0, -1.0], &[2, 1, 2])?;
/// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
/// let mut stream = BestPathStream::new(&lattice, f64::INFINITY)?;
/// assert_eq!(stream.push(&[0.0, 1.0])?, [1, 0]); // one state: all frames are final at once
/// assert_eq!(stream.finish().weight, 1.0);
/// # Ok::<(), lattice::Error>(())
/// ```
pub struct BestPathStream<'a, F> {
    lattice: RecognitionLattice<'a, F>,
    step: FrameStep<'a>,
    weights: Box<dyn BoundWeights<F> + 'a>,
    margin: f64,
    scratch: StepScratch<F>,
    /// `α`: weight of the best path to each context state, without the offset.
    alpha: Vec<F>,
    /// Buffer for `α` after the next frame.
    next_alpha: Vec<F>,
    /// Sum of the maxima that were subtracted from `α`.
    offset: f64,
    /// Backpointers of frames that are not final: best arcs to each state.
    ///
    /// 0: blank; otherwise `1 + state · V + label - 1`, with the state before the arc, labels 1 to
    /// V.
    best_arcs: Vec<u32>,
    /// Numbers of labels of these frames, by context state.
    label_counts: Vec<u32>,
    /// Number of frames so far.
    frames: usize,
}

impl<'a, F: Real> BestPathStream<'a, F> {
    /// Starts a stream; states worse than the best by more than `margin` are not waited for.
    ///
    /// # Errors
    /// A margin that is negative or NaN, parameters that do not fit together.
    pub fn new(lattice: &RecognitionLattice<'a, F>, margin: f64) -> Result<Self> {
        if margin.is_nan() || margin < 0.0 {
            return Err(Error::shape("margin", "a weight difference of at least 0", margin));
        }
        let (step, states) = (lattice.step(), lattice.context().states());
        let mut alpha = vec![F::ZERO; states];
        step.start(&mut alpha);
        Ok(Self {
            lattice: *lattice,
            weights: lattice.weight_fn().bind(&mut Vec::new())?,
            margin,
            step,
            scratch: StepScratch::default(),
            next_alpha: vec![F::ZERO; states],
            alpha,
            offset: 0.0,
            best_arcs: Vec::new(),
            label_counts: Vec::new(),
            frames: 0,
        })
    }

    /// Processes more frames; returns the alignment of newly final frames.
    ///
    /// `rows` has n frames of F features. The alignment has one label (0 for none) for each of the
    /// A alignment states of a frame, oldest frame first.
    ///
    /// # Errors
    /// After invalid rows the stream is unchanged; after weights that are NaN or +inf it is
    /// unusable.
    ///
    /// # Cost
    /// Arc weights of the new frames. For each frame that is not final, 4 C bytes, or 4 (K + 1) C
    /// bytes if a frame may emit up to K labels, in a context of C states; each call traces these
    /// frames once.
    pub fn push(&mut self, rows: &[F]) -> Result<Vec<u32>> {
        let new_frames = set_stream_frames(&self.lattice, &mut *self.weights, rows, self.frames)?;
        let (c, v) = (self.lattice.context().states(), self.lattice.context().vocabulary());
        let [arcs_per_frame, counts_per_frame] = self.step.backpointer_counts();
        // Arc weights are computed for a wave of frames at a time.
        let frames_per_wave = ARCS_PER_WAVE.div_ceil(c * (1 + v)).max(1);
        let (mut blank, mut label_arcs) = (Vec::new(), Vec::new());
        let frame_indices: Vec<usize> = (0..new_frames).collect();
        for wave in frame_indices.chunks(frames_per_wave) {
            blank.resize(wave.len() * c, F::ZERO);
            label_arcs.resize(wave.len() * c * v, F::ZERO);
            self.weights.forward(wave, ArcsMut { blank: &mut blank, labels: &mut label_arcs });
            for (blank, label_arcs) in blank.chunks_exact(c).zip(label_arcs.chunks_exact(c * v)) {
                let (first_arc, first_count) = (self.best_arcs.len(), self.label_counts.len());
                self.best_arcs.resize(first_arc + arcs_per_frame, 0);
                self.label_counts.resize(first_count + counts_per_frame, 0);
                let pointers = FrameBackpointers {
                    best_arcs: &mut self.best_arcs[first_arc..],
                    label_counts: &mut self.label_counts[first_count..],
                };
                let arcs = Arcs { blank, labels: label_arcs };
                let offset = self
                    .step
                    .viterbi(&mut self.scratch, arcs, &self.alpha, &mut self.next_alpha, pointers)
                    .to_f64();
                if offset.is_nan() || offset == f64::INFINITY {
                    return Err(Error::Overflow { utterance: 0, value: offset });
                }
                self.offset += offset;
                std::mem::swap(&mut self.alpha, &mut self.next_alpha);
            }
        }
        self.frames += new_frames;
        Ok(self.take_final_frames())
    }

    /// Ends the stream: the alignment of the remaining frames, and the weight of the whole path.
    pub fn finish(self) -> LatticePath {
        let larger =
            |best: usize, (state, &end): (usize, &F)| if end > self.alpha[best] { state } else { best };
        let end = self.alpha.iter().enumerate().fold(0, larger);
        let weight = self.alpha[end].to_f64() + self.offset;
        let per_frame = self.step.alignment().num_states();
        let mut alignment = vec![0; self.pending_frames() * per_frame];
        if weight > f64::NEG_INFINITY {
            self.trace_back(self.pending_frames(), end, &mut alignment);
        }
        LatticePath { alignment, per_frame, weight }
    }

    /// Number of frames that are not final.
    fn pending_frames(&self) -> usize {
        let [arcs_per_frame, counts_per_frame] = self.step.backpointer_counts();
        self.label_counts
            .len()
            .checked_div(counts_per_frame)
            .unwrap_or_else(|| self.best_arcs.len() / arcs_per_frame)
    }

    /// Removes the frames that are final and returns their alignment.
    fn take_final_frames(&mut self) -> Vec<u32> {
        let [arcs_per_frame, counts_per_frame] = self.step.backpointer_counts();
        // The largest α is 0.
        let is_outside_margin = |state: &usize| self.alpha[*state].to_f64() < -self.margin;
        let is_reachable = |state: &usize| self.alpha[*state] > F::NEG_INFINITY;
        let all_states = 0..self.alpha.len();
        // Follows the best paths to all states until they share one state; frames before it are
        // final.
        let mut states: Vec<usize> =
            all_states.clone().filter(|state| is_reachable(state) && !is_outside_margin(state)).collect();
        let pending_frames = self.pending_frames();
        let mut final_frames = pending_frames;
        while states.len() > 1 && final_frames > 0 {
            final_frames -= 1;
            states.iter_mut().for_each(|state| *state = self.previous_state(final_frames, *state, &mut []));
            states.sort_unstable();
            states.dedup();
        }
        let &[common_state] = &states[..] else { return Vec::new() };
        let state_after_final = |end| {
            (final_frames..pending_frames).rev().fold(end, |state, t| self.previous_state(t, state, &mut []))
        };
        let discarded: Vec<usize> = all_states
            .filter(|end| {
                is_reachable(end) && is_outside_margin(end) && state_after_final(*end) != common_state
            })
            .collect();
        discarded.into_iter().for_each(|end| self.alpha[end] = F::NEG_INFINITY);
        // Removes the final frames.
        let mut alignment = vec![0; final_frames * self.step.alignment().num_states()];
        self.trace_back(final_frames, common_state, &mut alignment);
        self.best_arcs.drain(..final_frames * arcs_per_frame);
        self.label_counts.drain(..final_frames * counts_per_frame);
        alignment
    }

    /// Writes the labels of the best path to a state.
    fn trace_back(&self, frames: usize, mut state: usize, alignment: &mut [u32]) {
        let per_frame = self.step.alignment().num_states();
        for (frame, labels) in (0..frames).zip(alignment.chunks_exact_mut(per_frame)).rev() {
            state = self.previous_state(frame, state, labels);
        }
    }

    /// Returns the state before a frame on the best path to `state`.
    ///
    /// Writes the frame's labels, unless `labels` is empty.
    fn previous_state(&self, frame: usize, mut state: usize, labels: &mut [u32]) -> usize {
        let (c, v) = (self.lattice.context().states(), self.lattice.context().vocabulary());
        let [arcs_per_frame, counts_per_frame] = self.step.backpointer_counts();
        let best_arcs = &self.best_arcs[frame * arcs_per_frame..][..arcs_per_frame];
        let label_count = if counts_per_frame > 0 {
            self.label_counts[frame * counts_per_frame + state] as usize
        } else {
            1
        };
        for i in (0..label_count).rev() {
            if let Some(arc) = best_arcs[i * c + state].checked_sub(1) {
                if let Some(label) = labels.get_mut(i) {
                    *label = arc % v as u32 + 1;
                }
                state = arc as usize / v;
            }
        }
        state
    }
}
