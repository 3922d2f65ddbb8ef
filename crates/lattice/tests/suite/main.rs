//! Recognition lattices against golden vectors, lists of all paths, central differences and plain loops.
mod beam;
mod common;
mod enumerated;
mod expectations;
mod golden_lattices;
mod joint;
mod listing;
mod locally_normalized;
mod search;
mod shared_rnn;
mod strings;
mod tiny;
