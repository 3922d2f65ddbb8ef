//! All arcs of a small lattice, so that a person or another program can look at it.
use kernels::Real;

use crate::{
    Context, Error, Frames, RecognitionLattice, Result, error::expect_utterance, potentials::Positions,
};

/// A state of a lattice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId {
    /// t
    pub frame: usize,
    /// a
    pub alignment: usize,
    /// p
    pub context: usize,
}

/// An arc of a lattice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ListedArc {
    /// Where it leaves.
    pub from: StateId,
    /// Where it leads.
    pub to: StateId,
    /// 1 to V; 0 is the blank.
    pub label: u32,
    /// Finite.
    pub weight: f64,
}

/// The lattice of one utterance, arc by arc.
#[derive(Clone)]
pub struct ArcList<'a> {
    pub(crate) context: &'a dyn Context,
    pub(crate) places: Positions,
    /// Arcs that can be reached and are not blocked, by the state they leave in the order of (t, a, p), the blank first and then by
    /// label.
    pub arcs: Vec<ListedArc>,
    /// States *(N, 0, p)* that can be reached.
    pub finals: Vec<StateId>,
}

impl<'a, F: Real> RecognitionLattice<'a, F> {
    /// The lattice of one utterance of a batch, if it has no more arcs than `limit`.
    ///
    /// # Errors
    /// [`Error::Arcs`] for a larger one, an utterance that there is not, frames that do not fit the lattice, weights that are NaN
    /// or +inf.
    ///
    /// # Cost
    /// Weights of the arcs of each context state that can be reached, frame by frame; 64 bytes an arc.
    pub fn arc_list(&self, frames: &Frames<F>, utterance: usize, limit: usize) -> Result<ArcList<'a>> {
        self.check_frames(frames)?;
        expect_utterance(utterance, frames.utterances())?;
        let (context, v) = (self.context(), self.context().vocabulary());
        let places = Positions { frames: frames.length(utterance), alignment: self.alignment() };
        let mut weights = self.weight_fn().bind(&mut Vec::new())?;
        weights.set_frames(frames.of(utterance), &vec![utterance as u32; places.frames])?;
        let mut arcs = Vec::new();
        let mut reached = vec![vec![false; context.states()]; places.per_frame() + 1];
        let mut lexical = vec![F::ZERO; v];
        reached[0][context.start()] = true;
        for place in 0..places.end() {
            // Places after this one that its arcs may lead to: the rest of the frame, and the next.
            let states = std::mem::take(&mut reached[0]);
            for state in (0..states.len()).filter(|&state| states[state]) {
                let blank = weights.forward_state(places.frame(place), state, &mut lexical);
                let labels = if places.after_label(place).is_some() { v } else { 0 };
                for (label, weight) in std::iter::once(&blank).chain(&lexical[..labels]).enumerate() {
                    let weight = weight.to_f64();
                    if weight == f64::NEG_INFINITY {
                        continue;
                    }
                    if !weight.is_finite() {
                        return Err(Error::Overflow { utterance, value: weight });
                    }
                    if arcs.len() == limit {
                        return Err(Error::Arcs { limit });
                    }
                    let next = match places.after_label(place) {
                        Some(next) if label > 0 => next,
                        _ => places.after_blank(place),
                    };
                    let to = context.next_state(state, label);
                    reached[next - place][to] = true;
                    let (from, to) = (places.spot(place, state), places.spot(next, to));
                    arcs.push(ListedArc { from, to, label: label as u32, weight });
                }
            }
            reached.rotate_left(1);
            *reached.last_mut().expect("there is one") = vec![false; context.states()];
        }
        let ends = (0..context.states()).filter(|&state| reached[0][state]);
        let finals = ends.map(|state| places.spot(places.end(), state)).collect();
        Ok(ArcList { context, places, arcs, finals })
    }
}

impl ArcList<'_> {
    /// Where paths start.
    pub fn start(&self) -> StateId {
        self.places.spot(0, self.context.start())
    }

    /// The number of a state, `(t A + a) C + p`.
    pub fn number(&self, spot: StateId) -> usize {
        let place = spot.frame * self.places.per_frame() + spot.alignment;
        place * self.context.states() + spot.context
    }

    /// What labels are called: by their numbers, or by the names that are given.
    pub(crate) fn names(&self, names: Option<&[&str]>) -> Result<Vec<String>> {
        let vocabulary = self.context.vocabulary();
        let Some(names) = names else {
            return Ok((1..=vocabulary).map(|label| label.to_string()).collect());
        };
        if names.len() != vocabulary {
            return Err(Error::shape("names", format!("{vocabulary}, one a label"), names.len()));
        }
        Ok(names.iter().map(|name| name.to_string()).collect())
    }
}
