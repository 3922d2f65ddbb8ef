//! The tests of training as a user sees it: recipes, checkpoints, runs, and what a model learns.

mod checkpoints;
mod learning;
mod recipes;
mod runs;
mod toy;
