//! Recognition lattices against golden vectors, central differences, plain loops and lists of all paths.
mod beam;
mod common;
mod joint;
mod locally_normalized;
mod search;
mod shared_rnn;
mod strings;
mod tiny;
