//! The states of a context by where their arcs lead: those that lead to the same run of states, 32 at a time.
use std::ops::Range;

use kernels::PANEL;

/// States of a panel that are worth one.
const ENOUGH: usize = 3 * PANEL / 4;

/// What best arcs are looked for among without most weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Screens {
    /// Utterances at once.
    pub utterances: usize,
    /// Panels of up to 32 states that lead to the same ones.
    pub panels: usize,
    /// States in none.
    pub rest: usize,
}

/// The states of a context as panels.
pub struct Panels {
    /// Runs of states that arcs lead to, rising.
    pub runs: Vec<Run>,
    /// The states of each panel, rising; fewer in one that is not full.
    pub states: Vec<Vec<usize>>,
    /// States in no panel, by the runs they lead to and rising.
    pub rest: Vec<usize>,
    /// Where each state is, column after column and panel after panel, and then those in none.
    pub places: Vec<u32>,
}

/// A run and the states that lead there.
pub struct Run {
    /// Its first state.
    pub start: usize,
    /// Panels.
    pub panels: Range<usize>,
    /// States in none, by their places in the list of all such states.
    pub rest: Range<usize>,
}

impl Panels {
    /// Panels of a context by where the run of `vocabulary` states behind each of its states begins; none if few states would be
    /// in one, or if runs overlap.
    pub fn new(starts: &[u32], vocabulary: usize) -> Option<Self> {
        let mut order: Vec<usize> = (0..starts.len()).collect();
        order.sort_by_key(|&state| (starts[state], state));
        let (mut runs, mut states, mut rest): (Vec<Run>, Vec<_>, Vec<_>) = Default::default();
        for run in order.chunk_by(|&a, &b| starts[a] == starts[b]) {
            let start = starts[run[0]] as usize;
            if runs.last().is_some_and(|before| before.start + vocabulary > start) {
                return None;
            }
            let over = run.len() % PANEL;
            let (few, many) = run.split_at(if over < ENOUGH { over } else { 0 });
            let first = (states.len(), rest.len());
            rest.extend_from_slice(few);
            states.extend(many.chunks(PANEL).map(<[usize]>::to_vec));
            runs.push(Run { start, panels: first.0..states.len(), rest: first.1..rest.len() });
        }
        if 4 * rest.len() > starts.len() {
            return None;
        }
        let mut places = vec![0; starts.len()];
        for (panel, states) in states.iter().enumerate() {
            (panel * PANEL..).zip(states).for_each(|(place, &state)| places[state] = place as u32);
        }
        (states.len() * PANEL..).zip(&rest).for_each(|(place, &state)| places[state] = place as u32);
        Some(Self { runs, states, rest, places })
    }

    /// Bytes of the lists of so many states, and of what they are made from.
    pub fn bytes(states: usize) -> usize {
        states.saturating_mul(128)
    }

    /// What a search through them for so many utterances takes memory for.
    pub fn load(&self, utterances: usize) -> Screens {
        Screens { utterances, panels: self.states.len(), rest: self.rest.len() }
    }

    /// Places of all states, those of panels that are not full included.
    pub fn count(&self) -> usize {
        self.states.len() * PANEL + self.rest.len()
    }
}
