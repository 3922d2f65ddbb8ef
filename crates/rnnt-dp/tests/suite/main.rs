//! The tests of this crate: topologies compared with lists of paths, scaled sums with logarithms.

mod alignments;
mod ctc;
mod lanes;
mod log_domain;
mod paths;
mod semirings;
mod topologies;
mod walk;
