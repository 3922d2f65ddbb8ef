//! Reference for tests: tiny recognition lattices and all their paths.
//!
//! It does not use the recursions of the crate.
use lattice::{AlignmentLattice, Context, FullNGram, NextStateTable, distance::FrameArc};
use proptest::prelude::*;

/// An automaton: the strings of an n-gram, or rows of next states.
#[derive(Debug, Clone)]
pub(crate) enum Automaton {
    Strings { vocabulary: usize, order: usize },
    Rows(Vec<Vec<usize>>),
}

impl Automaton {
    pub(crate) fn context(&self) -> Box<dyn Context> {
        match self {
            Self::Strings { vocabulary, order } => Box::new(FullNGram::new(*vocabulary, *order).unwrap()),
            Self::Rows(rows) => {
                let table: Vec<i64> = rows.iter().flatten().map(|&to| to as i64).collect();
                Box::new(NextStateTable::new(&table, rows.len(), rows[0].len()).unwrap())
            }
        }
    }

    /// Returns the next states of all states.
    pub(crate) fn rows(&self) -> Vec<Vec<usize>> {
        let &Self::Strings { vocabulary, order } = self else {
            let Self::Rows(rows) = self else { unreachable!() };
            return rows.clone();
        };
        let mut strings = vec![Vec::new()];
        let mut longest = strings.clone();
        for _ in 0..order {
            let extended = |string: &Vec<usize>| {
                (1..=vocabulary).map(|y| [&string[..], &[y]].concat()).collect::<Vec<_>>()
            };
            longest = longest.iter().flat_map(extended).collect();
            strings.extend(longest.clone());
        }
        let next_state = |string: &Vec<usize>, y| {
            let extended_string = [&string[..], &[y]].concat();
            let history =
                extended_string[extended_string.len() - order.min(extended_string.len())..].to_vec();
            strings.iter().position(|string| *string == history).unwrap()
        };
        strings.iter().map(|string| (1..=vocabulary).map(|y| next_state(string, y)).collect()).collect()
    }
}

/// A lattice with random weights and costs.
#[derive(Debug, Clone)]
pub(crate) struct TinyLattice {
    pub automaton: Automaton,
    /// K; none if a frame has at most one label.
    pub expansions: Option<usize>,
    pub frames: usize,
    pub seed: u64,
    /// Arcs whose normal random number is smaller are blocked.
    pub blocked_below: f64,
}

/// An arc of a path; label 0 is the blank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PathArc {
    pub frame: usize,
    /// Alignment state.
    pub alignment: usize,
    /// Context state of the source.
    pub context: usize,
    pub label: usize,
}

impl TinyLattice {
    pub(crate) fn alignment(&self) -> AlignmentLattice {
        match self.expansions {
            None => AlignmentLattice::FrameDependent,
            Some(expansions) => AlignmentLattice::frame_label_dependent(expansions).unwrap(),
        }
    }

    /// Returns all paths.
    pub(crate) fn paths(&self) -> Vec<Vec<PathArc>> {
        let rows = self.automaton.rows();
        let mut paths = vec![(Vec::new(), 0)];
        for t in 0..self.frames {
            let mut complete: Vec<(Vec<PathArc>, usize)> = Vec::new();
            let mut unfinished = paths;
            for a in 0..=self.expansions.unwrap_or(0) {
                let mut continued = Vec::new();
                for (path, p) in unfinished {
                    let arc = |label| PathArc { frame: t, alignment: a, context: p, label };
                    complete.push(([&path[..], &[arc(0)]].concat(), p));
                    for (y, &to) in (1..).zip(&rows[p]) {
                        let extended = ([&path[..], &[arc(y)]].concat(), to);
                        match self.expansions {
                            None => complete.push(extended),
                            Some(limit) if a < limit => continued.push(extended),
                            Some(_) => {}
                        }
                    }
                }
                unfinished = continued;
            }
            paths = complete;
        }
        paths.into_iter().map(|(path, _)| path).collect()
    }

    /// Returns a fixed random number for each arc.
    fn noise(&self, purpose: u64, arc: PathArc) -> f64 {
        let PathArc { frame, alignment, context, label } = arc;
        let key = [frame, alignment, context, label]
            .iter()
            .fold(purpose, |key, &x| key.wrapping_mul(1_000_003).wrapping_add(x as u64 + 1));
        oracle::noise::normal(self.seed, key, 1, 1.0)[0]
    }

    /// Returns the weight of an arc; -inf if it is blocked.
    pub(crate) fn weight(&self, arc: PathArc) -> f64 {
        if self.noise(1, arc) < self.blocked_below { f64::NEG_INFINITY } else { self.noise(2, arc) }
    }

    /// Returns the cost of an arc, for expectations.
    pub(crate) fn cost(&self, arc: PathArc) -> f64 {
        self.noise(3, arc)
    }
}

/// Converts an arc of a frame of the crate.
pub(crate) fn path_arc(t: usize, arc: FrameArc) -> PathArc {
    PathArc { frame: t, alignment: arc.alignment, context: arc.context, label: arc.label }
}

/// Any tiny lattice.
pub(crate) fn tiny() -> impl Strategy<Value = TinyLattice> {
    let strings =
        (1usize..4, 0usize..3).prop_map(|(vocabulary, order)| Automaton::Strings { vocabulary, order });
    let rows = (1usize..5, 1usize..4).prop_flat_map(|(states, vocabulary)| {
        prop::collection::vec(prop::collection::vec(0..states, vocabulary), states).prop_map(Automaton::Rows)
    });
    let automata = prop_oneof![strings, rows];
    (
        automata,
        prop::option::of(0usize..3),
        0usize..4,
        any::<u64>(),
        prop_oneof![Just(-9.0), Just(-1.0), Just(0.5)],
    )
        .prop_map(|(automaton, expansions, frames, seed, blocked_below)| TinyLattice {
            automaton,
            expansions,
            frames,
            seed,
            blocked_below,
        })
}
