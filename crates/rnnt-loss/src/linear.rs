//! The projections of the joint: a linear layer over rows, `weight` *out x in*.
use kernels::{Accumulate, Affine, Real, View};

/// `y = x Wᵀ + b`: `x` *n x in*, `weight` *out x in*, `bias` *out*.
pub(crate) fn forward<F: Real>(
    x: &[F],
    weight: &[F],
    bias: Option<&[F]>,
    inputs: usize,
    outputs: usize,
) -> Vec<F> {
    let mut y = vec![F::ZERO; x.len() / inputs * outputs];
    Affine::new(View::new(weight, outputs, inputs).transposed(), bias).forward(x, &mut y);
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
    let layer = Affine::new(View::new(weight, outputs, inputs).transposed(), None);
    let mut gradient = Gradient {
        x: vec![F::ZERO; x.len()],
        weight: vec![F::ZERO; weight.len()],
        bias: vec![F::ZERO; outputs],
    };
    layer.backward_rows(dy, &mut gradient.x, Accumulate::Replace);
    layer.backward_parameters(&[(x, dy)], &mut gradient.weight, &mut gradient.bias);
    gradient
}
