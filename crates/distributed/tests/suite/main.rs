//! Tests of the `distributed` crate: collective calls over threads as ranks.
mod agreement;
mod sums;
