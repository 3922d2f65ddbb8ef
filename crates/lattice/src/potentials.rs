//! Potentials of lattice states: best path, or sum over paths, to the end.
//!
//! The n-best searches and the sampler walk from the start state and choose arcs by these
//! potentials.
//!
//! ```text
//! β(N,0,p) = 1̄
//! β(t,a,p) = ⊕ ( b_t[p] ⊗ β(after a blank, p),  ⊕_y l_t[p,y] ⊗ β(after a label, δ(p,y)) )
//! ```
//! (t,a,p): frame, alignment state, context state; N frames; b, l: weights of blank and label arcs;
//! ⊗ adds weights; ⊕ is `Merge`. All values are f64, so that no maxima need to be
//! subtracted from frame to frame. Following the arc of largest
//! `weight ⊗ β` gives the best path without dead ends. Sampling arcs in proportion to it gives a
//! path from the posterior.
use kernels::{Real, ScratchReq, items_mut, par_for};

use crate::{
    Arcs, ArcsMut, BoundWeights, Context, Frames, LabelChain, LatticeSession, PathSum, RecognitionLattice,
    Result,
    execution::{BoundCall, CallInputs, check_sums},
    plan::{LatticeOperation, WalkMemory},
    positions::Positions,
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
        let larger_or_nan = |max: f64, &x: &f64| if x > max || x.is_nan() { x } else { max };
        let max = values.iter().fold(f64::NEG_INFINITY, larger_or_nan);
        if self == Self::Max || !max.is_finite() {
            return max;
        }
        values.iter_mut().for_each(|x| *x -= max);
        kernels::exp(values);
        max + values.iter().sum::<f64>().ln()
    }

    /// Combines two values.
    pub(crate) fn pair(self, a: f64, b: f64) -> f64 {
        let (larger, smaller) = if a > b || a.is_nan() { (a, b) } else { (b, a) };
        match self {
            _ if larger.is_nan() => larger,
            _ if smaller == f64::NEG_INFINITY => larger,
            Self::Max => larger,
            Self::Sum => larger + (smaller - larger).exp().ln_1p(),
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

/// The lattice of one utterance, for walks from its start.
pub(crate) struct PathWalk<'a, F> {
    pub context: &'a dyn Context,
    pub positions: Positions,
    weights: &'a dyn BoundWeights<F>,
    /// First packed frame of the utterance.
    first_frame: usize,
    /// β, *(N A + 1) x C*.
    potentials: &'a [f64],
}

/// Arcs from one state: the blank, and each label.
#[derive(Default)]
pub(crate) struct StateArcs<F> {
    /// Weights of the labels as the weight function computes them, *V*.
    label_weights: Vec<F>,
    /// Weights of blank and labels, *1 + V*; -inf without an arc.
    pub weights: Vec<f64>,
    /// `weight + β` of the target.
    pub scores: Vec<f64>,
}

impl<F: Real> StateArcs<F> {
    /// Memory of the arcs from one state.
    pub(crate) fn scratch(context: &dyn Context) -> ScratchReq {
        let arc = ScratchReq::new::<F>(1).and(ScratchReq::new::<f64>(2));
        arc.times(1 + context.vocabulary())
    }
}

impl<'a, F: Real> PathWalk<'a, F> {
    pub(crate) fn new(
        call: &'a BoundCall<F>,
        group: &UtteranceGroup,
        index: usize,
        potentials: &'a [f64],
    ) -> Self {
        let positions =
            Positions { frames: group.frame_range(index).len(), alignment: call.step.alignment() };
        let (context, first_frame) = (call.step.context(), group.frame_range(index).start);
        Self { context, positions, weights: &*call.weights, first_frame, potentials }
    }

    /// β of the start: the sum over all paths, or the best one.
    pub(crate) fn total(&self) -> f64 {
        self.potentials(0)[self.context.start()]
    }

    /// β of the states at a position.
    pub(crate) fn potentials(&self, position: usize) -> &'a [f64] {
        let c = self.context.states();
        &self.potentials[position * c..][..c]
    }

    /// Computes the weights of the arcs from a state.
    pub(crate) fn arc_weights(&self, position: usize, state: usize, arcs: &mut StateArcs<F>) {
        let v = self.context.vocabulary();
        arcs.label_weights.resize(v, F::ZERO);
        let frame = self.first_frame + self.positions.frame(position);
        let blank = self.weights.forward_state(frame, state, &mut arcs.label_weights);
        arcs.weights.clear();
        arcs.weights.push(blank.to_f64());
        match self.positions.after_label(position) {
            Some(_) => arcs.weights.extend(arcs.label_weights.iter().map(|weight| weight.to_f64())),
            None => arcs.weights.resize(1 + v, f64::NEG_INFINITY),
        }
    }

    /// Computes [`arc_weights`](Self::arc_weights), and scores that include β of the targets.
    pub(crate) fn arc_scores(&self, position: usize, state: usize, arcs: &mut StateArcs<F>) {
        self.arc_weights(position, state, arcs);
        let StateArcs { weights, scores, .. } = arcs;
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
    pub(crate) fn label_weights(&self, state: usize, label: u32) -> Result<Vec<f64>> {
        let frames = self.positions.frames;
        let states = [state, self.context.next_state(state, label as usize)];
        // A chain of one label has two states, so two blanks and two label weights in each frame.
        // The first label weight is that of the label.
        let chain_len = states.len() * frames;
        let (mut blank, mut label_weights) = (vec![F::ZERO; chain_len], vec![F::ZERO; chain_len]);
        let arcs = ArcsMut { blank: &mut blank, labels: &mut label_weights };
        self.weights.forward_chain(
            self.first_frame,
            LabelChain { states: &states, labels: &[label] },
            arcs,
        )?;
        Ok(label_weights.iter().step_by(states.len()).map(|weight| weight.to_f64()).collect())
    }

    /// Returns position and context state after an arc, which must exist.
    pub(crate) fn next_position(&self, position: usize, state: usize, label: usize) -> (usize, usize) {
        match self.positions.after_label(position) {
            Some(next) if label > 0 => (next, self.context.next_state(state, label)),
            _ => (self.positions.after_blank(position), state),
        }
    }
}

impl<F: Real> LatticeSession<F> {
    /// Computes β of each utterance and calls `run(utterance, walk)` in parallel.
    ///
    /// `memory` is the memory of `run`.
    pub(crate) fn walks<T: Send>(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        merge: Merge,
        memory: WalkMemory,
        run: impl Fn(usize, &PathWalk<F>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let inputs = CallInputs::new(lattice, frames, None, PathSum::Denominator)?;
        // β of the positions of one frame. An utterance has one position more, that after its last
        // frame.
        let frame_potentials =
            ScratchReq::new::<f64>(lattice.alignment().num_states() * lattice.context().states());
        let memory = WalkMemory {
            per_frame: memory.per_frame.and(frame_potentials),
            per_utterance: memory.per_utterance.and(frame_potentials),
        };
        let (mut call, plan) =
            self.start_call(inputs, |all_paths| LatticeOperation::walks(all_paths, memory))?;
        let mut results = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            call.set_frames(&group)?;
            let potentials = self.potentials(&call, &group, merge);
            let start = call.step.context().start();
            check_sums(&potentials.iter().map(|values| values[start]).collect::<Vec<_>>(), &group)?;
            let mut outcomes: Vec<Option<Result<T>>> = (0..group.len()).map(|_| None).collect();
            par_for(items_mut(&mut outcomes), |index, outcome| {
                let walk = PathWalk::new(&call, &group, index, &potentials[index]);
                *outcome = Some(run(group.utterances.start + index, &walk));
            });
            for outcome in outcomes.into_iter().flatten() {
                results.push(outcome?);
            }
        }
        Ok(results)
    }

    /// Computes β of each utterance of a group, *(N A + 1) x C*.
    fn potentials(&mut self, call: &BoundCall<F>, group: &UtteranceGroup, merge: Merge) -> Vec<Vec<f64>> {
        let (step, alignment) = (&call.step, call.step.alignment());
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let mut utterances: Vec<Potentials> = (0..group.len())
            .map(|index| {
                let positions = Positions { frames: group.frame_range(index).len(), alignment };
                Potentials {
                    positions,
                    values: vec![0.0; (positions.end() + 1) * c],
                    terms: vec![0.0; 1 + v],
                }
            })
            .collect();
        // Arc weights are computed for a wave, a range of frames of each utterance, at a time; the
        // last wave comes first.
        let mut buffers = self.buffers.denominator.take_buffers(1);
        for wave_index in (0..group.waves()).rev() {
            let wave = group.wave(wave_index);
            call.weights.forward(&wave.frames, buffers[0].arcs_mut(step, wave.frames.len()));
            let arcs = buffers[0].arcs(step, wave.frames.len());
            // Row of the wave with the first frame of each utterance.
            let first_rows: Vec<usize> =
                wave.counts.iter().scan(0, |row, count| Some(std::mem::replace(row, *row + count))).collect();
            par_for(items_mut(&mut utterances), |index, potentials| {
                for t in (0..wave.counts[index]).rev() {
                    let wave_row = first_rows[index] + t;
                    let arcs = Arcs {
                        blank: &arcs.blank[wave_row * c..][..c],
                        labels: &arcs.labels[wave_row * c * v..][..c * v],
                    };
                    potentials.backward(step, merge, wave_index * group.frames_per_wave + t, arcs);
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
    /// *(N A + 1) x C*
    values: Vec<f64>,
    /// Buffer for the terms of one state, *1 + V*.
    terms: Vec<f64>,
}

impl Potentials {
    /// Computes β of a frame from β of the next frame.
    fn backward<F: Real>(
        &mut self,
        step: &FrameStep,
        merge: Merge,
        frame: usize,
        Arcs { blank, labels: label_weights }: Arcs<F>,
    ) {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let per_frame = self.positions.per_frame();
        for position in (frame * per_frame..(frame + 1) * per_frame).rev() {
            let (earlier, later) = self.values.split_at_mut((position + 1) * c);
            let potentials = |next: usize| &later[(next - position - 1) * c..][..c];
            let blank_targets = potentials(self.positions.after_blank(position));
            let label_targets = self.positions.after_label(position).map(potentials);
            let rows =
                earlier[position * c..].iter_mut().zip(blank.iter().zip(label_weights.chunks_exact(v)));
            for (state, (beta, (blank, label_weights))) in rows.enumerate() {
                let terms = &mut self.terms[..1 + label_targets.map_or(0, |_| v)];
                terms[0] = blank.to_f64() + blank_targets[state];
                if let Some(label_targets) = label_targets {
                    let targets = step.context().next_states(state);
                    for (label, (term, w)) in (1..).zip(terms[1..].iter_mut().zip(label_weights)) {
                        *term = w.to_f64() + label_targets[targets.state(label)];
                    }
                }
                *beta = merge.all(terms);
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
