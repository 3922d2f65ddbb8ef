//! The affine layer over rows, forward and backward.
//!
//! ```text
//! forward                     y = x W + b
//! backward, given dL/dy:      dx = dy Wᵀ      dW = xᵀ dy      db = Σ dy
//! ```
use std::ops::Range;

use crate::{
    Accumulate, BufferPool, COLUMNS, PackedLeft, PackedRight, Real, Tiling, View, ViewMut, acquire, add,
    par_for, parts, parts_mut, product, product_of_parts, product_packed, tiles_mut,
};

/// Rows of `x` up to which tasks read the weight where it is.
const FEW: usize = 128;
/// Rows of such a task, where a weight has as many elements as [`FAR`]: it is worth several threads, though each packs it for itself.
const HALF: usize = FEW / 2;
/// Elements of a weight from which on few rows are more than one task.
const FAR: usize = 1 << 17;
/// Elements of a weight that the caches of all cores hold: up to there tasks are rows alone, and read all of it.
const NEAR: usize = 1 << 20;
/// Most rows of such a task.
const ROWS: usize = 56;
/// What they are a multiple of, where there are as many: the rows of a micro-kernel.
const UNIT: usize = 14;
/// Fewest rows of a task: fewer would read the weight too often.
const LEAST: usize = 8;
/// Rows of a task of a larger weight, which is some columns too, the most that leave enough tasks: what a task reads again and
/// again stays in a second-level cache.
const BLOCKS: [usize; 5] = [112, 56, 28, 14, 8];
/// Most columns of such a task.
const MOST: usize = 256;
/// AffineTasks that are aimed for, two for each of 64 threads.
const TASKS: usize = 128;
/// Rows of the weight's gradient a task, each of which reads all rows of `x` and `dy`.
const PARAMETERS: usize = 28;
/// Elements of the bias's gradient a task.
const BIAS: usize = 256;

/// A layer with its parameters, borrowed: a weight *D x O*, which may be the transpose of what is kept, and a bias *O*.
///
/// Work is cut by shape alone, and every sum has one order: results do not depend on the number of threads. Above 128 rows a
/// call packs the weight once, for all tasks, into [`PackedRight::bytes_for`] bytes; a weight of more than a million elements
/// meets rows that are packed too.
///
/// ```
/// use kernels::{Affine, View};
///
/// // A linear layer's weight as frameworks keep it, [O, D].
/// let (weight, bias) = ([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [0.5f32, 0.0]);
/// let layer = Affine::new(View::new(&weight, 2, 3).transposed(), Some(&bias));
/// let mut y = [0.0; 2];
/// layer.forward(&[1.0, 1.0, 1.0], &mut y);
/// assert_eq!(y, [6.5, 15.0]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Affine<'a, F> {
    weight: View<'a, F>,
    bias: Option<&'a [F]>,
    pool: Option<&'a BufferPool<F>>,
}

/// Into how many independent parts calls of a layer are cut, whatever the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffineTasks {
    /// Of [`Affine::forward`] and of [`Affine::backward_rows`].
    pub rows: usize,
    /// Of [`Affine::backward_parameters`].
    pub parameters: usize,
}

impl<'a, F: Real> Affine<'a, F> {
    /// Borrows the parameters.
    ///
    /// # Panics
    /// If the bias has not O elements.
    pub fn new(weight: View<'a, F>, bias: Option<&'a [F]>) -> Self {
        let outputs = weight.shape().1;
        assert!(bias.is_none_or(|bias| bias.len() == outputs), "affine: a bias of {outputs} elements");
        Self { weight, bias, pool: None }
    }

    /// Packs into memory from a pool, if there is one.
    pub fn with_pool(self, pool: Option<&'a BufferPool<F>>) -> Self {
        Self { pool, ..self }
    }

