//! Recognition lattices against golden vectors, lists of all paths, central differences and plain loops.
mod beam;
mod candle;
mod common;
mod enumerated;
mod expectations;
mod golden_lattices;
mod histories;
mod joint;
mod listed;
mod listing;
mod locally_normalized;
mod search;
mod sessions;
mod shared_rnn;
mod streams;
mod strings;
mod tiny;
