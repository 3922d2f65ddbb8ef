//! Where hidden rows come from: given as a matrix, or made on the fly by whoever knows how.
use crate::{Error, Real, Result, error::expect_len};

/// A packed list of N sites that can produce its hidden rows block by block and take their gradient back.
///
/// `fill`, `pull_back` and `scatter` stand for `h = φ(x)`, `dx = φ'(h) dh` and `dX += dx`.
pub trait Sites<F: Real>: Sync {
    /// What `scatter` sums into.
    type Gradient: Default + Send;
    /// N
    fn len(&self) -> usize;
    /// Whether there is no site at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// H
    fn width(&self) -> usize;
    /// A bound on the magnitude of every element of a hidden row.
    fn largest(&self) -> f64;
    /// Writes the hidden rows of some sites, *rows x H*.
    fn fill(&self, sites: &[usize], hidden: &mut [F]);
    /// Turns the gradient of the hidden rows of some sites into the gradient of what made them, in place.
    fn pull_back(&self, sites: &[usize], hidden: &[F], gradient: &mut [F]);
    /// A zero gradient.
    fn zero_gradient(&self) -> Self::Gradient;
    /// Adds the pulled-back gradient of some sites, in their order.
    fn scatter(&self, sites: &[usize], gradient: &[F], into: &mut Self::Gradient);
}

/// Sites of any kind, as the engine sees them.
pub trait DynSites<F>: Sync {
    #[doc(hidden)]
    fn count(&self) -> usize;
    #[doc(hidden)]
    fn columns(&self) -> usize;
    #[doc(hidden)]
    fn fill_rows(&self, sites: &[usize], hidden: &mut [F]);
    #[doc(hidden)]
    fn pull_back_rows(&self, sites: &[usize], hidden: &[F], gradient: &mut [F]);
}

impl<F: Real, S: Sites<F>> DynSites<F> for S {
    fn count(&self) -> usize {
        self.len()
    }
    fn columns(&self) -> usize {
        self.width()
    }
    fn fill_rows(&self, sites: &[usize], hidden: &mut [F]) {
        self.fill(sites, hidden);
    }
    fn pull_back_rows(&self, sites: &[usize], hidden: &[F], gradient: &mut [F]) {
        self.pull_back(sites, hidden, gradient);
    }
}

/// Hidden rows *N x H* that exist already.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a, F> {
    hidden: &'a [F],
    width: usize,
}

impl<'a, F: Real> Rows<'a, F> {
    /// Borrows a row-major *N x H* matrix.
    ///
    /// # Errors
    /// `width` is zero or does not divide the length.
    pub fn new(hidden: &'a [F], width: usize) -> Result<Self> {
        let sites = hidden.len().checked_div(width).ok_or(Error::Zero { argument: "width" })?;
        expect_len("hidden", sites * width, hidden.len())?;
        Ok(Self { hidden, width })
    }
}

impl<F: Real> Sites<F> for Rows<'_, F> {
    type Gradient = Vec<F>;
    fn len(&self) -> usize {
        self.hidden.len() / self.width
    }
    fn width(&self) -> usize {
        self.width
    }
    fn largest(&self) -> f64 {
        largest(self.hidden)
    }
    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        for (&site, out) in sites.iter().zip(hidden.chunks_exact_mut(self.width)) {
            out.copy_from_slice(&self.hidden[site * self.width..][..self.width]);
        }
    }
    fn pull_back(&self, _sites: &[usize], _hidden: &[F], _gradient: &mut [F]) {}
    fn zero_gradient(&self) -> Vec<F> {
        vec![F::ZERO; self.hidden.len()]
    }
    fn scatter(&self, sites: &[usize], gradient: &[F], into: &mut Vec<F>) {
        for (&site, gradient) in sites.iter().zip(gradient.chunks_exact(self.width)) {
            F::add_slice(&mut into[site * self.width..][..self.width], gradient);
        }
    }
}

/// Without a way out of the loop it is fast. A product with 0 is NaN for infinities and NaN alone.
pub(crate) fn has_infinite_or_nan<F: Real>(values: &[F], scale: F) -> bool {
    values.iter().fold(false, |bad, value| bad | (*value * scale * F::ZERO != F::ZERO))
}

/// The largest magnitude of some values.
pub(crate) fn largest<F: Real>(values: &[F]) -> f64 {
    values.iter().map(|value| value.to_f64().abs()).fold(0.0, f64::max)
}
