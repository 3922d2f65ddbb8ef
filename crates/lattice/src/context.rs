//! Contexts: deterministic automata over labels, of which the state of a path remembers one.
//!
//! Labels are 1 to V; 0 is no label and keeps the state. Every state has exactly one arc for each label, and all are final
//! (`δ` below). A context says which arc weights a lattice has: two paths in the same state see the same weights.
mod full_ngram;
mod histories;
mod next_state_table;

pub use full_ngram::FullNGram;
pub use histories::histories;
pub use next_state_table::NextStateTable;
use rnnt_dp::semiring::{Differentiable, Semiring};

use crate::{Error, Result};

/// A complete deterministic automaton with C states over V labels.
pub trait Context: Send + Sync {
    /// C
    fn states(&self) -> usize;

    /// V
    fn vocabulary(&self) -> usize;

    /// Where paths begin.
    fn start(&self) -> usize {
        0
    }

    /// `δ(state, label)`; a label of 0 keeps the state.
    ///
    /// # Panics
    /// If there is no such state or label.
    fn next_state(&self, state: usize, label: usize) -> usize;

    /// The states after all labels of a state.
    fn after(&self, state: usize) -> NextStates<'_>;
}

/// `δ(p, 1), .., δ(p, V)`
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NextStates<'a> {
    /// One state after the other from this one on, so that rows of arcs meet rows of states.
    Run(usize),
    /// One state after all labels.
    Same(usize),
    /// Any states.
    List(&'a [u32]),
}

impl NextStates<'_> {
    /// The state after a label, 1 to V.
    pub fn label(&self, label: usize) -> usize {
        match self {
            Self::Run(first) => first + label - 1,
            Self::Same(state) => *state,
            Self::List(states) => states[label - 1] as usize,
        }
    }
}

/// The states before, between and behind labels, *U + 1*.
///
/// # Errors
/// A label beyond V.
pub fn walk_states(context: &dyn Context, labels: &[u32]) -> Result<Vec<usize>> {
    let mut states = vec![context.start()];
    for (position, &label) in labels.iter().enumerate() {
        if label as usize > context.vocabulary() {
            let vocabulary = context.vocabulary();
            return Err(Error::Label { utterance: 0, position, vocabulary, found: label.into() });
        }
        states.push(context.next_state(states[position], label as usize));
    }
    Ok(states)
}

/// `out[q] = ⊕ w[p, y]` over all arcs from p with label y that lead to q, in the order of p and then y.
///
/// # Shapes
/// `weights` *C x V*, `out` *C*.
///
/// # Panics
/// If the lengths do not fit.
pub fn forward_reduce<S: Semiring>(context: &dyn Context, weights: &[S::Weight], out: &mut [S::Weight]) {
    let (states, labels) = (context.states(), context.vocabulary());
    assert!(weights.len() == states * labels && out.len() == states, "forward_reduce: {states} x {labels}");
    out.fill(S::ZERO);
    for (state, weights) in weights.chunks_exact(labels).enumerate() {
        let after = context.after(state);
        for (label, &weight) in weights.iter().enumerate() {
            let to = &mut out[after.label(label + 1)];
            *to = S::plus(*to, weight);
        }
    }
}

/// Gradient of [`forward_reduce`] from cotangents of its results.
///
/// # Shapes
/// `weights`, `gradient` *C x V*, `cotangents` *C*.
///
/// # Panics
/// If the lengths do not fit.
pub fn forward_reduce_backward<S: Differentiable>(
    context: &dyn Context,
    weights: &[f64],
    cotangents: &[f64],
    gradient: &mut [f64],
) {
    let (states, labels) = (context.states(), context.vocabulary());
    let arcs = states * labels;
    assert!(
        weights.len() == arcs && gradient.len() == arcs && cotangents.len() == states,
        "{states} x {labels}"
    );
    let mut into = vec![Vec::new(); states];
    for arc in 0..arcs {
        into[context.next_state(arc / labels, arc % labels + 1)].push(arc);
    }
    for (arcs, &g) in into.iter().zip(cotangents) {
        let operands: Vec<f64> = arcs.iter().map(|&arc| weights[arc]).collect();
        let mut pulled = vec![0.0; arcs.len()];
        S::sum_backward(&operands, g, &mut pulled);
        arcs.iter().zip(pulled).for_each(|(&arc, pulled)| gradient[arc] = pulled);
    }
}

/// `out[p, y] = values[δ(p, y)]`
///
/// # Shapes
/// `values` *C*, `out` *C x V*.
///
/// # Panics
/// If the lengths do not fit.
pub fn backward_broadcast<T: Copy>(context: &dyn Context, values: &[T], out: &mut [T]) {
    let (states, labels) = (context.states(), context.vocabulary());
    assert!(
        out.len() == states * labels && values.len() == states,
        "backward_broadcast: {states} x {labels}"
    );
    for (state, out) in out.chunks_exact_mut(labels).enumerate() {
        let after = context.after(state);
        out.iter_mut().enumerate().for_each(|(label, out)| *out = values[after.label(label + 1)]);
    }
}
