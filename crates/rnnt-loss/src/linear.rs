//! A linear layer over rows, forward and backward, for the projections of the joint.
use kernels::{Accumulate, Real, View, ViewMut, add, product};
use rayon::prelude::*;

/// Rows a task; tasks are cut by shape alone.
const ROWS: usize = 128;

/// `y = x Wᵀ + b`: `x` *n x in*, `weight` *out x in*, `bias` *out*.
pub(crate) fn forward<F: Real>(
    x: &[F],
    weight: &[F],
    bias: Option<&[F]>,
    inputs: usize,
    outputs: usize,
) -> Vec<F> {
    let rows = x.len() / inputs;
    let mut y = vec![F::ZERO; rows * outputs];
    y.par_chunks_mut(ROWS * outputs).zip(x.par_chunks(ROWS * inputs)).for_each(|(y, x)| {
        let rows = x.len() / inputs;
        let weight = View::new(weight, outputs, inputs).transposed();
        product(
            ViewMut::new(y, rows, outputs),
            View::new(x, rows, inputs),
            weight,
            F::ONE,
            Accumulate::Replace,
        );
        if let Some(bias) = bias {
            y.chunks_exact_mut(outputs).for_each(|y| add(y, bias));
        }
    });
    y
}

/// Gradients of [`forward`].
pub(crate) struct Gradient<F> {
    pub x: Vec<F>,
    pub weight: Vec<F>,
    pub bias: Vec<F>,
}

/// `dx = dy W`, `dW = dyᵀ x`, `db = Σ dy`.
pub(crate) fn backward<F: Real>(
    dy: &[F],
    x: &[F],
    weight: &[F],
    inputs: usize,
    outputs: usize,
) -> Gradient<F> {
    let rows = x.len() / inputs;
    let mut dx = vec![F::ZERO; x.len()];
    let mut dw = vec![F::ZERO; weight.len()];
    let mut db = vec![0.0; outputs];
    let into_x = || {
        dx.par_chunks_mut(ROWS * inputs).zip(dy.par_chunks(ROWS * outputs)).for_each(|(dx, dy)| {
            let rows = dy.len() / outputs;
            let weight = View::new(weight, outputs, inputs);
            product(
                ViewMut::new(dx, rows, inputs),
                View::new(dy, rows, outputs),
                weight,
                F::ONE,
                Accumulate::Replace,
            );
        });
    };
    let into_w = || {
        let dy_t = View::new(dy, rows, outputs).transposed();
        product(
            ViewMut::new(&mut dw, outputs, inputs),
            dy_t,
            View::new(x, rows, inputs),
            F::ONE,
            Accumulate::Replace,
        );
    };
    rayon::join(into_x, into_w);
    for row in dy.chunks_exact(outputs) {
        db.iter_mut().zip(row).for_each(|(b, g)| *b += g.to_f64());
    }
    Gradient { x: dx, weight: dw, bias: db.into_iter().map(F::from_f64).collect() }
}
