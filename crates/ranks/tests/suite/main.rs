//! Sums and runs over threads as ranks.
mod differences;
mod runs;
mod sums;
