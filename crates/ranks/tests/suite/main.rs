//! Sums, heads in parts, and runs, over threads as ranks.
mod differences;
mod parts;
mod runs;
mod sums;
