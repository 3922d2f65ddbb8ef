//! Contexts (automata of label histories) given as tables of next states.
use super::{Context, MAX_STATES, NextStates};
use crate::{Error, Result, error::expect_len};

/// A context from a table, `δ(p, y) = table[p, y - 1]`, start 0.
///
/// It may be a pruned n-gram, a trie or a grammar.
///
/// ```
/// use lattice::{Context, NextStateTable};
/// let parity = NextStateTable::new(&[1, 0], 2, 1)?; // number of labels, odd or even
/// assert_eq!(parity.next_state(parity.start(), 1), 1);
/// # Ok::<(), lattice::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextStateTable {
    /// Next states, *C x V*.
    table: Vec<u32>,
    vocabulary: usize,
    /// Whether the targets of each state are successive states.
    has_runs: bool,
}

impl NextStateTable {
    /// Creates a context from a table *C x V*, row by row.
    ///
    /// # Errors
    /// A table without states or labels, of another length, or with an entry that is not a state.
    pub fn new(table: &[i64], states: usize, vocabulary: usize) -> Result<Self> {
        if states > MAX_STATES {
            return Err(Error::States { argument: "table", limit: MAX_STATES, found: states.to_string() });
        }
        if states == 0 || vocabulary == 0 {
            return Err(Error::shape(
                "table",
                "at least 1 state and 1 label",
                format!("{states} x {vocabulary}"),
            ));
        }
        expect_len("table", states.saturating_mul(vocabulary), table.len())?;
        if let Some(index) = table.iter().position(|&to| to < 0 || to >= states as i64) {
            let (state, label) = (index / vocabulary, index % vocabulary + 1);
            return Err(Error::Table { state, label, states, found: table[index] });
        }
        let table: Vec<u32> = table.iter().map(|&to| to as u32).collect();
        let has_runs =
            table.chunks_exact(vocabulary).all(|row| row.windows(2).all(|pair| pair[1] == pair[0] + 1));
        Ok(Self { table, vocabulary, has_runs })
    }
}

impl Context for NextStateTable {
    fn states(&self) -> usize {
        self.table.len() / self.vocabulary
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn next_state(&self, state: usize, label: usize) -> usize {
        assert!(
            state < self.states() && label <= self.vocabulary,
            "state {state} or label {label} does not exist"
        );
        if label == 0 { state } else { self.table[state * self.vocabulary + label - 1] as usize }
    }

    fn next_states(&self, state: usize) -> NextStates<'_> {
        let row = &self.table[state * self.vocabulary..][..self.vocabulary];
        if self.has_runs { NextStates::Run(row[0] as usize) } else { NextStates::List(row) }
    }
}
