//! Tests of rnnt-dp: losses and paths compared with lists of all paths.

mod alignments;
mod ctc;
mod lanes;
mod log_domain;
mod paths;
mod semirings;
mod topologies;
mod walk;
