//! The arc walk: shortest distances and single paths over graphs, in any semiring.
//!
//! ```text
//! α(start) = 1      α(n) = ⊕_{arcs m -> n} α(m) ⊗ w(m -> n)
//! β(end) = 1        β(m) = ⊕_{arcs m -> n} w(m -> n) ⊗ β(n)
//! ```
//!
//! m, n: states of the graph; w: weight of an arc; ⊕, ⊗: sum and product of the semiring. (Mohri
//! 2002; in the log semiring the recursions of Graves 2012.) [`Lattice`] is the graph of a
//! transducer, full or banded, in any topology; CTC has a separate graph. Log-sums, best and
//! sampled paths, CTC and banded lattices use this module; tests compare the scaled recursions of
//! full lattices with it.
//!
//! ```
//! use rnnt_dp::{Lattices, Topology, semiring::Count, walk::{self, Lattice}};
//! let lattices = Lattices::new(vec![4], vec![2])?; // T = 4, U = 2
//! for (topology, count) in [(Topology::rnnt(), 10), (Topology::modified(), 6)] {
//!     let lattice = Lattice::new(&lattices, &topology, &[-1.0; 24], 0)?;
//!     let mut paths = vec![0; 12];
//!     walk::backward::<Count, _>(&lattice, |_| 1, &mut paths);
//!     assert_eq!(paths[0], count);
//! }
//! # Ok::<(), rnnt_dp::Error>(())
//! ```
mod lattice;

pub use lattice::Lattice;

use crate::semiring::{Log, Semiring, Tropical};

/// An arc from one state to a later state or the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transition {
    /// Source state.
    pub source: usize,
    /// Target state, a later one; none for the end of the path.
    pub target: Option<usize>,
    /// Index of the arc in the topology, or its CTC column.
    pub arc: usize,
    /// Its log-probability.
    pub log_prob: f64,
}

/// A graph whose arcs lead from lower to higher states.
pub trait Graph {
    /// Number of states.
    fn states(&self) -> usize;

    /// Start state of paths, if there is one.
    fn start(&self) -> Option<usize>;

    /// Iterates over all arcs, ordered by source state.
    fn arcs(&self) -> impl DoubleEndedIterator<Item = Transition>;

    /// Iterates over the arcs from a state, in the same order.
    fn arcs_from(&self, state: usize) -> impl Iterator<Item = Transition>;
}

/// Writes `α` of each state; returns the sum over all paths.
///
/// # Panics
/// If `alpha` does not have one element for each state.
///
/// # Cost
/// Two semiring operations per arc.
pub fn forward<S: Semiring, G: Graph>(
    graph: &G,
    weight: impl Fn(&Transition) -> S::Weight,
    alpha: &mut [S::Weight],
) -> S::Weight {
    forward_visit::<S, G>(graph, weight, alpha, |_, _| ())
}

/// Runs [`forward`] and calls `visit(arc, α of its source)` for each arc.
///
/// `α` of the source is final by then.
///
/// # Panics
/// As [`forward`].
pub(crate) fn forward_visit<S: Semiring, G: Graph>(
    graph: &G,
    weight: impl Fn(&Transition) -> S::Weight,
    alpha: &mut [S::Weight],
    mut visit: impl FnMut(&Transition, S::Weight),
) -> S::Weight {
    assert_eq!(alpha.len(), graph.states(), "alpha: expected one element for each state");
    let mut total = S::ZERO;
    alpha.fill(S::ZERO);
    if let Some(start) = graph.start() {
        alpha[start] = S::ONE;
    }
    for arc in graph.arcs() {
        let source_alpha = alpha[arc.source];
        visit(&arc, source_alpha);
        let target_sum = arc.target.map_or(&mut total, |to| &mut alpha[to]);
        *target_sum = S::plus(*target_sum, S::times(source_alpha, weight(&arc)));
    }
    total
}

/// Writes `β` of each state; the value of the start is the sum over all paths.
///
/// # Panics
/// As [`forward`].
pub fn backward<S: Semiring, G: Graph>(
    graph: &G,
    weight: impl Fn(&Transition) -> S::Weight,
    beta: &mut [S::Weight],
) {
    assert_eq!(beta.len(), graph.states(), "beta: expected one element for each state");
    beta.fill(S::ZERO);
    for arc in graph.arcs().rev() {
        let product = S::times(weight(&arc), beta_after::<S>(&arc, beta));
        beta[arc.source] = S::plus(beta[arc.source], product);
    }
}

/// Returns `β` of the target of an arc; the semiring's one at the end.
#[inline]
pub(crate) fn beta_after<S: Semiring>(arc: &Transition, beta: &[S::Weight]) -> S::Weight {
    arc.target.map_or(S::ONE, |to| beta[to])
}

/// Traces a path from the start to the end.
///
/// At each state `choose(state, arcs from it)` returns the index of the next arc, or none if there
/// is no path. Returns the arcs.
///
/// # Cost
/// The arcs from the states of the path.
pub(crate) fn trace_path(
    graph: &impl Graph,
    mut choose: impl FnMut(usize, &[Transition]) -> Option<usize>,
) -> Option<Vec<Transition>> {
    let (mut path, mut arcs) = (Vec::new(), Vec::new());
    let mut next_state = Some(graph.start()?);
    while let Some(state) = next_state {
        arcs.clear();
        arcs.extend(graph.arcs_from(state));
        let arc = arcs[choose(state, &arcs)?];
        path.push(arc);
        next_state = arc.target;
    }
    Some(path)
}

/// Returns the best path, from `beta` in the [`Tropical`] semiring; none if there is no path.
///
/// Of equally good arcs the first is taken.
pub fn best_path(graph: &impl Graph, beta: &[f64]) -> Option<Vec<Transition>> {
    let has_path = |state: usize| beta[state] > f64::NEG_INFINITY;
    let is_best =
        |state: usize, arc: &Transition| arc.log_prob + beta_after::<Tropical>(arc, beta) == beta[state];
    trace_path(graph, |state, arcs| {
        has_path(state).then(|| arcs.iter().position(|arc| is_best(state, arc))).flatten()
    })
}

/// Samples a path from the posterior, from `beta` in the [`Log`] semiring.
///
/// `sample_index(weights)` samples the index of an arc with probability proportional to its weight.
/// None if there is no path.
pub fn sample_path(
    graph: &impl Graph,
    beta: &[f64],
    mut sample_index: impl FnMut(&[f64]) -> usize,
) -> Option<Vec<Transition>> {
    let mut weights = Vec::new();
    trace_path(graph, |state, arcs| {
        let weight = |arc: &Transition| (arc.log_prob + beta_after::<Log>(arc, beta) - beta[state]).exp();
        weights.clear();
        weights.extend(arcs.iter().map(weight));
        (beta[state] > f64::NEG_INFINITY).then(|| sample_index(&weights))
    })
}
