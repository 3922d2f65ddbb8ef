//! The tests of training as a user sees it: recipes, checkpoints, runs, and what a model learns.

mod checkpoints;
mod learning;
mod own_parts;
mod recipes;
mod runs;
mod toy;
