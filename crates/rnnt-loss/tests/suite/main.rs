//! Tests of the public API of rnnt-loss, one file for each question.

mod alignments;
mod combinations;
mod ctc;
mod dropout;
mod functional;
mod pending;
mod pruned;
mod regularizers;
mod sums;
mod tensors;
mod topologies;
