//! Tiny lattices and all their paths, told without the crate.
use lattice::{AlignmentLattice, Context, FullNGram, NextStateTable, distance::FrameArc};
use proptest::prelude::*;

/// Which automaton, told without the crate: for n-grams the strings themselves, or rows of next states.
#[derive(Debug, Clone)]
pub enum Automaton {
    Strings { vocabulary: usize, order: usize },
    Rows(Vec<Vec<usize>>),
}

impl Automaton {
    pub fn context(&self) -> Box<dyn Context> {
        match self {
            Self::Strings { vocabulary, order } => Box::new(FullNGram::new(*vocabulary, *order).unwrap()),
            Self::Rows(rows) => {
                let table: Vec<i64> = rows.iter().flatten().map(|&to| to as i64).collect();
                Box::new(NextStateTable::new(&table, rows.len(), rows[0].len()).unwrap())
            }
        }
    }

    /// Next states of all states.
    pub fn rows(&self) -> Vec<Vec<usize>> {
        let &Self::Strings { vocabulary, order } = self else {
            let Self::Rows(rows) = self else { unreachable!() };
            return rows.clone();
        };
        let mut strings = vec![Vec::new()];
        let mut longest = strings.clone();
        for _ in 0..order {
            let longer = |string: &Vec<usize>| {
                (1..=vocabulary).map(|y| [&string[..], &[y]].concat()).collect::<Vec<_>>()
            };
            longest = longest.iter().flat_map(longer).collect();
            strings.extend(longest.clone());
        }
        let after = |string: &Vec<usize>, y| {
            let all = [&string[..], &[y]].concat();
            let kept = all[all.len() - order.min(all.len())..].to_vec();
            strings.iter().position(|string| *string == kept).unwrap()
        };
        strings.iter().map(|string| (1..=vocabulary).map(|y| after(string, y)).collect()).collect()
    }
}

#[derive(Debug, Clone)]
pub struct Tiny {
    pub automaton: Automaton,
    /// K; none where a frame has one label or none.
    pub expansions: Option<usize>,
    pub frames: usize,
    pub seed: u64,
    pub blocked: f64,
}

/// Frame, alignment state, context state and label.
pub type Place = (usize, usize, usize, usize);

impl Tiny {
    pub fn alignment(&self) -> AlignmentLattice {
        match self.expansions {
            None => AlignmentLattice::FrameDependent,
            Some(expansions) => AlignmentLattice::frame_label_dependent(expansions).unwrap(),
        }
    }

    /// All paths.
    pub fn paths(&self) -> Vec<Vec<Place>> {
        let rows = self.automaton.rows();
        let mut paths = vec![(Vec::new(), 0)];
        for t in 0..self.frames {
            let mut ended: Vec<(Vec<Place>, usize)> = Vec::new();
            let mut open = paths;
            for a in 0..=self.expansions.unwrap_or(0) {
                let mut onward = Vec::new();
                for (path, p) in open {
                    ended.push(([&path[..], &[(t, a, p, 0)]].concat(), p));
                    for (y, &to) in (1..).zip(&rows[p]) {
                        let longer = ([&path[..], &[(t, a, p, y)]].concat(), to);
                        match self.expansions {
                            None => ended.push(longer),
                            Some(most) if a < most => onward.push(longer),
                            Some(_) => {}
                        }
                    }
                }
                open = onward;
            }
            paths = ended;
        }
        paths.into_iter().map(|(path, _)| path).collect()
    }

    /// A number for each arc, the same whenever it is asked for.
    fn noise(&self, purpose: u64, (t, a, p, y): Place) -> f64 {
        let key = [t, a, p, y]
            .iter()
            .fold(purpose, |key, &x| key.wrapping_mul(1_000_003).wrapping_add(x as u64 + 1));
        oracle::noise::normal(self.seed, key, 1, 1.0)[0]
    }

    pub fn weight(&self, place: Place) -> f64 {
        if self.noise(1, place) < self.blocked { f64::NEG_INFINITY } else { self.noise(2, place) }
    }

    pub fn cost(&self, place: Place) -> f64 {
        self.noise(3, place)
    }
}

pub fn place(t: usize, arc: FrameArc) -> Place {
    (t, arc.alignment, arc.context, arc.label)
}

pub fn tiny() -> impl Strategy<Value = Tiny> {
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
        .prop_map(|(automaton, expansions, frames, seed, blocked)| Tiny {
            automaton,
            expansions,
            frames,
            seed,
            blocked,
        })
}
