//! Distances in every semiring: against lists of all paths and against the golden vectors of another system.

mod enumerated;
mod golden;
