//! The yardstick: one large product by the library and the threads that the loss uses.
use std::time::Instant;

use kernels::{Accumulate, View, ViewMut, product};
use rayon::prelude::*;

use super::noise::noise;

const ROWS: usize = 2600;
const DEPTH: usize = 512;
const COLUMNS: usize = 8192;
/// Rows of a task, so that up to four threads share the rows and more share the columns.
const TASK: usize = 650;

/// *[2600 x 512] · [512 x 8192]*, the right one stored as a linear layer's weight is.
pub struct Sgemm {
    left: Vec<f32>,
    right: Vec<f32>,
    tiles: Vec<Tile>,
}

/// A task's part of the result.
struct Tile {
    row: usize,
    column: usize,
    columns: usize,
    values: Vec<f32>,
}

impl Sgemm {
    /// Makes the operands.
    pub fn new() -> Self {
        let stripes = rayon::current_num_threads().div_ceil(ROWS / TASK);
        let columns = COLUMNS.div_ceil(stripes);
        let tile = |row: usize, column: usize| {
            let columns = columns.min(COLUMNS - column);
            Tile { row, column, columns, values: vec![0.0; TASK * columns] }
        };
        let tiles = (0..ROWS).step_by(TASK).flat_map(|row| {
            let starts = (0..COLUMNS).step_by(columns);
            starts.map(move |column| (row, column))
        });
        let tiles = tiles.map(|(row, column)| tile(row, column)).collect();
        Self { left: noise(101, ROWS * DEPTH, 1.0), right: noise(102, COLUMNS * DEPTH, 1.0), tiles }
    }

    /// GFLOP/s of one product.
    pub fn rate(&mut self) -> f64 {
        let start = Instant::now();
        let (left, right) = (&self.left, &self.right);
        self.tiles.par_iter_mut().for_each(|tile| {
            let left = View::new(&left[tile.row * DEPTH..], TASK, DEPTH);
            let right = View::new(&right[tile.column * DEPTH..], tile.columns, DEPTH).transposed();
            let out = ViewMut::new(&mut tile.values, TASK, tile.columns);
            product(out, left, right, 1.0, Accumulate::Replace);
        });
        std::hint::black_box(&self.tiles);
        (2 * ROWS * DEPTH * COLUMNS) as f64 / start.elapsed().as_secs_f64() / 1e9
    }
}
