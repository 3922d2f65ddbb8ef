//! Sums, and runs, over threads as ranks.
mod runs;
mod sums;
