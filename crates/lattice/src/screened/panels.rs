//! Panels of the lattice search with screening: states with the same targets.
//!
//! Screening finds the few arcs that may be the best with quantized estimates, and scores only
//! them. It estimates the arcs of a panel at once: of up to `PANEL_COLUMNS` context states whose
//! label arcs lead to the same target states, which are a run: a range of V successive states, V
//! being the number of labels. The states of a panel are the columns of a matrix product.
use std::ops::Range;

use kernels::{PANEL_COLUMNS, ScratchReq};

/// Smallest number of states of a panel that is not full.
const MIN_PANEL_STATES: usize = 3 * PANEL_COLUMNS / 4;

/// Largest share of states without a panel: 1 / this.
const MIN_STATES_PER_UNPANELED_STATE: usize = 4;

/// Bytes of the lists for each state.
const BYTES_PER_STATE: usize = 128;

/// The states of a context in panels.
pub(super) struct StatePanels {
    /// Runs of target states, in order.
    pub runs: Vec<StateRun>,
    /// States of each panel, in order; a panel that is not full has fewer.
    pub states: Vec<Vec<usize>>,
    /// States without a panel, ordered by run and state.
    pub unpaneled: Vec<usize>,
    /// Column of each state: panel after panel, then states without a panel.
    pub columns: Vec<u32>,
}

/// A run of successive target states, and the states that lead there.
pub(super) struct StateRun {
    /// First target state.
    pub start: usize,
    /// Panels of the source states.
    pub panels: Range<usize>,
    /// Source states without a panel, as indices into [`StatePanels::unpaneled`].
    pub unpaneled: Range<usize>,
}

impl StatePanels {
    /// Creates the panels of a context.
    ///
    /// `starts[s]` is the first target state of state s; its targets are the `vocabulary` states
    /// from there on. None if more than a quarter of the states would have no panel, or if runs
    /// overlap.
    pub(super) fn new(starts: &[u32], vocabulary: usize) -> Option<Self> {
        // Source states, grouped by their run of target states.
        let mut sources: Vec<usize> = (0..starts.len()).collect();
        sources.sort_by_key(|&state| (starts[state], state));
        let (mut runs, mut states, mut unpaneled): (Vec<StateRun>, Vec<_>, Vec<_>) = Default::default();
        for run_sources in sources.chunk_by(|&a, &b| starts[a] == starts[b]) {
            let start = starts[run_sources[0]] as usize;
            if runs.last().is_some_and(|previous| previous.start + vocabulary > start) {
                return None;
            }
            // Full panels, and one more if the remaining states nearly fill it.
            let remainder = run_sources.len() % PANEL_COLUMNS;
            let (remainder_states, paneled) =
                run_sources.split_at(if remainder < MIN_PANEL_STATES { remainder } else { 0 });
            let (first_panel, first_unpaneled) = (states.len(), unpaneled.len());
            unpaneled.extend_from_slice(remainder_states);
            states.extend(paneled.chunks(PANEL_COLUMNS).map(<[usize]>::to_vec));
            runs.push(StateRun {
                start,
                panels: first_panel..states.len(),
                unpaneled: first_unpaneled..unpaneled.len(),
            });
        }
        if MIN_STATES_PER_UNPANELED_STATE * unpaneled.len() > starts.len() {
            return None;
        }
        // The column of each state.
        let mut columns = vec![0; starts.len()];
        for (panel, states) in states.iter().enumerate() {
            (panel * PANEL_COLUMNS..).zip(states).for_each(|(column, &state)| columns[state] = column as u32);
        }
        (states.len() * PANEL_COLUMNS..)
            .zip(&unpaneled)
            .for_each(|(column, &state)| columns[state] = column as u32);
        Some(Self { runs, states, unpaneled, columns })
    }

    /// Memory of the lists for `states` states, including temporary lists.
    pub(super) fn scratch(states: usize) -> ScratchReq {
        ScratchReq::from_bytes(BYTES_PER_STATE).times(states)
    }

    /// Number of columns of all states, including unused columns of panels.
    pub(super) fn column_count(&self) -> usize {
        self.states.len() * PANEL_COLUMNS + self.unpaneled.len()
    }
}
