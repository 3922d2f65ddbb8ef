//! The states of a context in panels: up to 32 states whose arcs lead to the same run of states.
use std::ops::Range;

use kernels::{PANEL_COLUMNS, ScratchReq};

/// States from which on a panel that is not full pays off.
const MIN_PANEL_STATES: usize = 3 * PANEL_COLUMNS / 4;

/// The states of a context in panels.
pub struct StatePanels {
    /// Runs of states that arcs lead to, rising.
    pub runs: Vec<StateRun>,
    /// The states of each panel, rising; fewer in one that is not full.
    pub states: Vec<Vec<usize>>,
    /// States in no panel, by the runs they lead to and rising.
    pub rest: Vec<usize>,
    /// The column of each state: those of panels, panel after panel, and then those of states in none.
    pub places: Vec<u32>,
}

/// A run of successive states, and the states that lead there.
pub struct StateRun {
    /// Its first state.
    pub start: usize,
    /// Panels.
    pub panels: Range<usize>,
    /// States in no panel, as indices into [`StatePanels::rest`].
    pub rest: Range<usize>,
}

impl StatePanels {
    /// Panels of a context from the first state of the run of `vocabulary` states that each state leads to; none if few states would
    /// be in panels, or if runs overlap.
    pub fn new(starts: &[u32], vocabulary: usize) -> Option<Self> {
        let mut order: Vec<usize> = (0..starts.len()).collect();
        order.sort_by_key(|&state| (starts[state], state));
        let (mut runs, mut states, mut rest): (Vec<StateRun>, Vec<_>, Vec<_>) = Default::default();
        for run in order.chunk_by(|&a, &b| starts[a] == starts[b]) {
            let start = starts[run[0]] as usize;
            if runs.last().is_some_and(|before| before.start + vocabulary > start) {
                return None;
            }
            let over = run.len() % PANEL_COLUMNS;
            let (few, many) = run.split_at(if over < MIN_PANEL_STATES { over } else { 0 });
            let first = (states.len(), rest.len());
            rest.extend_from_slice(few);
            states.extend(many.chunks(PANEL_COLUMNS).map(<[usize]>::to_vec));
            runs.push(StateRun { start, panels: first.0..states.len(), rest: first.1..rest.len() });
        }
        if 4 * rest.len() > starts.len() {
            return None;
        }
        let mut places = vec![0; starts.len()];
        for (panel, states) in states.iter().enumerate() {
            (panel * PANEL_COLUMNS..).zip(states).for_each(|(place, &state)| places[state] = place as u32);
        }
        (states.len() * PANEL_COLUMNS..).zip(&rest).for_each(|(place, &state)| places[state] = place as u32);
        Some(Self { runs, states, rest, places })
    }

    /// Memory of the lists of `states` states, and of those that they are made from.
    pub fn scratch(states: usize) -> ScratchReq {
        ScratchReq::from_bytes(128).times(states)
    }

    /// Columns of all states, those of panels that are not full included.
    pub fn count(&self) -> usize {
        self.states.len() * PANEL_COLUMNS + self.rest.len()
    }
}