    /// The parts of calls with so many rows.
    pub fn tasks(&self, rows: usize) -> AffineTasks {
        let (inputs, outputs) = self.weight.shape();
        let kept = if self.weight.transposed { outputs } else { inputs };
        let of_rows = |columns| match task_of(rows, [inputs * outputs, columns]) {
            _ if rows <= FEW => rows.div_ceil(few(inputs * outputs)),
            [each, width] => rows.div_ceil(each) * columns.div_ceil(width),
        };
        AffineTasks {
            rows: of_rows(outputs).min(of_rows(inputs)),
            parameters: kept.div_ceil(PARAMETERS) + outputs.div_ceil(BIAS),
        }
    }

    /// `y = x W + b`
    ///
    /// # Shapes
    /// `x` *n x D*, `y` *n x O*.
    ///
    /// # Panics
    /// If the lengths do not fit.
    ///
    /// Cost: `O(n D O)` time.
    pub fn forward(&self, x: &[F], y: &mut [F]) {
        let ((inputs, outputs), bias) = (self.weight.shape(), self.bias);
        rows_times(self.pool, x, self.weight, y, Accumulate::Replace, |y| {
            if let Some(bias) = bias {
                y.0.chunks_exact_mut(y.1.len().max(1)).for_each(|row| add(row, &bias[y.1.clone()]));
            }
        });
        debug_assert_eq!(x.len() * outputs, y.len() * inputs);
    }

    /// `dx (=|+=) dy Wᵀ`
    ///
    /// # Shapes
    /// `dy` *n x O*, `dx` *n x D*.
    ///
    /// # Panics
    /// If the lengths do not fit.
    ///
    /// Cost: `O(n D O)` time.
    pub fn backward_rows(&self, dy: &[F], dx: &mut [F], how: Accumulate) {
        rows_times(self.pool, dy, self.weight.transposed(), dx, how, |_| {});
    }

    /// `dW += xᵀ dy`, kept as the weight is, and `db += Σ dy`, summed in f64, over runs of rows `(x, dy)` in their order.
    ///
    /// # Shapes
    /// `x` *n x D* and `dy` *n x O* of each run, `weight` *D x O* or *O x D*, `bias` *O*.
    ///
    /// # Panics
    /// If the lengths do not fit.
    ///
    /// Cost: `O(n D O)` time.
    pub fn backward_parameters<'b>(&self, runs: &[(&'b [F], &'b [F])], weight: &mut [F], bias: &mut [F]) {
        let (inputs, outputs) = self.weight.shape();
        assert_eq!(weight.len(), inputs * outputs, "affine: a gradient of {inputs} x {outputs}");
        assert_eq!(bias.len(), outputs, "affine: a bias gradient of {outputs}");
        if weight.is_empty() {
            return;
        }
        let width = if self.weight.transposed { inputs } else { outputs };
        // The rows of what is kept are inputs, or outputs where it is transposed.
        let sides = |&(x, dy): &(&'b [F], &'b [F])| if self.weight.transposed { (dy, x) } else { (x, dy) };
        let pack = |run: &(&'b [F], &'b [F])| {
            let (own, all) = sides(run);
            let rows = all.len() / width;
            let fits = all.len() == rows * width && own.len() == rows * (weight.len() / width);
            assert!(fits, "affine: runs of rows");
            (own, PackedRight::with_pool(self.pool, View::new(all, rows, width)))
        };
        let packed: Vec<_> = runs.iter().filter(|(x, _)| !x.is_empty()).map(pack).collect();
        let of_weight = |task: usize, out: &mut [F]| {
            let (first, count) = (task * PARAMETERS, out.len() / width);
            for (own, all) in &packed {
                let rows = all.shape().0;
                let own = View::with_stride(&own[first..], rows, count, own.len() / rows).transposed();
                product_packed(ViewMut::new(out, count, width), own, all, Accumulate::Add);
            }
        };
        let of_bias = |task: usize, bias: &mut [F]| {
            let mut sums = vec![0.0; bias.len()];
            for (_, dy) in runs {
                for row in dy.chunks_exact(outputs) {
                    sums.iter_mut().zip(&row[task * BIAS..]).for_each(|(sum, g)| *sum += g.to_f64());
                }
            }
            bias.iter_mut().zip(sums).for_each(|(bias, sum)| *bias += F::from_f64(sum));
        };
        rayon::join(
            || par_for(parts_mut(weight, PARAMETERS * width), of_weight),
            || par_for(parts_mut(bias, BIAS), of_bias),
        );
    }
}

