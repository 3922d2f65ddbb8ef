//! A linear layer that is packed once, for rows that come a few at a time.
use candle_core::Tensor;
use kernels::{Accumulate, PackedRight, View, ViewMut, add, par_for, parts, parts_mut, product_packed};

use crate::Result;
use crate::tensors::to_vec;

/// Rows of a task.
const ROWS: usize = 56;

/// [`linear()`](crate::linear()) with a copy of its weights; the bits are the same.
#[derive(Debug)]
pub(crate) struct PackedLinear {
    weight: PackedRight<f32>,
    bias: Vec<f32>,
}

impl PackedLinear {
    /// Copies `weight [O, D]` and `bias [O]`.
    pub fn new(weight: &Tensor, bias: &Tensor) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        let (weight, bias) = (to_vec::<f32>(weight)?, to_vec(bias)?);
        Ok(PackedLinear { weight: PackedRight::new(View::new(&weight, outputs, inputs).transposed()), bias })
    }

    /// D and O.
    pub fn shape(&self) -> (usize, usize) {
        self.weight.shape()
    }

    /// `y = x Wᵀ + b` of rows `[n, D]`.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let (d, o) = self.shape();
        let mut y = vec![0.0; x.len() / d * o];
        par_for((parts_mut(&mut y, ROWS * o), parts(x, ROWS * d)), |_, (y, x)| {
            let n = x.len() / d;
            product_packed(
                ViewMut::new(&mut *y, n, o),
                View::new(x, n, d),
                &self.weight,
                Accumulate::Replace,
            );
            y.chunks_exact_mut(o).for_each(|y| add(y, &self.bias));
        });
        y
    }
}
