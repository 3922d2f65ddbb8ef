//! Contexts of recognition lattices: automata whose states are label histories.
//!
//! They are deterministic. Labels are 1 to V; 0 is no label and keeps the state. Every state has
//! exactly one arc for each label, and all states are final (`δ` below). Arc weights depend on the
//! state: two paths in the same state have the same weights.
mod full_ngram;
mod histories;
mod next_state_table;

pub use full_ngram::FullNGram;
pub use histories::histories;
pub use next_state_table::NextStateTable;
use rnnt_dp::semiring::{Differentiable, Semiring};

use crate::{Error, Result};

/// Largest number of context states.
const MAX_STATES: usize = 1 << 31;

/// A complete deterministic automaton with C states over V labels.
pub trait Context: Send + Sync {
    /// C, the number of states.
    fn states(&self) -> usize;

    /// V, the number of labels.
    fn vocabulary(&self) -> usize;

    /// The start state of paths.
    fn start(&self) -> usize {
        0
    }

    /// Returns `δ(state, label)`; label 0 keeps the state.
    ///
    /// # Panics
    /// If the state or label does not exist.
    fn next_state(&self, state: usize, label: usize) -> usize;

    /// Returns the targets of all labels from a state.
    fn next_states(&self, state: usize) -> NextStates<'_>;
}

/// The targets `δ(p, 1), .., δ(p, V)` of a state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NextStates<'a> {
    /// Successive states, starting with this one.
    ///
    /// Rows of arcs align with rows of states.
    Run(usize),
    /// The same state for all labels.
    Same(usize),
    /// Any states, by label.
    List(&'a [u32]),
}

impl NextStates<'_> {
    /// Returns the target of a label, 1 to V.
    pub fn state(&self, label: usize) -> usize {
        match self {
            Self::Run(first) => first + label - 1,
            Self::Same(state) => *state,
            Self::List(states) => states[label - 1] as usize,
        }
    }
}

/// Returns the states before, between and after labels, *U + 1*.
///
/// # Errors
/// A label above V.
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

/// Computes `out[q] = ⊕ w[p, y]` over all arcs from p with label y to q.
///
/// The order of the sum is p, then y.
///
/// # Shapes
/// `weights` *C x V*, `out` *C*.
///
/// # Panics
/// If lengths do not match.
pub fn forward_reduce<S: Semiring>(context: &dyn Context, weights: &[S::Weight], out: &mut [S::Weight]) {
    let (states, labels) = (context.states(), context.vocabulary());
    assert!(weights.len() == states * labels && out.len() == states, "forward_reduce: {states} x {labels}");
    out.fill(S::ZERO);
    for (state, weights) in weights.chunks_exact(labels).enumerate() {
        let targets = context.next_states(state);
        for (label, &weight) in weights.iter().enumerate() {
            let sum = &mut out[targets.state(label + 1)];
            *sum = S::plus(*sum, weight);
        }
    }
}

/// Gradient of [`forward_reduce`] from cotangents of its results.
///
/// # Shapes
/// `weights`, `gradient` *C x V*, `cotangents` *C*.
///
/// # Panics
/// If lengths do not match.
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
        "forward_reduce_backward: {states} x {labels}"
    );
    // Arcs into each state, in the order of the sum.
    let mut incoming = vec![Vec::new(); states];
    for arc in 0..arcs {
        incoming[context.next_state(arc / labels, arc % labels + 1)].push(arc);
    }
    for (arcs, &cotangent) in incoming.iter().zip(cotangents) {
        let operands: Vec<f64> = arcs.iter().map(|&arc| weights[arc]).collect();
        let mut gradients = vec![0.0; arcs.len()];
        S::sum_backward(&operands, cotangent, &mut gradients);
        arcs.iter().zip(gradients).for_each(|(&arc, g)| gradient[arc] = g);
    }
}

/// Computes `out[p, y] = values[δ(p, y)]`.
///
/// # Shapes
/// `values` *C*, `out` *C x V*.
///
/// # Panics
/// If lengths do not match.
pub fn backward_broadcast<T: Copy>(context: &dyn Context, values: &[T], out: &mut [T]) {
    let (states, labels) = (context.states(), context.vocabulary());
    assert!(
        out.len() == states * labels && values.len() == states,
        "backward_broadcast: {states} x {labels}"
    );
    for (state, out) in out.chunks_exact_mut(labels).enumerate() {
        let targets = context.next_states(state);
        out.iter_mut().enumerate().for_each(|(label, out)| *out = values[targets.state(label + 1)]);
    }
}