/// Most rows of a task of a call with few, for a weight of so many elements.
fn few(elements: usize) -> usize {
    if elements >= FAR { HALF } else { FEW }
}

/// Rows and columns of a task, for a weight of so many elements and columns.
fn task_of(rows: usize, [elements, columns]: [usize; 2]) -> [usize; 2] {
    if elements <= NEAR {
        return match rows / TASKS {
            few if few < UNIT => [few.max(LEAST), columns],
            many => [(many / UNIT * UNIT).min(ROWS), columns],
        };
    }
    let blocks = |each: usize| rows.div_ceil(each);
    let enough = |&each: &usize| blocks(each) * columns.div_ceil(COLUMNS) >= TASKS;
    let each = BLOCKS.into_iter().find(enough).unwrap_or(LEAST);
    let strips = TASKS.div_ceil(blocks(each)).max(columns.div_ceil(MOST));
    [each, (columns / strips / COLUMNS * COLUMNS).clamp(COLUMNS, MOST)]
}

/// `out (=|+=) rows · matrix`, and something with each task's part of it and the columns that it is.
///
/// ```text
/// for tasks of rows I and columns J:  out[I, J] (=|+=) rows[I] · matrix[J]
/// ```
fn rows_times<F: Real>(
    pool: Option<&BufferPool<F>>,
    rows: &[F],
    matrix: View<F>,
    out: &mut [F],
    how: Accumulate,
    after: impl Fn((&mut [F], Range<usize>)) + Sync,
) {
    let (inputs, outputs) = matrix.shape();
    if out.is_empty() {
        return;
    }
    let count = out.len() / outputs;
    assert!(
        out.len() == count * outputs && rows.len() == count * inputs,
        "affine: {} elements times {inputs} x {outputs} into {}",
        rows.len(),
        out.len()
    );
    if count <= FEW || inputs == 0 {
        let each = few(inputs * outputs);
        let run = |task: usize, out: &mut [F]| {
            let count = out.len() / outputs;
            let rows = View::new(&rows[task * each * inputs..][..count * inputs], count, inputs);
            product(ViewMut::new(&mut *out, count, outputs), rows, matrix, F::ONE, how);
            after((out, 0..outputs));
        };
        // A single task is not worth the way to another thread.
        return if count <= each { run(0, out) } else { par_for(parts_mut(out, each * outputs), run) };
    }
    let [each, width] = task_of(count, [inputs * outputs, outputs]);
    let right = PackedRight::with_pool(pool, matrix);
    if width == outputs {
        par_for((parts_mut(out, each * outputs), parts(rows, each * inputs)), |_, (out, rows)| {
            let count = out.len() / outputs;
            let target = ViewMut::new(&mut *out, count, outputs);
            product_packed(target, View::new(rows, count, inputs), &right, how);
            after((out, 0..outputs));
        });
        return;
    }
    let left = PackedLeft::with_pool(pool, View::new(rows, count, inputs), each);
    let (blocks, tiling) = (count.div_ceil(each), Tiling { rows: each, planes: 1, columns: outputs, width });
    par_for(tiles_mut(out, tiling), |task, mut tile| {
        let (block, first) = (task % blocks, task / blocks * width);
        let (count, columns) = (tile.rows(), tile.row(0, 0).len());
        // The task's own, so that sums of many blocks of steps stay near.
        let mut sums = acquire(pool, "sums", count * columns);
        if how == Accumulate::Add {
            (0..count).for_each(|row| sums[row * columns..][..columns].copy_from_slice(tile.row(row, 0)));
        }
        product_of_parts(ViewMut::new(&mut sums, count, columns), (&left, block), (&right, first), how);
        after((&mut sums, first..first + columns));
        (0..count).for_each(|row| tile.row(row, 0).copy_from_slice(&sums[row * columns..][..columns]));
    });
}
