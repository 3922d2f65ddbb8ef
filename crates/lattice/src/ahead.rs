//! What is still to come: for each state of a lattice the best way to the end, or the sum over all of them.
//!
//! ```text
//! β(t,a,p) = ⊕ ( b_t[p] ⊗ β(after a blank, p),  ⊕_y l_t[p,y] ⊗ β(after a label, δ(p,y)) )        β(N,0,p) = 1̄
//! ```
//! In f64, without offsets. Whoever stands in a state and knows this needs no dead ends: going on by the arc of largest
//! `weight ⊗ β` finds the best path, by an arc drawn in proportion to it a path from the posterior.
use kernels::{Real, items_mut, par_for};

use crate::{
    Alignment, ArcsMut, Chain, Context, Frames, Merge, RecognitionLattice, Result, Session, Spot, Weights,
    group::Group,
    plan::{Walks, Work},
    session::{Asked, Call, Sum, check_sums},
    step::Step,
};

/// Frames and states of the alignment as one row of places, `t A + a`; arcs lead to later ones.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    pub frames: usize,
    pub alignment: Alignment,
}

impl Places {
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
    pub fn spot(&self, place: usize, context: usize) -> Spot {
        Spot { frame: place / self.per_frame(), alignment: place % self.per_frame(), context }
    }

    fn next(&self, place: usize, next: crate::Next) -> usize {
        let frame = place / self.per_frame();
        match next {
            crate::Next::Frame => (frame + 1) * self.per_frame(),
            crate::Next::State(state) => frame * self.per_frame() + state,
        }
    }
}

/// The lattice of one utterance, to be walked from its start.
pub struct Walk<'a, F> {
    pub context: &'a dyn Context,
    pub places: Places,
    weights: &'a dyn Weights<F>,
    /// The first of the utterance's packed frames.
    first: usize,
    /// β, *(N A + 1) x C*; none where nobody asked.
    ahead: &'a [f64],
}

/// Arcs from one state: the blank, and each label.
#[derive(Default)]
pub struct Row<F> {
    lexical: Vec<F>,
    /// *1 + V*; -inf where there is no arc.
    pub weights: Vec<f64>,
    /// `weight + β` of where it leads.
    pub scores: Vec<f64>,
}

impl<'a, F: Real> Walk<'a, F> {
    pub fn new(call: &'a Call<F>, group: &Group, at: usize, ahead: &'a [f64]) -> Self {
        let places = Places { frames: group.of(at).len(), alignment: call.step.alignment() };
        let (context, first) = (call.step.context(), group.of(at).start);
        Self { context, places, weights: &*call.weights, first, ahead }
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
    pub fn weigh(&self, place: usize, state: usize, row: &mut Row<F>) {
        let v = self.context.vocabulary();
        row.lexical.resize(v, F::ZERO);
        let frame = self.first + self.places.frame(place);
        let blank = self.weights.weigh_state(frame, state, &mut row.lexical);
        row.weights.clear();
        row.weights.push(blank.to_f64());
        match self.places.after_label(place) {
            Some(_) => row.weights.extend(row.lexical.iter().map(|weight| weight.to_f64())),
            None => row.weights.resize(1 + v, f64::NEG_INFINITY),
        }
    }

    /// The same, and what each arc can still come to.
    pub fn look(&self, place: usize, state: usize, row: &mut Row<F>) {
        self.weigh(place, state, row);
        let Row { weights, scores, .. } = row;
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
        self.weights.weigh_chain(self.first, Chain { states: &states, labels: &[label] }, arcs)?;
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

impl<F: Real> Session<F> {
    /// Finds β for each utterance and lets `run(utterance, walk)` use it, the utterances of a group side by side. `room`: bytes that
    /// a run holds for each of its frames, and beside.
    pub(crate) fn walks<T: Send>(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        (merge, room): (Merge, [usize; 2]),
        run: impl Fn(usize, &Walk<F>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let asked = Asked::new(lattice, frames, None, Sum::Denominator)?;
        let row = lattice.alignment().num_states() * lattice.context().states() * size_of::<f64>();
        let walks = Walks { frame: room[0].saturating_add(row), utterance: room[1].saturating_add(row) };
        let (mut call, plan) = self.call(asked, |all_paths| Work::walks(all_paths, walks))?;
        let mut results = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            call.enter(&group)?;
            let ahead = self.ahead(&call, &group, merge);
            let start = call.step.context().start();
            check_sums(&ahead.iter().map(|ahead| ahead[start]).collect::<Vec<_>>(), &group)?;
            let mut found: Vec<Option<Result<T>>> = (0..group.len()).map(|_| None).collect();
            par_for(items_mut(&mut found), |at, found| {
                let walk = Walk::new(&call, &group, at, &ahead[at]);
                *found = Some(run(group.utterances.start + at, &walk));
            });
            for found in found.into_iter().flatten() {
                results.push(found?);
            }
        }
        Ok(results)
    }

    /// β of each utterance of a group, *(N A + 1) x C*.
    fn ahead(&mut self, call: &Call<F>, group: &Group, merge: Merge) -> Vec<Vec<f64>> {
        let (step, alignment) = (&call.step, call.step.alignment());
        let (c, v) = (step.context().states(), step.context().vocabulary());
        let mut lanes: Vec<Lane> = (0..group.len())
            .map(|at| {
                let places = Places { frames: group.of(at).len(), alignment };
                Lane { places, values: vec![0.0; (places.end() + 1) * c], row: vec![0.0; 1 + v] }
            })
            .collect();
        let mut buffers = self.denominator.take_buffers(1);
        for at in (0..group.waves()).rev() {
            let wave = group.wave(at);
            call.weights.weigh(&wave.frames, buffers[0].room(step, wave.frames.len()));
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
        self.denominator.give_buffers(buffers);
        lanes.into_iter().map(|lane| lane.values).collect()
    }
}

/// An utterance on its way back.
struct Lane {
    places: Places,
    values: Vec<f64>,
    row: Vec<f64>,
}

impl Lane {
    fn back<F: Real>(&mut self, step: &Step, merge: Merge, frame: usize, (blank, lexical): (&[F], &[F])) {
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
