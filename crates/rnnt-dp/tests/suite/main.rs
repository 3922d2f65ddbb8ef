//! The tests of this crate: every topology against lists of paths, and the scaled recursions against logarithms.

mod alignments;
mod ctc;
mod lanes;
mod log_domain;
mod paths;
mod semirings;
mod topologies;
mod walk;
