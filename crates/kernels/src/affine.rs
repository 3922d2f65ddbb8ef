//! Linear layer with bias, forward and backward, in parallel tasks.
//!
//! ```text
//! forward                     y = x W + b
//! backward, given dL/dy:      dx = dy Wᵀ      dW = xᵀ dy      db = Σ dy
//! ```
//! x: n input rows *n x D*; W: weight *D x O*; b: bias *O*; y: output rows *n x O*.
use std::ops::Range;

use crate::{
    Accumulate, BufferPool, COLUMN_MULTIPLE, PackedLeft, PackedRight, Real, Tiling, View, ViewMut, acquire,
    add, par_for, parts, parts_mut, product, product_of_parts, product_packed, tiles_mut,
};

/// Maximum rows of `x` for which the weight is not packed.
const MAX_UNPACKED_ROWS: usize = 128;
/// Rows of a task without packing, for [`MIN_SPLIT_ELEMENTS`] or more.
///
/// The weight is then large enough for two threads to pay off.
const ROWS_PER_SPLIT_TASK: usize = MAX_UNPACKED_ROWS / 2;
/// Minimum elements of a weight for splitting few rows into two tasks.
const MIN_SPLIT_ELEMENTS: usize = 1 << 17;
/// Maximum elements of a weight that fits the caches.
///
/// A task with such a weight has some rows and all columns, so it reads the whole weight.
const MAX_CACHED_ELEMENTS: usize = 1 << 20;
/// Maximum rows of a task with a weight that fits the caches.
const MAX_TASK_ROWS: usize = 56;
/// Rows of the micro-kernel; larger tasks have a multiple of it.
const KERNEL_ROWS: usize = 14;
/// Minimum rows of a task; fewer would read the weight too often.
const MIN_TASK_ROWS: usize = 8;
/// Rows of a task with a weight larger than the caches.
///
/// Such a task also has a range of columns. The largest value with enough tasks is used; its
/// operands stay in a second-level cache.
const BLOCK_ROWS: [usize; 5] = [112, 56, 28, 14, 8];
/// Maximum columns of a task with a weight larger than the caches.
const MAX_TASK_COLUMNS: usize = 256;
/// Targeted number of tasks: two for each of 64 threads.
const TARGET_TASKS: usize = 128;
/// Rows of the weight's gradient in a task.
///
/// Each task reads all rows of `x` and `dy`.
const WEIGHT_ROWS_PER_TASK: usize = 28;
/// Elements of the bias's gradient in a task.
const BIAS_PER_TASK: usize = 256;

/// An affine layer with borrowed parameters: weight *D x O*, stored so or transposed, and bias *O*.
///
/// Work is divided by shape only, and each sum has a fixed order: results do not depend on the
/// number of threads. Calls with more than 128 rows pack the weight once for all tasks, into
/// [`PackedRight::bytes_for`] bytes; with a weight of more than a million elements, rows are packed
/// as well.
///
/// ```
/// use kernels::{Affine, View};
///
/// // A linear layer's weight as frameworks store it, [O, D].
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

/// Number of tasks in calls of a layer.
///
/// It does not depend on the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffineTasks {
    /// Tasks of [`Affine::forward`] and of [`Affine::backward_rows`].
    pub rows: usize,
    /// Tasks of [`Affine::backward_parameters`].
    pub parameters: usize,
}

impl<'a, F: Real> Affine<'a, F> {
    /// Borrows the parameters.
    ///
    /// # Panics
    /// If the bias does not have O elements.
    pub fn new(weight: View<'a, F>, bias: Option<&'a [F]>) -> Self {
        let outputs = weight.shape().1;
        assert!(bias.is_none_or(|bias| bias.len() == outputs), "affine: a bias of {outputs} elements");
        Self { weight, bias, pool: None }
    }

    /// Packs into memory of a pool, if there is one.
    pub fn with_pool(self, pool: Option<&'a BufferPool<F>>) -> Self {
        Self { pool, ..self }
    }

    /// Returns the number of tasks of calls with `rows` rows.
    pub fn tasks(&self, rows: usize) -> AffineTasks {
        let (inputs, outputs) = self.weight.shape();
        let stored_rows = if self.weight.transposed { outputs } else { inputs };
        let row_tasks = |columns| match task_shape(rows, inputs * outputs, columns) {
            _ if rows <= MAX_UNPACKED_ROWS => rows.div_ceil(unpacked_task_rows(inputs * outputs)),
            [task_rows, task_columns] => rows.div_ceil(task_rows) * columns.div_ceil(task_columns),
        };
        AffineTasks {
            rows: row_tasks(outputs).min(row_tasks(inputs)),
            parameters: stored_rows.div_ceil(WEIGHT_ROWS_PER_TASK) + outputs.div_ceil(BIAS_PER_TASK),
        }
    }

