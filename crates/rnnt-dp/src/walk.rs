//! The arc walk: shortest distances over any graph of arcs, in any semiring, and single paths through it.
//!
//! ```text
//! α(start) = 1      α(n) = ⊕_{arcs m -> n} α(m) ⊗ w(m -> n)
//! β(end) = 1        β(m) = ⊕_{arcs m -> n} w(m -> n) ⊗ β(n)
//! ```
//!
//! (Mohri 2002; in the log semiring the recursions of Graves 2012.) [`Lattice`] is the graph of a transducer, full or banded,
//! whatever its topology; CTC has one of its own. Log-sums, best and sampled paths, CTC and bands of retained sites are uses of
//! this file; the scaled recursions of whole lattices are checked against it.
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

/// An arc from one state to another, or to the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transition {
    /// The state that it leaves.
    pub from: usize,
    /// The state that it leads to, a later one; none for the end of the path.
    pub to: Option<usize>,
    /// What it is called: which of the topology's arcs, or which column of CTC.
    pub arc: usize,
    /// Its log-probability.
    pub log_prob: f64,
}

/// States in an order that all arcs follow.
pub trait Graph {
    /// How many states there are: 0 ..
    fn states(&self) -> usize;

    /// Where paths begin, if they do.
    fn start(&self) -> Option<usize>;

    /// All arcs, ordered by the states that they leave.
    fn arcs(&self) -> impl DoubleEndedIterator<Item = Transition>;

    /// The arcs that leave a state, in the same order.
    fn leaving(&self, state: usize) -> impl Iterator<Item = Transition>;
}

/// Writes `α` of each state; returns the sum over all paths.
///
/// # Panics
/// If there is not one place for each state.
///
/// # Cost
/// Two operations an arc.
pub fn forward<S: Semiring, G: Graph>(
    graph: &G,
    weigh: impl Fn(&Transition) -> S::Weight,
    alpha: &mut [S::Weight],
) -> S::Weight {
    forward_each::<S, G>(graph, weigh, alpha, |_, _| ())
}

/// The same, and calls `visit(arc, α of the state that it leaves)` for each arc on the way, when that `α` is final.
///
/// # Panics
/// As [`forward`].
pub fn forward_each<S: Semiring, G: Graph>(
    graph: &G,
    weigh: impl Fn(&Transition) -> S::Weight,
    alpha: &mut [S::Weight],
    mut visit: impl FnMut(&Transition, S::Weight),
) -> S::Weight {
    assert_eq!(alpha.len(), graph.states(), "alpha: expected a place for each state");
    let mut total = S::ZERO;
    alpha.fill(S::ZERO);
    if let Some(start) = graph.start() {
        alpha[start] = S::ONE;
    }
    for arc in graph.arcs() {
        let before = alpha[arc.from];
        visit(&arc, before);
        let sum = arc.to.map_or(&mut total, |to| &mut alpha[to]);
        *sum = S::plus(*sum, S::times(before, weigh(&arc)));
    }
    total
}

/// Writes `β` of each state; that of the start is the sum over all paths.
///
/// # Panics
/// As [`forward`].
pub fn backward<S: Semiring, G: Graph>(
    graph: &G,
    weigh: impl Fn(&Transition) -> S::Weight,
    beta: &mut [S::Weight],
) {
    assert_eq!(beta.len(), graph.states(), "beta: expected a place for each state");
    beta.fill(S::ZERO);
    for arc in graph.arcs().rev() {
        let onward = S::times(weigh(&arc), after::<S>(&arc, beta));
        beta[arc.from] = S::plus(beta[arc.from], onward);
    }
}

/// `β` where an arc leads.
#[inline]
pub fn after<S: Semiring>(arc: &Transition, beta: &[S::Weight]) -> S::Weight {
    arc.to.map_or(S::ONE, |to| beta[to])
}

/// Goes from the start to the end: at each state `choose(state, arcs that leave it)` says by which of them, or that there is no
/// way. Returns the arcs.
///
/// # Cost
/// That of the arcs that leave the states on the way.
pub fn follow(
    graph: &impl Graph,
    mut choose: impl FnMut(usize, &[Transition]) -> Option<usize>,
) -> Option<Vec<Transition>> {
    let (mut path, mut leaving) = (Vec::new(), Vec::new());
    let mut next = Some(graph.start()?);
    while let Some(state) = next {
        leaving.clear();
        leaving.extend(graph.leaving(state));
        let arc = leaving[choose(state, &leaving)?];
        path.push(arc);
        next = arc.to;
    }
    Some(path)
}

/// The path of which the largest scores `beta` of [`Tropical`] tell; of equally good arcs the first. None where
/// there is no path.
pub fn best(graph: &impl Graph, beta: &[f64]) -> Option<Vec<Transition>> {
    let reached = |state: usize| beta[state] > f64::NEG_INFINITY;
    let is_best = |state: usize, arc: &Transition| arc.log_prob + after::<Tropical>(arc, beta) == beta[state];
    follow(graph, |state, leaving| {
        reached(state).then(|| leaving.iter().position(|arc| is_best(state, arc))).flatten()
    })
}

/// A path from the posterior, of which the log-sums `beta` of [`Log`] tell: `pick(weights)` draws the index of an arc
/// with a probability proportional to its weight. None where there is no path.
pub fn sample(
    graph: &impl Graph,
    beta: &[f64],
    mut pick: impl FnMut(&[f64]) -> usize,
) -> Option<Vec<Transition>> {
    let mut weights = Vec::new();
    follow(graph, |state, leaving| {
        let weight = |arc: &Transition| (arc.log_prob + after::<Log>(arc, beta) - beta[state]).exp();
        weights.clear();
        weights.extend(leaving.iter().map(weight));
        (beta[state] > f64::NEG_INFINITY).then(|| pick(&weights))
    })
}
