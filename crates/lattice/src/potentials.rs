//! Potentials: for each lattice state the best path to the end, or the sum over all paths.
//!
//! ```text
//! β(N,0,p) = 1̄
//! β(t,a,p) = ⊕ ( b_t[p] ⊗ β(after a blank, p),  ⊕_y l_t[p,y] ⊗ β(after a label, δ(p,y)) )
//! ```
//! (t,a,p): frame, alignment state, context state; N frames; b, l: weights of blank and label arcs;
//! ⊗ adds weights; ⊕ is `Merge`. All values are f64, without offsets. Following the arc of largest
//! `weight ⊗ β` gives the best path without dead ends. Sampling arcs in proportion to it gives a
//! path from the posterior.
use kernels::{Real, ScratchReq, items_mut, par_for};

use crate::{
    AlignmentLattice, ArcsMut, BoundWeights, Context, Frames, LabelChain, LatticeSession, PathSum,
    RecognitionLattice, Result, StateId,
    execution::{Execution, Request, check_sums},
    plan::LatticeOperation,
    step::FrameStep,
    utterance_group::UtteranceGroup,
};

/// How the weights of several paths are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// The largest weight.
    Max,
    /// `log Σ exp`
    Sum,
}

impl Merge {
    /// Combines all values; -inf for none. NaN propagates.
    pub(crate) fn all(self, values: &mut [f64]) -> f64 {
        let larger = |top: f64, &x: &f64| if x > top || x.is_nan() { x } else { top };
        let top = values.iter().fold(f64::NEG_INFINITY, larger);
        if self == Self::Max || !top.is_finite() {
            return top;
        }
        values.iter_mut().for_each(|x| *x -= top);
        kernels::exp(values);
        top + values.iter().sum::<f64>().ln()
    }

    /// Combines two values.
    pub(crate) fn pair(self, a: f64, b: f64) -> f64 {
        let (high, low) = if a > b || a.is_nan() { (a, b) } else { (b, a) };
        match self {
            _ if high.is_nan() => high,
            _ if low == f64::NEG_INFINITY => high,
            Self::Max => high,
            Self::Sum => high + (low - high).exp().ln_1p(),
        }
    }
}

/// A label string with its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedString {
    /// Labels, 1 to V.
    pub labels: Vec<u32>,
    /// Weight of the best path, or of the sum over all paths.
    pub weight: f64,
}

/// The sequence of frames and alignment states, at positions `t A + a`; arcs lead to later ones.
#[derive(Debug, Clone, Copy)]
pub struct Positions {
    pub frames: usize,
    pub alignment: AlignmentLattice,
}

impl Positions {
    /// A, the number of positions of a frame.
    pub fn per_frame(&self) -> usize {
        self.alignment.num_states()
    }

    /// The position of all final states.
    pub fn end(&self) -> usize {
        self.frames * self.per_frame()
    }

    /// The frame of the arcs from a position.
    pub fn frame(&self, position: usize) -> usize {
        position / self.per_frame()
    }

    pub fn after_blank(&self, position: usize) -> usize {
        self.next(position, self.alignment.blank_next(position % self.per_frame()))
    }

    pub fn after_label(&self, position: usize) -> Option<usize> {
        self.alignment.lexical_next(position % self.per_frame()).map(|next| self.next(position, next))
    }

    /// The lattice state of a position and context state.
    pub fn state_id(&self, position: usize, context: usize) -> StateId {
        StateId { frame: position / self.per_frame(), alignment: position % self.per_frame(), context }
    }

    fn next(&self, position: usize, next: crate::ArcEnd) -> usize {
        let frame = position / self.per_frame();
        match next {
            crate::ArcEnd::Frame => (frame + 1) * self.per_frame(),
            crate::ArcEnd::State(state) => frame * self.per_frame() + state,
        }
    }
}

/// The lattice of one utterance, for walks from its start.
pub struct PathWalk<'a, F> {
    pub context: &'a dyn Context,
    pub positions: Positions,
    weights: &'a dyn BoundWeights<F>,
    /// First packed frame of the utterance.
    first: usize,
    /// β, *(N A + 1) x C*.
    potentials: &'a [f64],
}

/// Arcs from one state: the blank, and each label.
#[derive(Default)]
pub struct StateArcs<F> {
    lexical: Vec<F>,
    /// *1 + V*; -inf without an arc.
    pub weights: Vec<f64>,
    /// `weight + β` of the target.
    pub scores: Vec<f64>,
}

