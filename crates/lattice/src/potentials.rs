//! What is still to come: for each state of a lattice the best way to the end, or the sum over all of them.
//!
//! ```text
//! β(t,a,p) = ⊕ ( b_t[p] ⊗ β(after a blank, p),  ⊕_y l_t[p,y] ⊗ β(after a label, δ(p,y)) )        β(N,0,p) = 1̄
//! ```
//! In f64, without offsets. A walk that follows the arc of largest `weight ⊗ β` finds the best path without dead ends; one that draws
//! arcs in proportion to it samples a path from the posterior.
use kernels::{Real, ScratchReq, items_mut, par_for};

use crate::{
    AlignmentLattice, ArcsMut, BoundWeights, Context, Frames, LabelChain, LatticeSession, RecognitionLattice,
    Result, StateId, Sum,
    execution::{Execution, Request, check_sums},
    group::UtteranceGroup,
    plan::LatticeOperation,
    step::FrameStep,
};

/// How weights of several paths become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// The largest.
    Max,
    /// `log Σ exp`
    Sum,
}

impl Merge {
    /// All in one; nothing weighs -inf, and what is NaN stays so.
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

    pub(crate) fn two(self, a: f64, b: f64) -> f64 {
        let (high, low) = if a > b || a.is_nan() { (a, b) } else { (b, a) };
        match self {
            _ if high.is_nan() => high,
            _ if low == f64::NEG_INFINITY => high,
            Self::Max => high,
            Self::Sum => high + (low - high).exp().ln_1p(),
        }
    }
}

/// A string of labels.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedString {
    /// 1 to V.
    pub labels: Vec<u32>,
    /// The best of its paths, or the sum over them, as was asked for.
    pub weight: f64,
}

/// Frames and states of the alignment as one row of places, `t A + a`; arcs lead to later ones.
#[derive(Debug, Clone, Copy)]
pub struct Positions {
    pub frames: usize,
    pub alignment: AlignmentLattice,
}

impl Positions {
    /// A
    pub fn per_frame(&self) -> usize {
        self.alignment.num_states()
    }

    /// The place of all final states.
    pub fn end(&self) -> usize {
        self.frames * self.per_frame()
    }

    /// The frame that arcs from a place weigh by.
    pub fn frame(&self, place: usize) -> usize {
        place / self.per_frame()
    }

    pub fn after_blank(&self, place: usize) -> usize {
        self.next(place, self.alignment.blank_next(place % self.per_frame()))
    }

    pub fn after_label(&self, place: usize) -> Option<usize> {
        self.alignment.lexical_next(place % self.per_frame()).map(|next| self.next(place, next))
    }

    /// A state of the lattice at a place.
    pub fn spot(&self, place: usize, context: usize) -> StateId {
        StateId { frame: place / self.per_frame(), alignment: place % self.per_frame(), context }
    }

    fn next(&self, place: usize, next: crate::ArcEnd) -> usize {
        let frame = place / self.per_frame();
        match next {
            crate::ArcEnd::Frame => (frame + 1) * self.per_frame(),
            crate::ArcEnd::State(state) => frame * self.per_frame() + state,
        }
    }
}

/// The lattice of one utterance, to be walked from its start.
pub struct PathWalk<'a, F> {
    pub context: &'a dyn Context,
    pub places: Positions,
    weights: &'a dyn BoundWeights<F>,
    /// The first of the utterance's packed frames.
    first: usize,
    /// β, *(N A + 1) x C*; none where nobody asked.
    ahead: &'a [f64],
}

/// Arcs from one state: the blank, and each label.
#[derive(Default)]
pub struct StateArcs<F> {
    lexical: Vec<F>,
    /// *1 + V*; -inf where there is no arc.
    pub weights: Vec<f64>,
    /// `weight + β` of where it leads.
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
    pub fn new(execution: &'a Execution<F>, group: &UtteranceGroup, at: usize, ahead: &'a [f64]) -> Self {
        let places = Positions { frames: group.of(at).len(), alignment: execution.step.alignment() };
        let (context, first) = (execution.step.context(), group.of(at).start);
        Self { context, places, weights: &*execution.weights, first, ahead }
    }

    /// β of all paths.
    pub fn total(&self) -> f64 {
        self.ahead(0)[self.context.start()]
    }

    /// β of the states at a place.
    pub fn ahead(&self, place: usize) -> &'a [f64] {
        let c = self.context.states();
        &self.ahead[place * c..][..c]
    }

    /// Weights of the arcs from a state.
    pub fn weigh(&self, place: usize, state: usize, row: &mut StateArcs<F>) {
        let v = self.context.vocabulary();
        row.lexical.resize(v, F::ZERO);
        let frame = self.first + self.places.frame(place);
        let blank = self.weights.forward_state(frame, state, &mut row.lexical);
        row.weights.clear();
        row.weights.push(blank.to_f64());
        match self.places.after_label(place) {
            Some(_) => row.weights.extend(row.lexical.iter().map(|weight| weight.to_f64())),
            None => row.weights.resize(1 + v, f64::NEG_INFINITY),
        }
    }

    /// The same, and what each arc can still come to.
    pub fn look(&self, place: usize, state: usize, row: &mut StateArcs<F>) {
        self.weigh(place, state, row);
        let StateArcs { weights, scores, .. } = row;
        scores.clear();
        scores.push(weights[0] + self.ahead(self.places.after_blank(place))[state]);
        match self.places.after_label(place) {
            Some(next) => {
                let (next, after) = (self.ahead(next), self.context.after(state));
                scores.extend((1..).zip(&weights[1..]).map(|(label, w)| w + next[after.label(label)]));
            }
            None => scores.resize(weights.len(), f64::NEG_INFINITY),
        }
    }

    /// Weights of one label's arcs from a state, frame by frame.
    pub fn weigh_label(&self, state: usize, label: u32) -> Result<Vec<f64>> {
        let frames = self.places.frames;
        let states = [state, self.context.next_state(state, label as usize)];
        let (mut blank, mut lexical) = (vec![F::ZERO; 2 * frames], vec![F::ZERO; 2 * frames]);
        let arcs = ArcsMut { blank: &mut blank, lexical: &mut lexical };
        self.weights.forward_chain(self.first, LabelChain { states: &states, labels: &[label] }, arcs)?;
        Ok(lexical.iter().step_by(2).map(|weight| weight.to_f64()).collect())
    }

    /// Where an arc leads that there is.
    pub fn follow(&self, place: usize, state: usize, label: usize) -> (usize, usize) {
        match self.places.after_label(place) {
            Some(next) if label > 0 => (next, self.context.next_state(state, label)),
            _ => (self.places.after_blank(place), state),
        }
    }
}

