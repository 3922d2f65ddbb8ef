//! Recognition lattices against golden vectors, central differences and plain loops.
mod common;
mod joint;
mod locally_normalized;
mod shared_rnn;
