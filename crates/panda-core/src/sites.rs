//! Where hidden rows come from: given as a matrix, or made on the fly by a joint network.
use std::ops::Range;

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

/// The nonlinearity of the joint network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activation {
    /// `tanh(x)`
    #[default]
    Tanh,
    /// `max(x, 0)`, with derivative 0 at 0.
    Relu,
}

/// Sites of a joint network: `h[i] = act(frames[frame_of[i]] + labels[label_of[i]])`, never kept as *N x H*.
///
/// `frames` and `labels` are the two projections that the joint adds; neighbouring sites should share a frame.
#[derive(Debug, Clone, Copy)]
pub struct JointSites<'a, F> {
    frames: &'a [F],
    labels: &'a [F],
    frame_of: &'a [u32],
    label_of: &'a [u32],
    width: usize,
    activation: Activation,
}

/// Gradient of the two projections of [`JointSites`], shaped like them.
#[derive(Debug, Clone, PartialEq)]
pub struct JointGradient<F> {
    /// Gradient of the frame rows.
    pub frames: Vec<F>,
    /// Gradient of the label rows.
    pub labels: Vec<F>,
}

impl<F> Default for JointGradient<F> {
    fn default() -> Self {
        Self { frames: Vec::new(), labels: Vec::new() }
    }
}

impl<F: Real> JointGradient<F> {
    /// Zeros of so many elements each.
    pub fn zero(frames: usize, labels: usize) -> Self {
        Self { frames: kernels::zeros(frames), labels: kernels::zeros(labels) }
    }
}

impl<'a, F: Real> JointSites<'a, F> {
    /// Borrows frame rows *[.., H]*, label rows *[.., H]* and, for each site, an index into either.
    ///
    /// # Errors
    /// `width` is zero, lengths do not fit, an index points past its rows, or a row that a site uses is infinite.
    pub fn new(
        frames: &'a [F],
        labels: &'a [F],
        frame_of: &'a [u32],
        label_of: &'a [u32],
        width: usize,
        activation: Activation,
    ) -> Result<Self> {
        expect_len("label_of", frame_of.len(), label_of.len())?;
        for (argument, rows, of) in [("frame_of", frames, frame_of), ("label_of", labels, label_of)] {
            let count = rows.len().checked_div(width).ok_or(Error::Zero { argument: "width" })?;
            expect_len(if argument == "frame_of" { "frames" } else { "labels" }, count * width, rows.len())?;
            if let Some(site) = of.iter().position(|&row| row as usize >= count) {
                return Err(Error::RowOutOfRange { argument, site, row: of[site] as usize, rows: count });
            }
        }
        for (argument, rows, of) in [("frames", frames, frame_of), ("labels", labels, label_of)] {
            // Each row once, and only rows that a site uses: padding is not read. A few utterances of a large batch
            // cost no more than they would alone.
            let first = of.iter().min().copied().unwrap_or(0);
            let mut seen = vec![false; of.iter().max().map_or(0, |&last| (last - first) as usize + 1)];
            for (site, &row) in of.iter().enumerate() {
                if !std::mem::replace(&mut seen[(row - first) as usize], true) {
                    let values = &rows[row as usize * width..][..width];
                    if has_infinite_or_nan(values, F::ONE)
                        && let Some(value) = values.iter().map(|v| v.to_f64()).find(|v| v.is_infinite())
                    {
                        return Err(Error::InfiniteRow { argument, site, value });
                    }
                }
            }
        }
        Ok(Self { frames, labels, frame_of, label_of, width, activation })
    }

    fn row(&self, index: u32) -> Range<usize> {
        index as usize * self.width..(index as usize + 1) * self.width
    }
}

impl<F: Real> Sites<F> for JointSites<'_, F> {
    type Gradient = JointGradient<F>;
    fn len(&self) -> usize {
        self.frame_of.len()
    }
    fn width(&self) -> usize {
        self.width
    }
    fn largest(&self) -> f64 {
        let used =
            |rows: &[F], of: &[u32]| of.iter().map(|&row| largest(&rows[self.row(row)])).fold(0.0, f64::max);
        match self.activation {
            Activation::Tanh => 1.0,
            Activation::Relu => used(self.frames, self.frame_of) + used(self.labels, self.label_of),
        }
    }
    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        for (&site, out) in sites.iter().zip(hidden.chunks_exact_mut(self.width)) {
            let frame = &self.frames[self.row(self.frame_of[site])];
            let label = &self.labels[self.row(self.label_of[site])];
            match self.activation {
                Activation::Tanh => F::tanh_sum(out, frame, label),
                Activation::Relu => {
                    for (h, (f, g)) in out.iter_mut().zip(frame.iter().zip(label)) {
                        let sum = *f + *g;
                        // Written so that a NaN stays one.
                        *h = if sum < F::ZERO { F::ZERO } else { sum };
                    }
                }
            }
        }
    }
    fn pull_back(&self, _sites: &[usize], hidden: &[F], gradient: &mut [F]) {
        match self.activation {
            Activation::Tanh => F::tanh_slope(gradient, hidden),
            Activation::Relu => {
                let pairs = gradient.iter_mut().zip(hidden);
                pairs.for_each(|(g, &h)| *g = if h > F::ZERO { *g } else { F::ZERO });
            }
        }
    }
    fn zero_gradient(&self) -> JointGradient<F> {
        JointGradient::zero(self.frames.len(), self.labels.len())
    }
    fn scatter(&self, sites: &[usize], gradient: &[F], into: &mut JointGradient<F>) {
        let sum = |of: &[u32], into: &mut [F]| {
            for (&site, g) in sites.iter().zip(gradient.chunks_exact(self.width)) {
                F::add_slice(&mut into[self.row(of[site])], g);
            }
        };
        let JointGradient { frames, labels } = into;
        rayon::join(|| sum(self.frame_of, frames), || sum(self.label_of, labels));
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