    /// Computes `y = x W + b`.
    ///
    /// # Shapes
    /// `x` *n x D*, `y` *n x O*.
    ///
    /// # Panics
    /// If the lengths do not match.
    ///
    /// Cost: `O(n D O)` time.
    pub fn forward(&self, x: &[F], y: &mut [F]) {
        let ((inputs, outputs), bias) = (self.weight.shape(), self.bias);
        multiply_rows(self.pool, x, self.weight, y, Accumulate::Replace, |y, columns| {
            if let Some(bias) = bias {
                y.chunks_exact_mut(columns.len().max(1)).for_each(|row| add(row, &bias[columns.clone()]));
            }
        });
        debug_assert_eq!(x.len() * outputs, y.len() * inputs);
    }

    /// Computes `dx (=|+=) dy Wᵀ`.
    ///
    /// # Shapes
    /// `dy` *n x O*, `dx` *n x D*.
    ///
    /// # Panics
    /// If the lengths do not match.
    ///
    /// Cost: `O(n D O)` time.
    pub fn backward_rows(&self, dy: &[F], dx: &mut [F], accumulate: Accumulate) {
        multiply_rows(self.pool, dy, self.weight.transposed(), dx, accumulate, |_, _| {});
    }

    /// Adds `dW += xᵀ dy` and `db += Σ dy` for a list of `(x, dy)`.
    ///
    /// A run is a pair of row matrices with the same number of rows; runs are added in order.
    ///
    /// `dW` is stored as the weight is; `db` is summed in `f64`.
    ///
    /// # Shapes
    /// `x` *n x D* and `dy` *n x O* of each run, `weight` *D x O* or *O x D*, `bias` *O*.
    ///
    /// # Panics
    /// If the lengths do not match.
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
        // Pack the right operand of each run. Stored rows of the weight are inputs, or outputs if
        // it is transposed.
        let operands = |&(x, dy): &(&'b [F], &'b [F])| if self.weight.transposed { (dy, x) } else { (x, dy) };
        let pack = |run: &(&'b [F], &'b [F])| {
            let (left, right) = operands(run);
            let rows = right.len() / width;
            let fits = right.len() == rows * width && left.len() == rows * (weight.len() / width);
            assert!(fits, "affine: runs of rows");
            (left, PackedRight::with_pool(self.pool, View::new(right, rows, width)))
        };
        let packed: Vec<_> = runs.iter().filter(|(x, _)| !x.is_empty()).map(pack).collect();
        // Some rows of dW, and some elements of db.
        let weight_task = |task: usize, out: &mut [F]| {
            let (first_row, count) = (task * WEIGHT_ROWS_PER_TASK, out.len() / width);
            for (left, right) in &packed {
                let rows = right.shape().0;
                let left = View::with_stride(&left[first_row..], rows, count, left.len() / rows).transposed();
                product_packed(ViewMut::new(out, count, width), left, right, Accumulate::Add);
            }
        };
        let bias_task = |task: usize, bias: &mut [F]| {
            let mut sums = vec![0.0; bias.len()];
            for (_, dy) in runs {
                for row in dy.chunks_exact(outputs) {
                    sums.iter_mut().zip(&row[task * BIAS_PER_TASK..]).for_each(|(sum, g)| *sum += g.to_f64());
                }
            }
            bias.iter_mut().zip(sums).for_each(|(bias, sum)| *bias += F::from_f64(sum));
        };
        rayon::join(
            || par_for(parts_mut(weight, WEIGHT_ROWS_PER_TASK * width), weight_task),
            || par_for(parts_mut(bias, BIAS_PER_TASK), bias_task),
        );
    }
}

/// Returns the rows of a task without a shared packed weight.
fn unpacked_task_rows(weight_elements: usize) -> usize {
    if weight_elements >= MIN_SPLIT_ELEMENTS { ROWS_PER_SPLIT_TASK } else { MAX_UNPACKED_ROWS }
}

