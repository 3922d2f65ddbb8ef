//! Recognition lattices against golden vectors, lists of all paths, central differences and plain loops.
mod common;
mod enumerated;
mod expectations;
mod golden_lattices;
mod joint;
mod locally_normalized;
mod shared_rnn;
mod tiny;
