//! Semiring sums and products along one array axis, with gradients.
use super::{Differentiable, Semiring};
use crate::{Error, Result, forward_backward::expect_len};

/// One axis of a row-major array *outer x len x inner*.
///
/// ```
/// use rnnt_dp::semiring::{Axis, Tropical};
/// let rows = Axis::new(&[2, 3], -1)?;
/// let values = [1.0, 3.0, 2.0, 4.0, 0.0, 4.0];
/// assert_eq!(rows.sum::<Tropical>(&values)?, [3.0, 4.0]);
/// let gradient = rows.sum_backward::<Tropical>(&values, &[1.0; 2])?;
/// assert_eq!(gradient, [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    outer: usize,
    len: usize,
    inner: usize,
}

impl Axis {
    /// Returns an axis of a shape; a negative axis counts from the last one.
    ///
    /// # Errors
    /// An axis out of range, or a shape whose number of values overflows.
    pub fn new(shape: &[usize], axis: isize) -> Result<Self> {
        let axes = shape.len();
        let index = if axis < 0 { axes.checked_add_signed(axis) } else { usize::try_from(axis).ok() };
        let index = index.filter(|&index| index < axes).ok_or(Error::Axis { axes, found: axis })?;
        let product =
            |sizes: &[usize]| sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let checked = || {
            let (outer, inner) = (product(&shape[..index])?, product(&shape[index + 1..])?);
            outer.checked_mul(inner)?.checked_mul(shape[index])?;
            Some(Self { outer, len: shape[index], inner })
        };
        checked().ok_or_else(|| Error::ShapeOverflow { shape: shape.to_vec() })
    }

    /// Returns `⊕` along the axis: *outer x inner*, zeros if the axis is empty.
    ///
    /// # Errors
    /// A number of values other than that of the shape.
    pub fn sum<S: Semiring>(&self, values: &[S::Weight]) -> Result<Vec<S::Weight>> {
        expect_len("values", self.num_values(), values.len())?;
        Ok(self.lines().map(|line| S::sum(self.line_indices(line).map(|index| values[index]))).collect())
    }

    /// Returns `⊗` along the axis: *outer x inner*, ones if the axis is empty.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn prod<S: Semiring>(&self, values: &[S::Weight]) -> Result<Vec<S::Weight>> {
        expect_len("values", self.num_values(), values.len())?;
        Ok(self.lines().map(|line| S::prod(self.line_indices(line).map(|index| values[index]))).collect())
    }

    /// Returns the gradient of [`sum`](Self::sum) from cotangents of its results.
    ///
    /// # Errors
    /// A number of values or cotangents that does not match the shape.
    pub fn sum_backward<S: Differentiable>(&self, values: &[f64], cotangents: &[f64]) -> Result<Vec<f64>> {
        self.backward(values, cotangents, S::sum_backward)
    }

    /// Returns the gradient of [`prod`](Self::prod) from cotangents of its results.
    ///
    /// # Errors
    /// As [`sum_backward`](Self::sum_backward).
    pub fn prod_backward<S: Differentiable>(&self, values: &[f64], cotangents: &[f64]) -> Result<Vec<f64>> {
        self.backward(values, cotangents, S::prod_backward)
    }

    fn backward(
        &self,
        values: &[f64],
        cotangents: &[f64],
        line_backward: impl Fn(&[f64], f64, &mut [f64]),
    ) -> Result<Vec<f64>> {
        expect_len("values", self.num_values(), values.len())?;
        expect_len("cotangents", self.outer * self.inner, cotangents.len())?;
        let (mut gradients, mut gradient) = (vec![0.0; values.len()], vec![0.0; self.len]);
        for (line, &cotangent) in self.lines().zip(cotangents) {
            let operands: Vec<f64> = self.line_indices(line).map(|index| values[index]).collect();
            line_backward(&operands, cotangent, &mut gradient);
            self.line_indices(line).zip(&gradient).for_each(|(index, &gradient)| gradients[index] = gradient);
        }
        Ok(gradients)
    }

    fn num_values(&self) -> usize {
        self.outer * self.len * self.inner
    }

    /// Indices of the lines: the elements that differ in their position on the axis only.
    fn lines(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.outer * self.inner
    }

    /// Row-major indices of the elements of a line.
    fn line_indices(&self, line: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let Self { len, inner, .. } = *self;
        (0..len).map(move |position| (line / inner * len + position) * inner + line % inner)
    }
}