impl<F: Real> StateArcs<F> {
    /// Memory of the arcs from one state.
    pub fn scratch(context: &dyn Context) -> ScratchReq {
        let arc = ScratchReq::new::<F>(1).and(ScratchReq::new::<f64>(2));
        arc.times(1 + context.vocabulary())
    }
}

impl<'a, F: Real> PathWalk<'a, F> {
    pub fn new(
        execution: &'a Execution<F>,
        group: &UtteranceGroup,
        at: usize,
        potentials: &'a [f64],
    ) -> Self {
        let positions =
            Positions { frames: group.frame_range(at).len(), alignment: execution.step.alignment() };
        let (context, first) = (execution.step.context(), group.frame_range(at).start);
        Self { context, positions, weights: &*execution.weights, first, potentials }
    }

    /// β of the start: the sum over all paths, or the best one.
    pub fn total(&self) -> f64 {
        self.potentials(0)[self.context.start()]
    }

    /// β of the states at a position.
    pub fn potentials(&self, position: usize) -> &'a [f64] {
        let c = self.context.states();
        &self.potentials[position * c..][..c]
    }

    /// Computes the weights of the arcs from a state.
    pub fn arc_weights(&self, position: usize, state: usize, row: &mut StateArcs<F>) {
        let v = self.context.vocabulary();
        row.lexical.resize(v, F::ZERO);
        let frame = self.first + self.positions.frame(position);
        let blank = self.weights.forward_state(frame, state, &mut row.lexical);
        row.weights.clear();
        row.weights.push(blank.to_f64());
        match self.positions.after_label(position) {
            Some(_) => row.weights.extend(row.lexical.iter().map(|weight| weight.to_f64())),
            None => row.weights.resize(1 + v, f64::NEG_INFINITY),
        }
    }

    /// Computes [`arc_weights`](Self::arc_weights), and scores that include β of the targets.
    pub fn arc_scores(&self, position: usize, state: usize, row: &mut StateArcs<F>) {
        self.arc_weights(position, state, row);
        let StateArcs { weights, scores, .. } = row;
        scores.clear();
        scores.push(weights[0] + self.potentials(self.positions.after_blank(position))[state]);
        match self.positions.after_label(position) {
            Some(next) => {
                let (next, targets) = (self.potentials(next), self.context.next_states(state));
                scores.extend((1..).zip(&weights[1..]).map(|(label, w)| w + next[targets.state(label)]));
            }
            None => scores.resize(weights.len(), f64::NEG_INFINITY),
        }
    }

    /// Computes the weights of a label from a state, per frame.
    pub fn label_weights(&self, state: usize, label: u32) -> Result<Vec<f64>> {
        let frames = self.positions.frames;
        let states = [state, self.context.next_state(state, label as usize)];
        let (mut blank, mut lexical) = (vec![F::ZERO; 2 * frames], vec![F::ZERO; 2 * frames]);
        let arcs = ArcsMut { blank: &mut blank, lexical: &mut lexical };
        self.weights.forward_chain(self.first, LabelChain { states: &states, labels: &[label] }, arcs)?;
        Ok(lexical.iter().step_by(2).map(|weight| weight.to_f64()).collect())
    }

    /// Returns position and context state after an arc, which must exist.
    pub fn next_position(&self, position: usize, state: usize, label: usize) -> (usize, usize) {
        match self.positions.after_label(position) {
            Some(next) if label > 0 => (next, self.context.next_state(state, label)),
            _ => (self.positions.after_blank(position), state),
        }
    }
}

