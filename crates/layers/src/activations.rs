//! The activations of Conformer layers, SiLU (swish) and GLU, as candle operations.
use candle_core::{Shape, Tensor};
use kernels::{Real, alloc, par_for, parts, parts_mut, sigmoid};

use crate::Result;
use crate::operation::{SliceOperation, apply1};

/// Elements that one task processes.
const ELEMENTS_PER_TASK: usize = 1 << 14;
/// Elements whose sigmoids are on the stack at a time.
const ELEMENTS_PER_CHUNK: usize = 512;
/// Rows that one task processes.
const ROWS_PER_TASK: usize = 32;

/// Computes `y = x σ(x)`, also called swish.
///
/// # Errors
/// [`crate::Error::Shape`] for a dtype other than `f32` and `f64`.
pub fn silu(x: &Tensor) -> Result<Tensor> {
    apply1(Silu(x.shape().clone()), x)
}

/// Computes `y = a ∘ σ(b)` of rows `[a b]`: `[N, 2W]` to `[N, W]`.
///
/// N: rows; W: width of a result row; ∘: product by element; σ: sigmoid (Dauphin et al., arXiv
/// 1612.08083).
///
/// # Errors
/// Errors of candle for a tensor without two axes; [`crate::Error::Shape`] for a dtype other than
/// `f32` and `f64`.
pub fn glu(x: &Tensor) -> Result<Tensor> {
    let (rows, input_width) = x.dims2()?;
    apply1(Glu { rows, width: input_width / 2 }, x)
}

struct Silu(Shape);

struct Glu {
    rows: usize,
    width: usize,
}

/// [`silu`] of slices.
pub fn silu_rows<F: Real>(x: &[F]) -> Vec<F> {
    let mut y = alloc(x.len(), F::ZERO);
    par_for((parts_mut(&mut y, ELEMENTS_PER_TASK), parts(x, ELEMENTS_PER_TASK)), |_, (y, x)| {
        y.copy_from_slice(x);
        silu_in_place(y);
    });
    y
}

/// Calls `update(x, σ(x))` for a chunk at a time.
fn update_with_sigmoids<F: Real>(x: &mut [F], mut update: impl FnMut(&mut [F], &[F])) {
    let mut buffer = [F::ZERO; ELEMENTS_PER_CHUNK];
    for x in x.chunks_mut(ELEMENTS_PER_CHUNK) {
        let sigmoids = &mut buffer[..x.len()];
        sigmoids.copy_from_slice(x);
        sigmoid(sigmoids);
        update(x, sigmoids);
    }
}

/// [`silu_rows`] within a task.
pub(crate) fn silu_in_place<F: Real>(x: &mut [F]) {
    update_with_sigmoids(x, |x, sigmoids| x.iter_mut().zip(sigmoids).for_each(|(x, &s)| *x *= s));
}

/// Replaces the argument of [`silu`] by its gradient, in place.
///
/// `d_out` is the gradient of the result, dy.
///
/// `dx = dy σ(x) (1 + x (1 - σ(x)))`
pub(crate) fn silu_backward<F: Real>(x: &mut [F], d_out: &[F]) {
    let mut d_out_chunks = d_out.chunks(ELEMENTS_PER_CHUNK);
    update_with_sigmoids(x, |x, sigmoids| {
        let d_out = d_out_chunks.next().unwrap_or_default();
        for ((x, &s), &dy) in x.iter_mut().zip(sigmoids).zip(d_out) {
            *x = dy * s * (F::ONE + *x * (F::ONE - s));
        }
    });
}

/// [`glu`] of slices.
pub fn glu_rows<F: Real>(x: &[F], width: usize) -> Vec<F> {
    let mut y = alloc(x.len() / 2, F::ZERO);
    par_for((parts_mut(&mut y, ROWS_PER_TASK * width), parts(x, 2 * ROWS_PER_TASK * width)), |_, (y, x)| {
        for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(2 * width)) {
            let (a, b) = x.split_at(width);
            y.copy_from_slice(b);
            sigmoid(y);
            y.iter_mut().zip(a).for_each(|(y, &a)| *y *= a);
        }
    });
    y
}

impl SliceOperation<1> for Silu {
    const NAME: &'static str = "silu";

    fn shape(&self) -> Shape {
        self.0.clone()
    }

    fn forward<F: Real>(&self, [x]: [&[F]; 1]) -> Vec<F> {
        silu_rows(x)
    }

    fn backward<F: Real>(&self, [x]: [&[F]; 1], _: &[F], d_out: &[F], _: bool) -> [Vec<F>; 1] {
        let mut dx = alloc(x.len(), F::ZERO);
        par_for(
            (
                parts_mut(&mut dx, ELEMENTS_PER_TASK),
                parts(x, ELEMENTS_PER_TASK),
                parts(d_out, ELEMENTS_PER_TASK),
            ),
            |_, (dx, x, d_out)| {
                dx.copy_from_slice(x);
                silu_backward(dx, d_out);
            },
        );
        [dx]
    }
}

impl SliceOperation<1> for Glu {
    const NAME: &'static str = "glu";

    fn shape(&self) -> Shape {
        Shape::from((self.rows, self.width))
    }

    fn forward<F: Real>(&self, [x]: [&[F]; 1]) -> Vec<F> {
        glu_rows(x, self.width)
    }

    /// Computes `da = dy σ(b)` and `db = dy a σ(b) (1 - σ(b))`.
    fn backward<F: Real>(&self, [x]: [&[F]; 1], _: &[F], d_out: &[F], _: bool) -> [Vec<F>; 1] {
        let width = self.width;
        let mut dx = alloc(x.len(), F::ZERO);
        let (inputs_per_task, outputs_per_task) = (2 * ROWS_PER_TASK * width, ROWS_PER_TASK * width);
        let tasks =
            (parts_mut(&mut dx, inputs_per_task), parts(x, inputs_per_task), parts(d_out, outputs_per_task));
        par_for(tasks, |_, (dx, x, d_out)| {
            let rows = x.chunks_exact(2 * width).zip(d_out.chunks_exact(width));
            for (dx, (x, d_out)) in dx.chunks_exact_mut(2 * width).zip(rows) {
                let ((a, b), (da, db)) = (x.split_at(width), dx.split_at_mut(width));
                db.copy_from_slice(b);
                sigmoid(db);
                for ((da, db), (&a, &dy)) in da.iter_mut().zip(db).zip(a.iter().zip(d_out)) {
                    *da = dy * *db;
                    *db = *da * a * (F::ONE - *db);
                }
            }
        });
        [dx]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::tests::{check_gradients, test_values, values};

    #[test]
    fn values_equal_the_formulas_and_gradients_finite_differences() {
        let x = test_values(&[40, 6], 1.3);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (inputs, out) = (values(&x), values(&silu(&x).unwrap()));
        assert!(out.iter().zip(&inputs).all(|(y, x)| (y - x * sigmoid(*x)).abs() < 1e-14));
        let out = values(&glu(&x).unwrap());
        for (y, x) in out.chunks(3).zip(inputs.chunks(6)) {
            assert!((0..3).all(|i| (y[i] - x[i] * sigmoid(x[3 + i])).abs() < 1e-14));
        }
        check_gradients(|x| silu(&x[0]).unwrap(), &[test_values(&[5, 6], 1.3)]);
        check_gradients(|x| glu(&x[0]).unwrap(), &[x]);
    }
}