/// Returns the rows and columns of a task with a shared weight.
fn task_shape(rows: usize, weight_elements: usize, columns: usize) -> [usize; 2] {
    if weight_elements <= MAX_CACHED_ELEMENTS {
        return match rows / TARGET_TASKS {
            task_rows if task_rows < KERNEL_ROWS => [task_rows.max(MIN_TASK_ROWS), columns],
            task_rows => [(task_rows / KERNEL_ROWS * KERNEL_ROWS).min(MAX_TASK_ROWS), columns],
        };
    }
    let blocks = |task_rows: usize| rows.div_ceil(task_rows);
    let has_enough_tasks =
        |&task_rows: &usize| blocks(task_rows) * columns.div_ceil(COLUMN_MULTIPLE) >= TARGET_TASKS;
    let task_rows = BLOCK_ROWS.into_iter().find(has_enough_tasks).unwrap_or(MIN_TASK_ROWS);
    let strips = TARGET_TASKS.div_ceil(blocks(task_rows)).max(columns.div_ceil(MAX_TASK_COLUMNS));
    [
        task_rows,
        (columns / strips / COLUMN_MULTIPLE * COLUMN_MULTIPLE).clamp(COLUMN_MULTIPLE, MAX_TASK_COLUMNS),
    ]
}

/// Computes `out (=|+=) rows · matrix`, then `finish(output, columns)` of each task.
///
/// ```text
/// for tasks of rows I and columns J:  out[I, J] (=|+=) rows[I] · matrix[J], finish(out[I, J], J)
/// ```
fn multiply_rows<F: Real>(
    pool: Option<&BufferPool<F>>,
    rows: &[F],
    matrix: View<F>,
    out: &mut [F],
    accumulate: Accumulate,
    finish: impl Fn(&mut [F], Range<usize>) + Sync,
) {
    let (inputs, outputs) = matrix.shape();
    if out.is_empty() {
        return;
    }
    let row_count = out.len() / outputs;
    assert!(
        out.len() == row_count * outputs && rows.len() == row_count * inputs,
        "affine: {} elements times {inputs} x {outputs} into {}",
        rows.len(),
        out.len()
    );
    // Few rows: each task reads the weight without packing.
    if row_count <= MAX_UNPACKED_ROWS || inputs == 0 {
        let task_rows = unpacked_task_rows(inputs * outputs);
        let run = |task: usize, out: &mut [F]| {
            let count = out.len() / outputs;
            let rows = View::new(&rows[task * task_rows * inputs..][..count * inputs], count, inputs);
            product(ViewMut::new(&mut *out, count, outputs), rows, matrix, F::ONE, accumulate);
            finish(out, 0..outputs);
        };
        // A single task runs on the calling thread.
        return if row_count <= task_rows {
            run(0, out)
        } else {
            par_for(parts_mut(out, task_rows * outputs), run)
        };
    }
    let [task_rows, task_columns] = task_shape(row_count, inputs * outputs, outputs);
    let right = PackedRight::with_pool(pool, matrix);
    // A weight that fits the caches: tasks have some rows and all columns.
    if task_columns == outputs {
        par_for((parts_mut(out, task_rows * outputs), parts(rows, task_rows * inputs)), |_, (out, rows)| {
            let count = out.len() / outputs;
            let target = ViewMut::new(&mut *out, count, outputs);
            product_packed(target, View::new(rows, count, inputs), &right, accumulate);
            finish(out, 0..outputs);
        });
        return;
    }
    // A larger weight: tasks have some rows and some columns.
    let left = PackedLeft::with_pool(pool, View::new(rows, row_count, inputs), task_rows);
    let blocks = row_count.div_ceil(task_rows);
    let tiling = Tiling { rows: task_rows, planes: 1, columns: outputs, width: task_columns };
    par_for(tiles_mut(out, tiling), |task, mut tile| {
        let (block, first_column) = (task % blocks, task / blocks * task_columns);
        let (count, columns) = (tile.rows(), tile.row(0, 0).len());
        // Separate memory, so that sums over many blocks of steps stay in the cache.
        let mut sums = acquire(pool, "sums", count * columns);
        if accumulate == Accumulate::Add {
            (0..count).for_each(|row| sums[row * columns..][..columns].copy_from_slice(tile.row(row, 0)));
        }
        product_of_parts(
            ViewMut::new(&mut sums, count, columns),
            (&left, block),
            (&right, first_column),
            accumulate,
        );
        finish(&mut sums, first_column..first_column + columns);
        (0..count).for_each(|row| tile.row(row, 0).copy_from_slice(&sums[row * columns..][..columns]));
    });
}
