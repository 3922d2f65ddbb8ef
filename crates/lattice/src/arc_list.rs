//! Lists all arcs of a small recognition lattice, for inspection and export.
//!
//! t: frame; a: alignment state; p: context state; N frames, A alignment states, C context states,
//! V labels. A *position* is the number `t A + a` of a frame and alignment state; arcs lead to
//! later positions.
use kernels::Real;

use crate::{
    Context, Error, Frames, RecognitionLattice, Result,
    error::expect_utterance,
    positions::{Positions, StateId},
};

/// An arc of a lattice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ListedArc {
    /// Source state.
    pub from: StateId,
    /// Target state.
    pub to: StateId,
    /// Label, 1 to V; 0 is the blank.
    pub label: u32,
    /// Weight, finite.
    pub weight: f64,
}

/// The arcs of one utterance's lattice.
#[derive(Clone)]
pub struct ArcList<'a> {
    pub(crate) context: &'a dyn Context,
    pub(crate) positions: Positions,
    /// Arcs that are reachable and not blocked.
    ///
    /// They are ordered by source state (t, a, p), blanks first, then by label.
    pub arcs: Vec<ListedArc>,
    /// Reachable final states *(N, 0, p)*.
    pub finals: Vec<StateId>,
}

impl<'a, F: Real> RecognitionLattice<'a, F> {
    /// Lists the arcs of one utterance of a batch, at most `limit`.
    ///
    /// # Errors
    /// [`Error::Arcs`] for a larger lattice; an utterance that does not exist; frames that do not
    /// fit the lattice; weights that are NaN or +inf.
    ///
    /// # Cost
    /// Weights of the arcs of each reachable context state, frame by frame; 64 bytes per arc.
    pub fn arc_list(&self, frames: &Frames<F>, utterance: usize, limit: usize) -> Result<ArcList<'a>> {
        self.check_frames(frames)?;
        expect_utterance(utterance, frames.utterances())?;
        let (context, vocabulary) = (self.context(), self.context().vocabulary());
        let positions = Positions { frames: frames.length(utterance), alignment: self.alignment() };
        let mut weights = self.weight_fn().bind(&mut Vec::new())?;
        weights.set_frames(frames.utterance(utterance), &vec![utterance as u32; positions.frames])?;
        let mut arcs = Vec::new();
        let mut reachable = vec![vec![false; context.states()]; positions.per_frame() + 1];
        let mut label_weights = vec![F::ZERO; vocabulary];
        reachable[0][context.start()] = true;
        for position in 0..positions.end() {
            // Entry i of `reachable` has the reachable states of position + i: the rest of the
            // frame, and the start of the next one.
            let states = std::mem::take(&mut reachable[0]);
            for state in (0..states.len()).filter(|&state| states[state]) {
                let blank = weights.forward_state(positions.frame(position), state, &mut label_weights);
                let num_labels = if positions.after_label(position).is_some() { vocabulary } else { 0 };
                for (label, weight) in std::iter::once(&blank).chain(&label_weights[..num_labels]).enumerate()
                {
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
                    let next = match positions.after_label(position) {
                        Some(next) if label > 0 => next,
                        _ => positions.after_blank(position),
                    };
                    let next_state = context.next_state(state, label);
                    reachable[next - position][next_state] = true;
                    let from = positions.state_id(position, state);
                    let to = positions.state_id(next, next_state);
                    arcs.push(ListedArc { from, to, label: label as u32, weight });
                }
            }
            reachable.rotate_left(1);
            *reachable.last_mut().expect("the list is not empty") = vec![false; context.states()];
        }
        let final_states = (0..context.states()).filter(|&state| reachable[0][state]);
        let finals = final_states.map(|state| positions.state_id(positions.end(), state)).collect();
        Ok(ArcList { context, positions, arcs, finals })
    }
}

impl ArcList<'_> {
    /// The start state.
    pub fn start(&self) -> StateId {
        self.positions.state_id(0, self.context.start())
    }

    /// Returns the number of a state, `(t A + a) C + p`.
    pub(crate) fn state_number(&self, state: StateId) -> usize {
        let position = state.frame * self.positions.per_frame() + state.alignment;
        position * self.context.states() + state.context
    }

    /// Returns the label names: the given ones, or numbers.
    pub(crate) fn names(&self, names: Option<&[&str]>) -> Result<Vec<String>> {
        let vocabulary = self.context.vocabulary();
        let Some(names) = names else {
            return Ok((1..=vocabulary).map(|label| label.to_string()).collect());
        };
        if names.len() != vocabulary {
            return Err(Error::shape("names", format!("{vocabulary} names, one per label"), names.len()));
        }
        Ok(names.iter().map(|name| name.to_string()).collect())
    }
}
