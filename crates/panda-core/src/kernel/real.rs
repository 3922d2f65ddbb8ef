//! The two floating-point types that the rows may have.
use super::{Accumulate, View, ViewMut, dispatch, product};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` (vectorised) or `f64` (plain, for references and checks); sealed.
pub trait Real:
    sealed::Sealed
    + Copy
    + Send
    + Sync
    + PartialOrd
    + Default
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::AddAssign
    + std::ops::MulAssign
    + std::ops::Neg<Output = Self>
    + 'static
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// -inf
    const NEG_INFINITY: Self;
    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;
    /// The same value, wider.
    fn to_f64(self) -> f64;
    /// See [`super::product`], which checks the shapes first.
    #[doc(hidden)]
    fn product(out: ViewMut<Self>, a: View<Self>, b: View<Self>, alpha: Self, how: Accumulate);
    /// See [`super::exp`].
    #[doc(hidden)]
    fn exp_slice(values: &mut [Self]);
    /// See [`super::tanh`].
    #[doc(hidden)]
    fn tanh_slice(values: &mut [Self]);
    /// See [`super::sigmoid`].
    #[doc(hidden)]
    fn sigmoid_slice(values: &mut [Self]);
    /// See [`super::add`].
    #[doc(hidden)]
    fn add_slice(out: &mut [Self], row: &[Self]);
    /// The largest element that is not NaN; -inf for an empty row.
    #[doc(hidden)]
    fn row_max(row: &[Self]) -> Self;
    /// `Σ exp(z - max)`, summed in `f64`; NaN if any element is NaN.
    #[doc(hidden)]
    fn row_exp_sum(row: &[Self], max: Self) -> f64;
    /// `z = factor · exp(z - max)`
    #[doc(hidden)]
    fn row_exp_scale(row: &mut [Self], max: Self, factor: Self);
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;
    fn from_f64(value: f64) -> f32 {
        value as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn product(out: ViewMut<f32>, a: View<f32>, b: View<f32>, alpha: f32, how: Accumulate) {
        product::faer_product(out, a, b, alpha, how);
    }
    fn exp_slice(values: &mut [f32]) {
        dispatch::exp(values);
    }
    fn tanh_slice(values: &mut [f32]) {
        dispatch::tanh(values);
    }
    fn sigmoid_slice(values: &mut [f32]) {
        dispatch::sigmoid(values);
    }
    fn add_slice(out: &mut [f32], row: &[f32]) {
        dispatch::add(out, row);
    }
    fn row_max(row: &[f32]) -> f32 {
        dispatch::row_max(row)
    }
    fn row_exp_sum(row: &[f32], max: f32) -> f64 {
        dispatch::row_exp_sum(row, max)
    }
    fn row_exp_scale(row: &mut [f32], max: f32, factor: f32) {
        dispatch::row_exp_scale(row, max, factor);
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;
    fn from_f64(value: f64) -> f64 {
        value
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn product(out: ViewMut<f64>, a: View<f64>, b: View<f64>, alpha: f64, how: Accumulate) {
        product::faer_product(out, a, b, alpha, how);
    }
    fn exp_slice(values: &mut [f64]) {
        values.iter_mut().for_each(|x| *x = x.exp());
    }
    fn tanh_slice(values: &mut [f64]) {
        values.iter_mut().for_each(|x| *x = x.tanh());
    }
    fn sigmoid_slice(values: &mut [f64]) {
        values.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
    }
    fn add_slice(out: &mut [f64], row: &[f64]) {
        out.iter_mut().zip(row).for_each(|(o, x)| *o += x);
    }
    fn row_max(row: &[f64]) -> f64 {
        row.iter().fold(f64::NEG_INFINITY, |m, &z| if z > m { z } else { m })
    }
    fn row_exp_sum(row: &[f64], max: f64) -> f64 {
        row.iter().map(|&z| (z - max).exp()).sum()
    }
    fn row_exp_scale(row: &mut [f64], max: f64, factor: f64) {
        row.iter_mut().for_each(|z| *z = factor * (*z - max).exp());
    }
}
