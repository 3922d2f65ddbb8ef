//! One axis of an array, and sums and products along it.
use super::{Differentiable, Semiring};
use crate::{Error, Result, forward_backward::expect};

/// One axis of an array, row by row: *outer x len x inner*.
///
/// ```
/// use rnnt_dp::semiring::{Axis, Tropical};
/// let rows = Axis::new(&[2, 3], -1)?;
/// assert_eq!(rows.sum::<Tropical>(&[1.0, 3.0, 2.0, 4.0, 0.0, 4.0])?, [3.0, 4.0]);
/// assert_eq!(rows.sum_backward::<Tropical>(&[1.0, 3.0, 2.0, 4.0, 0.0, 4.0], &[1.0; 2])?, [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    outer: usize,
    len: usize,
    inner: usize,
}

impl Axis {
    /// An axis of a shape, counted from the first one on or, below 0, from the last one back.
    ///
    /// # Errors
    /// No such axis, or a shape of more values than can be counted.
    pub fn new(shape: &[usize], axis: isize) -> Result<Self> {
        let axes = shape.len();
        let at = if axis < 0 { axes.checked_add_signed(axis) } else { usize::try_from(axis).ok() };
        let at = at.filter(|&at| at < axes).ok_or(Error::Axis { axes, found: axis })?;
        let product = |axes: &[usize]| axes.iter().try_fold(1usize, |all, &axis| all.checked_mul(axis));
        let counted = || {
            let (outer, inner) = (product(&shape[..at])?, product(&shape[at + 1..])?);
            outer.checked_mul(inner)?.checked_mul(shape[at])?;
            Some(Self { outer, len: shape[at], inner })
        };
        counted().ok_or_else(|| Error::Values { shape: shape.to_vec() })
    }

    /// `⊕` along the axis: *outer x inner*, zeros if the axis is empty.
    ///
    /// # Errors
    /// Not as many values as the shape has.
    pub fn sum<S: Semiring>(&self, values: &[S::Weight]) -> Result<Vec<S::Weight>> {
        expect("values", self.values(), values.len())?;
        Ok(self.lines().map(|line| S::sum(self.places(line).map(|at| values[at]))).collect())
    }

    /// `⊗` along the axis: *outer x inner*, ones if the axis is empty.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn prod<S: Semiring>(&self, values: &[S::Weight]) -> Result<Vec<S::Weight>> {
        expect("values", self.values(), values.len())?;
        Ok(self.lines().map(|line| S::prod(self.places(line).map(|at| values[at]))).collect())
    }

    /// Gradient of [`sum`](Self::sum) from cotangents of its results.
    ///
    /// # Errors
    /// Not as many values as the shape has, or cotangents as there are results.
    pub fn sum_backward<S: Differentiable>(&self, values: &[f64], cotangents: &[f64]) -> Result<Vec<f64>> {
        self.backward(values, cotangents, S::sum_backward)
    }

    /// Gradient of [`prod`](Self::prod) from cotangents of its results.
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
        pull: impl Fn(&[f64], f64, &mut [f64]),
    ) -> Result<Vec<f64>> {
        expect("values", self.values(), values.len())?;
        expect("cotangents", self.outer * self.inner, cotangents.len())?;
        let (mut all, mut gradient) = (vec![0.0; values.len()], vec![0.0; self.len]);
        for (line, &g) in self.lines().zip(cotangents) {
            let operands: Vec<f64> = self.places(line).map(|at| values[at]).collect();
            pull(&operands, g, &mut gradient);
            self.places(line).zip(&gradient).for_each(|(at, &gradient)| all[at] = gradient);
        }
        Ok(all)
    }

    fn values(&self) -> usize {
        self.outer * self.len * self.inner
    }

    fn lines(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.outer * self.inner
    }

    fn places(&self, line: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let Self { len, inner, .. } = *self;
        (0..len).map(move |at| (line / inner * len + at) * inner + line % inner)
    }
}
