//! Tests of collective calls, over threads as ranks.
mod agreement;
mod sums;
