//! Source of the hidden rows that the selected normalizer reads.
//!
//! A site is a lattice node (t, u); its hidden row is the joint network's output. [`Rows`] is a
//! matrix of hidden rows; a joint network implements [`Sites`] to compute them on demand.
use crate::{Error, Real, Result, error::expect_len};

/// N sites that compute hidden rows in blocks and propagate gradients.
///
/// `fill` computes `h = φ(x)`, `pull_back` computes `dx = φ'(h) dh`, and `scatter` adds `dX += dx`.
/// x: input of the activation φ at a site; h: hidden row; X: all inputs.
pub trait Sites<F: Real>: Sync {
    /// The gradient that `scatter` adds to.
    type Gradient: Default + Send;
    /// Returns the number of sites N.
    fn len(&self) -> usize;
    /// Returns whether there is no site.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns the width H of hidden rows.
    fn width(&self) -> usize;
    /// Returns a bound on the magnitude of all elements of hidden rows.
    fn max_abs(&self) -> f64;
    /// Writes the hidden rows of some sites, *rows x H*.
    fn fill(&self, sites: &[usize], hidden: &mut [F]);
    /// Overwrites the gradient of hidden rows by that of their inputs.
    fn pull_back(&self, sites: &[usize], hidden: &[F], gradient: &mut [F]);
    /// Creates a zero gradient.
    fn zero_gradient(&self) -> Self::Gradient;
    /// Adds the gradient of the inputs of some sites, in their order.
    fn scatter(&self, sites: &[usize], gradient: &[F], into: &mut Self::Gradient);
}

/// Type-erased [`Sites`], for which the engine is compiled once.
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

/// Hidden rows *N x H* as a borrowed matrix.
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
    fn max_abs(&self) -> f64 {
        max_abs(self.hidden)
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

/// Returns whether a scaled value is infinite or NaN.
///
/// Only these give NaN when multiplied by 0. The loop has no early exit, so that it is vectorized.
pub(crate) fn has_infinite_or_nan<F: Real>(values: &[F], scale: F) -> bool {
    values.iter().fold(false, |is_bad, value| is_bad | (*value * scale * F::ZERO != F::ZERO))
}

/// Returns the largest magnitude of some values.
pub(crate) fn max_abs<F: Real>(values: &[F]) -> f64 {
    values.iter().map(|value| value.to_f64().abs()).fold(0.0, f64::max)
}