impl<F: Real> LatticeSession<F> {
    /// Computes β of each utterance and calls `run(utterance, walk)` in parallel.
    ///
    /// `memory` is the memory of `run` per frame and per utterance.
    pub(crate) fn walks<T: Send>(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        (merge, memory): (Merge, [ScratchReq; 2]),
        run: impl Fn(usize, &PathWalk<F>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let request = Request::new(lattice, frames, None, PathSum::Denominator)?;
        let row = ScratchReq::new::<f64>(lattice.alignment().num_states() * lattice.context().states());
        let memory = memory.map(|memory| memory.and(row));
        let (mut execution, plan) =
            self.start(request, |all_paths| LatticeOperation::walks(all_paths, memory))?;
        let mut results = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            execution.set_frames(&group)?;
            let potentials = self.potentials(&execution, &group, merge);
            let start = execution.step.context().start();
            check_sums(&potentials.iter().map(|values| values[start]).collect::<Vec<_>>(), &group)?;
            let mut outcomes: Vec<Option<Result<T>>> = (0..group.len()).map(|_| None).collect();
            par_for(items_mut(&mut outcomes), |at, outcome| {
                let walk = PathWalk::new(&execution, &group, at, &potentials[at]);
                *outcome = Some(run(group.utterances.start + at, &walk));
            });
            for outcome in outcomes.into_iter().flatten() {
                results.push(outcome?);
            }
        }
        Ok(results)
    }

    /// Computes β of each utterance of a group, *(N A + 1) x C*.
    fn potentials(
        &mut self,
        execution: &Execution<F>,
        group: &UtteranceGroup,
        merge: Merge,
    ) -> Vec<Vec<f64>> {
        let (step, alignment) = (&execution.step, execution.step.alignment());
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let mut utterances: Vec<Potentials> = (0..group.len())
            .map(|at| {
                let positions = Positions { frames: group.frame_range(at).len(), alignment };
                Potentials { positions, values: vec![0.0; (positions.end() + 1) * c], row: vec![0.0; 1 + v] }
            })
            .collect();
        let mut buffers = self.buffers.denominator.take_buffers(1);
        for at in (0..group.waves()).rev() {
            let wave = group.wave(at);
            execution.weights.forward(&wave.frames, buffers[0].arcs_mut(step, wave.frames.len()));
            let arcs = buffers[0].arcs(step, wave.frames.len());
            let starts: Vec<usize> =
                wave.counts.iter().scan(0, |all, count| Some(std::mem::replace(all, *all + count))).collect();
            par_for(items_mut(&mut utterances), |at_group, potentials| {
                for t in (0..wave.counts[at_group]).rev() {
                    let row = starts[at_group] + t;
                    let arcs = (&arcs.blank[row * c..][..c], &arcs.lexical[row * c * v..][..c * v]);
                    potentials.backward(step, merge, at * group.window + t, arcs);
                }
            });
        }
        self.buffers.denominator.return_buffers(buffers);
        utterances.into_iter().map(|potentials| potentials.values).collect()
    }
}

/// The potentials of an utterance, computed from the last frame back.
struct Potentials {
    positions: Positions,
    values: Vec<f64>,
    row: Vec<f64>,
}

impl Potentials {
    fn backward<F: Real>(
        &mut self,
        step: &FrameStep,
        merge: Merge,
        frame: usize,
        (blank, lexical): (&[F], &[F]),
    ) {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let per_frame = self.positions.per_frame();
        for position in (frame * per_frame..(frame + 1) * per_frame).rev() {
            let (current, later) = self.values.split_at_mut((position + 1) * c);
            let potentials = |next: usize| &later[(next - position - 1) * c..][..c];
            let ends = potentials(self.positions.after_blank(position));
            let labels = self.positions.after_label(position).map(potentials);
            let rows = current[position * c..].iter_mut().zip(blank.iter().zip(lexical.chunks_exact(v)));
            for (state, (to, (blank, lexical))) in rows.enumerate() {
                let row = &mut self.row[..1 + labels.map_or(0, |_| v)];
                row[0] = blank.to_f64() + ends[state];
                if let Some(labels) = labels {
                    let targets = step.context().next_states(state);
                    for (label, (to, w)) in (1..).zip(row[1..].iter_mut().zip(lexical)) {
                        *to = w.to_f64() + labels[targets.state(label)];
                    }
                }
                *to = merge.all(row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_propagates_from_either_side() {
        let nan = f64::NAN;
        for merge in [Merge::Max, Merge::Sum] {
            for other in [1.0, f64::NEG_INFINITY, f64::INFINITY, nan] {
                assert!(
                    merge.pair(nan, other).is_nan() && merge.pair(other, nan).is_nan(),
                    "{merge:?} {other}"
                );
            }
        }
        assert_eq!(Merge::Max.pair(1.0, f64::NEG_INFINITY), 1.0);
        assert_eq!(Merge::Sum.pair(0.0, 0.0), 2f64.ln());
    }
}
