//! Collective calls over threads as ranks.
mod agreement;
mod sums;
