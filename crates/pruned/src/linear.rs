//! Scores that two linear layers make from hidden rows, never kept as rows x classes.
use std::ops::Range;

use kernels::{Accumulate, Affine, Real, View};
use rayon::prelude::*;

use crate::{
    Error, Result, Side, Source,
    error::expect,
    source::{blocks, blocks_mut},
};

/// Hidden rows *rows x H*, weight *C x H* and bias *C* of one linear layer, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a, F> {
    rows: &'a [F],
    weight: &'a [F],
    bias: Option<&'a [F]>,
    hidden: usize,
    classes: usize,
}

/// Gradient of one [`Linear`].
#[derive(Debug, Clone, PartialEq)]
pub struct LinearGradient<F> {
    /// Gradient of the hidden rows, *rows x H*; 0 in padding.
    pub rows: Vec<F>,
    /// Gradient of the weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the bias, *C*; also there for a layer without one.
    pub bias: Vec<F>,
}

impl<'a, F: Real> Linear<'a, F> {
    /// Borrows row-major matrices. A bias of -inf masks its class.
    ///
    /// # Errors
    /// `hidden` is zero, there is no class, lengths do not fit, a weight is not finite.
    pub fn new(rows: &'a [F], weight: &'a [F], bias: Option<&'a [F]>, hidden: usize) -> Result<Self> {
        let count = rows.len().checked_div(hidden).ok_or(Error::Zero { argument: "hidden" })?;
        let classes = weight.len() / hidden;
        if classes == 0 {
            return Err(Error::Zero { argument: "classes" });
        }
        expect("rows", count * hidden, rows.len())?;
        expect("weight", classes * hidden, weight.len())?;
        if let Some(bias) = bias {
            expect("bias", classes, bias.len())?;
        }
        // Times 0 only what is not finite stays different from 0; without a way out of the loop it is fast.
        let odd = |weights: &[F]| weights.iter().fold(false, |odd, &w| odd | (w * F::ZERO != F::ZERO));
        if weight.par_chunks(1 << 16).any(odd)
            && let Some(at) = weight.iter().position(|w| !w.to_f64().is_finite())
        {
            let (class, value) = (at / hidden, weight[at].to_f64());
            return Err(Error::Weight { argument: "weight", class, value });
        }
        Ok(Self { rows, weight, bias, hidden, classes })
    }

    /// The layer of some classes.
    fn of(&self, classes: &Range<usize>) -> Affine<'a, F> {
        let weight = &self.weight[classes.start * self.hidden..classes.end * self.hidden];
        let bias = self.bias.map(|bias| &bias[classes.clone()]);
        Affine::new(View::new(weight, classes.len(), self.hidden).transposed(), bias)
    }

    fn fill(&self, rows: Range<usize>, classes: Range<usize>, out: &mut [F]) {
        self.of(&classes).forward(&self.rows[rows.start * self.hidden..rows.end * self.hidden], out);
    }

    fn zero_gradient(&self) -> LinearGradient<F> {
        LinearGradient {
            rows: vec![F::ZERO; self.rows.len()],
            weight: vec![F::ZERO; self.weight.len()],
            bias: vec![F::ZERO; self.classes],
        }
    }

    /// `dx += g W`, `dW += gᵀ x`, `db += Σ g`.
    fn pull_back(
        &self,
        runs: &[Range<usize>],
        classes: Range<usize>,
        gradient: &[F],
        into: &mut LinearGradient<F>,
    ) {
        let (h, width, layer) = (self.hidden, classes.len(), self.of(&classes));
        let dx = blocks_mut(&mut into.rows, h, runs, ROWS);
        dx.into_par_iter()
            .zip(blocks(gradient, width, runs, ROWS))
            .for_each(|(dx, g)| layer.backward_rows(g, dx, Accumulate::Add));
        let mut tiles = gradient;
        let of_run = |run: &Range<usize>| {
            let (tile, rest) = tiles.split_at(run.len() * width);
            tiles = rest;
            (&self.rows[run.start * h..run.end * h], tile)
        };
        let runs: Vec<_> = runs.iter().map(of_run).collect();
        let dw = &mut into.weight[classes.start * h..classes.end * h];
        layer.backward_parameters(&runs, dw, &mut into.bias[classes]);
    }
}

/// Rows a task.
const ROWS: usize = 128;

/// Scores `am = x W_amᵀ + b_am` and `lm = y W_lmᵀ + b_lm`.
///
/// Each tile of classes is computed when it is needed, in forward and again in backward.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a, F> {
    am: Linear<'a, F>,
    lm: Linear<'a, F>,
}

/// Gradient of [`Heads`].
#[derive(Debug, Clone, PartialEq)]
pub struct HeadsGradient<F> {
    /// Of the layer of the frames.
    pub am: LinearGradient<F>,
    /// Of the layer of the labels.
    pub lm: LinearGradient<F>,
}

impl<'a, F: Real> Heads<'a, F> {
    /// The layers of the frames and of the labels; their widths may differ, their classes may not.
    ///
    /// # Errors
    /// Different numbers of classes.
    pub fn new(am: Linear<'a, F>, lm: Linear<'a, F>) -> Result<Self> {
        match am.classes == lm.classes {
            true => Ok(Self { am, lm }),
            false => Err(Error::Classes { frames: am.classes, labels: lm.classes }),
        }
    }

    fn side(&self, side: Side) -> &Linear<'a, F> {
        match side {
            Side::Frames => &self.am,
            Side::Labels => &self.lm,
        }
    }
}

impl<F: Real> Source<F> for Heads<'_, F> {
    type Gradient = HeadsGradient<F>;

    fn classes(&self) -> usize {
        self.am.classes
    }

    fn rows(&self, side: Side) -> usize {
        let layer = self.side(side);
        layer.rows.len() / layer.hidden
    }

    fn fill(&self, side: Side, rows: Range<usize>, classes: Range<usize>, out: &mut [F]) {
        self.side(side).fill(rows, classes, out);
    }

    fn zero_gradient(&self) -> HeadsGradient<F> {
        HeadsGradient { am: self.am.zero_gradient(), lm: self.lm.zero_gradient() }
    }

    fn pull_back(
        &self,
        side: Side,
        runs: &[Range<usize>],
        classes: Range<usize>,
        gradient: &[F],
        into: &mut HeadsGradient<F>,
    ) {
        let into = match side {
            Side::Frames => &mut into.am,
            Side::Labels => &mut into.lm,
        };
        self.side(side).pull_back(runs, classes, gradient, into);
    }
}
