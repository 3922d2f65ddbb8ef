//! The affine layer over rows, forward and backward.
//!
//! ```text
//! forward                     y = x W + b
//! backward, given dL/dy:      dx = dy Wᵀ      dW = xᵀ dy      db = Σ dy
//! ```
use crate::{
    Accumulate, PackedRight, Real, View, ViewMut, add, par_for, parts, parts_mut, product, product_packed,
};

/// Rows of `x` up to which a call is one task, which reads the weight where it is.
const FEW: usize = 128;
/// Most rows of a task where there are more: all tasks share a packed weight.
const ROWS: usize = 56;
/// What they are a multiple of, where there are as many: the rows of a micro-kernel.
const UNIT: usize = 14;
/// Fewest rows of a task: fewer would read the weight too often.
const LEAST: usize = 8;
/// Tasks that are aimed for, two for each of 64 threads.
const TASKS: usize = 128;
/// Rows of the weight's gradient a task, each of which reads all rows of `x` and `dy`.
const PARAMETERS: usize = 28;
/// Elements of the bias's gradient a task.
const BIAS: usize = 256;

/// A layer with its parameters, borrowed: a weight *D x O*, which may be the transpose of what is kept, and a bias *O*.
///
/// Work is cut by shape alone, and every sum has one order: results do not depend on the number of threads. Above 128 rows a
/// call packs the weight once, for all tasks, into [`PackedRight::bytes_for`] bytes.
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
}

/// Into how many independent parts calls of a layer are cut, whatever the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tasks {
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
        Self { weight, bias }
    }

    /// The parts of calls with so many rows.
    pub fn tasks(&self, rows: usize) -> Tasks {
        let (inputs, outputs) = self.weight.shape();
        let kept = if self.weight.transposed { outputs } else { inputs };
        let of_rows = if rows <= FEW { 1 } else { rows.div_ceil(rows_of_task(rows)) };
        Tasks { rows: of_rows, parameters: kept.div_ceil(PARAMETERS) + outputs.div_ceil(BIAS) }
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
        rows_times(x, self.weight, y, Accumulate::Replace, |y| {
            if let Some(bias) = bias {
                y.chunks_exact_mut(outputs.max(1)).for_each(|y| add(y, bias));
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
        rows_times(dy, self.weight.transposed(), dx, how, |_| {});
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
    pub fn backward_parameters(&self, runs: &[(&[F], &[F])], weight: &mut [F], bias: &mut [F]) {
        let (inputs, outputs) = self.weight.shape();
        assert_eq!(weight.len(), inputs * outputs, "affine: a gradient of {inputs} x {outputs}");
        assert_eq!(bias.len(), outputs, "affine: a bias gradient of {outputs}");
        if weight.is_empty() {
            return;
        }
        let width = if self.weight.transposed { inputs } else { outputs };
        let of_weight = |task: usize, out: &mut [F]| {
            let (first, count) = (task * PARAMETERS, out.len() / width);
            for &(x, dy) in runs.iter().filter(|(x, _)| !x.is_empty()) {
                let rows = x.len() / inputs;
                assert!(x.len() == rows * inputs && dy.len() == rows * outputs, "affine: runs of rows");
                // The rows of what is kept are inputs, or outputs where it is transposed.
                let (own, all) = if self.weight.transposed { (dy, x) } else { (x, dy) };
                let own = View::with_stride(&own[first..], rows, count, own.len() / rows).transposed();
                let out = ViewMut::new(out, count, width);
                product(out, own, View::new(all, rows, width), F::ONE, Accumulate::Add);
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

/// Rows of a task of so many.
fn rows_of_task(count: usize) -> usize {
    match count / TASKS {
        few if few < UNIT => few.max(LEAST),
        many => (many / UNIT * UNIT).min(ROWS),
    }
}

/// `out (=|+=) rows · matrix`, and something with each task's part of it.
///
/// ```text
/// for tasks of rows:  out[task] (=|+=) rows[task] · matrix
/// ```
fn rows_times<F: Real>(
    rows: &[F],
    matrix: View<F>,
    out: &mut [F],
    how: Accumulate,
    after: impl Fn(&mut [F]) + Sync,
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
        let view = View::new(rows, count, inputs);
        product(ViewMut::new(out, count, outputs), view, matrix, F::ONE, how);
        return after(out);
    }
    let packed = PackedRight::new(matrix);
    let each = rows_of_task(count);
    par_for((parts_mut(out, each * outputs), parts(rows, each * inputs)), |_, (out, rows)| {
        let count = out.len() / outputs;
        let target = ViewMut::new(&mut *out, count, outputs);
        product_packed(target, View::new(rows, count, inputs), &packed, how);
        after(out);
    });
}
