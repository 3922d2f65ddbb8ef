//! Matrix products over many rows, cut into tasks by shape.
//!
//! ```text
//! y = x Wᵀ + b     dx = dy W      blocks of rows, each with all of W
//! dW = dyᵀ x                      tiles of dW, each with a strip of dy and of x
//! ```
//! The cut depends on the shapes alone, so that the bits are the same for every number of threads.
use kernels::{Accumulate, Real, View, ViewMut, add, product};
use rayon::prelude::*;

/// Tasks that a product is cut into where it has the rows: two for each of 64 threads.
const TASKS: usize = 128;
/// Fewest and most rows of a task: below, packing the other factor would cost more than the product.
const ROWS: (usize, usize) = (32, 256);
/// Rows and columns of a tile of a weight's gradient.
const TILE: usize = 128;

/// Rows of one task of a product over `rows` rows.
pub(crate) fn rows_each(rows: usize) -> usize {
    (rows / TASKS).clamp(ROWS.0, ROWS.1)
}

/// `y = x Wᵀ + b`: x *rows x D*, W *O x D*, b *O*, y *rows x O*.
pub(crate) fn affine<F: Real>(y: &mut [F], x: &[F], weight: &[F], bias: &[F]) {
    let outputs = bias.len();
    let inputs = weight.len() / outputs;
    let each = rows_each(y.len() / outputs);
    let weight = View::new(weight, outputs, inputs).transposed();
    y.par_chunks_mut(each * outputs).zip(x.par_chunks(each * inputs)).for_each(|(y, x)| {
        let rows = y.len() / outputs;
        y.chunks_exact_mut(outputs).for_each(|row| row.copy_from_slice(bias));
        product(ViewMut::new(y, rows, outputs), View::new(x, rows, inputs), weight, F::ONE, Accumulate::Add);
    });
}

/// `dx = dy W`: dy *rows x O*, W *O x D*, dx *rows x D*.
pub(crate) fn affine_input<F: Real>(dx: &mut [F], dy: &[F], weight: &[F], inputs: usize) {
    let outputs = weight.len() / inputs;
    let each = rows_each(dx.len() / inputs);
    let weight = View::new(weight, outputs, inputs);
    dx.par_chunks_mut(each * inputs).zip(dy.par_chunks(each * outputs)).for_each(|(dx, dy)| {
        let rows = dx.len() / inputs;
        let dy = View::new(dy, rows, outputs);
        product(ViewMut::new(dx, rows, inputs), dy, weight, F::ONE, Accumulate::Replace);
    });
}

/// `dW = dyᵀ x`: dy *rows x O*, x *rows x D*, dW *O x D*.
pub(crate) fn affine_weight<F: Real>(dw: &mut [F], dy: &[F], x: &[F], inputs: usize) {
    let outputs = dw.len() / inputs;
    let rows = x.len() / inputs;
    if rows == 0 {
        return dw.fill(F::ZERO);
    }
    dw.par_chunks_mut(TILE * inputs).enumerate().for_each(|(block, dw)| {
        let height = dw.len() / inputs;
        let dy = View::with_stride(&dy[block * TILE..], rows, height, outputs).transposed();
        let tile = |from: usize| {
            let width = TILE.min(inputs - from);
            let x = View::with_stride(&x[from..], rows, width, inputs);
            let mut tile = vec![F::ZERO; height * width];
            product(ViewMut::new(&mut tile, height, width), dy, x, F::ONE, Accumulate::Replace);
            tile
        };
        let starts: Vec<usize> = (0..inputs).step_by(TILE).collect();
        let tiles: Vec<Vec<F>> = starts.par_iter().map(|&from| tile(from)).collect();
        for (from, tile) in starts.into_iter().zip(tiles) {
            let width = tile.len() / height;
            for (row, tile) in dw.chunks_exact_mut(inputs).zip(tile.chunks_exact(width)) {
                row[from..from + width].copy_from_slice(tile);
            }
        }
    });
}

/// `db = Σ dy` over the rows.
pub(crate) fn affine_bias<F: Real>(db: &mut [F], dy: &[F]) {
    let outputs = db.len();
    db.par_chunks_mut(TILE).enumerate().for_each(|(block, db)| {
        db.fill(F::ZERO);
        dy.chunks_exact(outputs).for_each(|row| add(db, &row[block * TILE..][..db.len()]));
    });
}

/// The transpose of a *rows x columns* matrix.
pub(crate) fn transposed<F: Real>(matrix: &[F], columns: usize) -> Vec<F> {
    /// Rows that are read side by side, so that each write fills a cache line.
    const LINE: usize = 16;
    let rows = matrix.len() / columns;
    let mut out = vec![F::ZERO; matrix.len()];
    out.par_chunks_mut((rows * TILE).max(1)).enumerate().for_each(|(block, out)| {
        for from in (0..rows).step_by(LINE) {
            let to = (from + LINE).min(rows);
            for (k, line) in out.chunks_exact_mut(rows).enumerate() {
                let column = block * TILE + k;
                (from..to).for_each(|row| line[row] = matrix[row * columns + column]);
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_have_two_tasks_for_each_of_64_threads() {
        // A batch of 32 utterances of 150 frames, state width 512.
        let (rows, hidden) = (32 * 150usize, 512usize);
        assert!(rows.div_ceil(rows_each(rows)) >= 2 * 64);
        let tiles = |inputs: usize| (4 * hidden).div_ceil(TILE) * inputs.div_ceil(TILE);
        assert!(tiles(hidden) + tiles(hidden) >= 2 * 64);
        // What is small stays whole, and what is long is cut finely enough for its packed factors to stay near.
        assert_eq!((rows_each(10), rows_each(1_000_000)), (ROWS.0, ROWS.1));
    }

    #[test]
    fn the_tiles_of_a_gradient_make_the_whole() {
        let number = |i: usize, k: usize| (((i * 31 + k) % 17) as f64 - 8.0) / 4.0;
        for (rows, outputs, inputs) in [(0, 3, 2), (1, 1, 1), (7, 130, 129), (40, 128, 300)] {
            let dy: Vec<f64> = (0..rows * outputs).map(|i| number(i, 1)).collect();
            let x: Vec<f64> = (0..rows * inputs).map(|i| number(i, 5)).collect();
            let mut dw = vec![1.0; outputs * inputs];
            affine_weight(&mut dw, &dy, &x, inputs);
            for o in 0..outputs {
                for d in 0..inputs {
                    let sum: f64 = (0..rows).map(|r| dy[r * outputs + o] * x[r * inputs + d]).sum();
                    assert!((dw[o * inputs + d] - sum).abs() < 1e-12, "{rows} {outputs} {inputs}");
                }
            }
        }
    }

    #[test]
    fn transposing_exchanges_rows_and_columns() {
        let matrix: Vec<f64> = (0..3 * 200).map(|i| i as f64).collect();
        let turned = transposed(&matrix, 200);
        for i in 0..3 {
            for k in 0..200 {
                assert_eq!(turned[k * 3 + i], matrix[i * 200 + k]);
            }
        }
    }
}