impl<F: Real> LatticeSession<F> {
    /// Computes β of each utterance and calls `run(utterance, walk)`, in parallel for the utterances of a group. `memory`: that of a
    /// run for each frame, and for each utterance.
    pub(crate) fn walks<T: Send>(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        (merge, memory): (Merge, [ScratchReq; 2]),
        run: impl Fn(usize, &PathWalk<F>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let request = Request::new(lattice, frames, None, Sum::Denominator)?;
        let row = ScratchReq::new::<f64>(lattice.alignment().num_states() * lattice.context().states());
        let memory = memory.map(|memory| memory.and(row));
        let (mut execution, plan) =
            self.start(request, |all_paths| LatticeOperation::walks(all_paths, memory))?;
        let mut results = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            execution.set_frames(&group)?;
            let ahead = self.ahead(&execution, &group, merge);
            let start = execution.step.context().start();
            check_sums(&ahead.iter().map(|ahead| ahead[start]).collect::<Vec<_>>(), &group)?;
            let mut found: Vec<Option<Result<T>>> = (0..group.len()).map(|_| None).collect();
            par_for(items_mut(&mut found), |at, found| {
                let walk = PathWalk::new(&execution, &group, at, &ahead[at]);
                *found = Some(run(group.utterances.start + at, &walk));
            });
            for found in found.into_iter().flatten() {
                results.push(found?);
            }
        }
        Ok(results)
    }

    /// β of each utterance of a group, *(N A + 1) x C*.
    fn ahead(&mut self, execution: &Execution<F>, group: &UtteranceGroup, merge: Merge) -> Vec<Vec<f64>> {
        let (step, alignment) = (&execution.step, execution.step.alignment());
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let mut lanes: Vec<Potentials> = (0..group.len())
            .map(|at| {
                let places = Positions { frames: group.of(at).len(), alignment };
                Potentials { places, values: vec![0.0; (places.end() + 1) * c], row: vec![0.0; 1 + v] }
            })
            .collect();
        let mut buffers = self.buffers.denominator.take_buffers(1);
        for at in (0..group.waves()).rev() {
            let wave = group.wave(at);
            execution.weights.forward(&wave.frames, buffers[0].room(step, wave.frames.len()));
            let arcs = buffers[0].arcs(step, wave.frames.len());
            let starts: Vec<usize> =
                wave.counts.iter().scan(0, |all, count| Some(std::mem::replace(all, *all + count))).collect();
            par_for(items_mut(&mut lanes), |lane, to| {
                for t in (0..wave.counts[lane]).rev() {
                    let of = starts[lane] + t;
                    let arcs = (&arcs.blank[of * c..][..c], &arcs.lexical[of * c * v..][..c * v]);
                    to.back(step, merge, at * group.window + t, arcs);
                }
            });
        }
        self.buffers.denominator.give_buffers(buffers);
        lanes.into_iter().map(|lane| lane.values).collect()
    }
}

/// An utterance on its way back.
struct Potentials {
    places: Positions,
    values: Vec<f64>,
    row: Vec<f64>,
}

impl Potentials {
    fn back<F: Real>(
        &mut self,
        step: &FrameStep,
        merge: Merge,
        frame: usize,
        (blank, lexical): (&[F], &[F]),
    ) {
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let per_frame = self.places.per_frame();
        for place in (frame * per_frame..(frame + 1) * per_frame).rev() {
            let (here, behind) = self.values.split_at_mut((place + 1) * c);
            let of = |next: usize| &behind[(next - place - 1) * c..][..c];
            let ends = of(self.places.after_blank(place));
            let labels = self.places.after_label(place).map(of);
            let rows = here[place * c..].iter_mut().zip(blank.iter().zip(lexical.chunks_exact(v)));
            for (state, (to, (blank, lexical))) in rows.enumerate() {
                let row = &mut self.row[..1 + labels.map_or(0, |_| v)];
                row[0] = blank.to_f64() + ends[state];
                if let Some(labels) = labels {
                    let after = step.context().after(state);
                    for (label, (to, w)) in (1..).zip(row[1..].iter_mut().zip(lexical)) {
                        *to = w.to_f64() + labels[after.label(label)];
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
    fn what_is_nan_stays_so_on_either_side() {
        let nan = f64::NAN;
        for merge in [Merge::Max, Merge::Sum] {
            for other in [1.0, f64::NEG_INFINITY, f64::INFINITY, nan] {
                assert!(
                    merge.two(nan, other).is_nan() && merge.two(other, nan).is_nan(),
                    "{merge:?} {other}"
                );
            }
        }
        assert_eq!(Merge::Max.two(1.0, f64::NEG_INFINITY), 1.0);
        assert_eq!(Merge::Sum.two(0.0, 0.0), 2f64.ln());
    }
}
