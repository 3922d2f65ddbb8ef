//! Encoder (am) and predictor (lm) scores from two linear layers.
//!
//! They are a source of scores for the pruned first pass. One tile of classes is computed at a
//! time, so that not all scores are stored at once.
use std::ops::Range;

use kernels::{
    Accumulate, AlignedVec, Real, View, ViewMut, WorkerSlots, add, items_mut, packing_bytes_for, par_find,
    par_for, parts, parts_mut, product_in,
};

use crate::{
    Error, Result, ScoreSource, Side, TaskScratch,
    error::expect_len,
    source::{split_matrix_runs, split_tile_runs},
};

/// A linear layer over hidden rows, borrowed.
///
/// Hidden rows *rows x H*, weight *C x H* and bias *C*.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a, F> {
    rows: &'a [F],
    weight: &'a [F],
    bias: Option<&'a [F]>,
    hidden: usize,
    classes: usize,
}

/// Gradient of a [`Linear`] layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearGradient<F> {
    /// Gradient of the hidden rows, *rows x H*; 0 in padding.
    pub rows: Vec<F>,
    /// Gradient of the weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the bias, *C*, also for a layer without one.
    pub bias: Vec<F>,
}

impl<'a, F: Real> Linear<'a, F> {
    /// Borrows row-major matrices. A bias of -inf masks its class.
    ///
    /// # Errors
    /// `hidden` is zero; there is no class; lengths do not match; a weight is not finite.
    pub fn new(rows: &'a [F], weight: &'a [F], bias: Option<&'a [F]>, hidden: usize) -> Result<Self> {
        let row_count = rows.len().checked_div(hidden).ok_or(Error::Zero { argument: "hidden" })?;
        let classes = weight.len() / hidden;
        if classes == 0 {
            return Err(Error::Zero { argument: "classes" });
        }
        expect_len("rows", row_count * hidden, rows.len())?;
        expect_len("weight", classes * hidden, weight.len())?;
        if let Some(bias) = bias {
            expect_len("bias", classes, bias.len())?;
        }
        // Only infinities and NaN give NaN when multiplied by 0. The loop has no early exit, so
        // that it is vectorized.
        let has_nonfinite =
            |weights: &[F]| weights.iter().fold(false, |any, &w| any | (w * F::ZERO != F::ZERO));
        let find_nonfinite = |_, weights: &[F]| has_nonfinite(weights).then_some(());
        if par_find(parts(weight, WEIGHTS_PER_TASK), find_nonfinite).is_some()
            && let Some(index) = weight.iter().position(|w| !w.to_f64().is_finite())
        {
            let (class, value) = (index / hidden, weight[index].to_f64());
            return Err(Error::Weight { argument: "weight", class, value });
        }
        Ok(Self { rows, weight, bias, hidden, classes })
    }

    /// Returns the weight rows of some classes.
    fn class_weights(&self, classes: &Range<usize>) -> View<'a, F> {
        View::new(&self.weight[classes.start * self.hidden..], classes.len(), self.hidden)
    }

    /// Returns some hidden rows.
    fn hidden_rows(&self, rows: &Range<usize>) -> View<'a, F> {
        View::new(&self.rows[rows.start * self.hidden..], rows.len(), self.hidden)
    }

    /// Returns the maximum packing memory of a product, in bytes.
    fn packing_bytes(&self, rows: usize, classes: usize) -> usize {
        let block_rows = rows.min(ROWS_PER_TASK);
        let bias_sums = size_of::<f64>() * CLASSES_PER_TASK.min(classes);
        let products =
            [(block_rows, self.hidden), (block_rows, classes), (CLASSES_PER_TASK.min(classes), rows)];
        bias_sums + products.map(|(m, k)| packing_bytes_for::<F>(m, k)).into_iter().max().unwrap_or(0)
    }

    /// Writes the scores of some rows and classes.
    fn fill(&self, rows: Range<usize>, classes: Range<usize>, out: &mut [F], packing: &mut AlignedVec<F>) {
        let target = ViewMut::new(&mut *out, rows.len(), classes.len());
        product_in(
            packing,
            target,
            self.hidden_rows(&rows),
            self.class_weights(&classes).transposed(),
            Accumulate::Replace,
        );
        if let Some(bias) = self.bias {
            out.chunks_exact_mut(classes.len()).for_each(|row| add(row, &bias[classes.clone()]));
        }
    }

    fn zero_gradient(&self) -> LinearGradient<F> {
        LinearGradient {
            rows: vec![F::ZERO; self.rows.len()],
            weight: vec![F::ZERO; self.weight.len()],
            bias: vec![F::ZERO; self.classes],
        }
    }

    /// Adds `dx += g W`, `dW += gᵀ x`, `db += Σ g` for score gradients g.
    fn pull_back(
        &self,
        runs: &[Range<usize>],
        classes: Range<usize>,
        gradient: &[F],
        into: &mut LinearGradient<F>,
        slots: &WorkerSlots<TaskScratch<F>>,
    ) {
        // Gradient of the hidden rows, in parallel over blocks of rows.
        let (h, width, weight) = (self.hidden, classes.len(), self.class_weights(&classes));
        let mut dx = split_matrix_runs(&mut into.rows, h, runs, ROWS_PER_TASK);
        let gradient_blocks = split_tile_runs(gradient, width, runs, ROWS_PER_TASK);
        par_for(items_mut(&mut dx), |block, dx| {
            let g = gradient_blocks[block];
            let row_count = g.len() / width;
            let (target, g) = (ViewMut::new(dx, row_count, h), View::new(g, row_count, width));
            product_in(&mut slots.lock().packing, target, g, weight, Accumulate::Add);
        });
        // Gradients of weight and bias, in parallel over blocks of classes.
        let dw = parts_mut(&mut into.weight[classes.start * h..classes.end * h], CLASSES_PER_TASK * h);
        par_for((dw, parts_mut(&mut into.bias[classes], CLASSES_PER_TASK)), |task, (dw, db)| {
            let (mut scratch, mut tiles) = (slots.lock(), gradient);
            let (first_class, class_count) = (task * CLASSES_PER_TASK, db.len());
            let mut bias_sums = vec![0.0; class_count];
            for run in runs {
                let (tile, later_tiles) = tiles.split_at(run.len() * width);
                tiles = later_tiles;
                let g = View::with_stride(&tile[first_class..], run.len(), class_count, width).transposed();
                let target = ViewMut::new(dw, class_count, h);
                product_in(&mut scratch.packing, target, g, self.hidden_rows(run), Accumulate::Add);
                for row in tile.chunks_exact(width) {
                    bias_sums.iter_mut().zip(&row[first_class..]).for_each(|(sum, g)| *sum += g.to_f64());
                }
            }
            db.iter_mut().zip(&bias_sums).for_each(|(db, &sum)| *db += F::from_f64(sum));
        });
    }
}

/// Weights of a task that checks them.
const WEIGHTS_PER_TASK: usize = 1 << 16;
/// Rows of a task of the hidden rows' gradient.
const ROWS_PER_TASK: usize = 128;
/// Classes of a task of the parameters' gradient.
const CLASSES_PER_TASK: usize = 28;

/// Scores `am = x W_amᵀ + b_am` and `lm = y W_lmᵀ + b_lm` of two layers.
///
/// Each tile of classes is computed on demand, in forward and again in backward.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a, F> {
    am: Linear<'a, F>,
    lm: Linear<'a, F>,
}

/// Gradient of [`Heads`].
#[derive(Debug, Clone, PartialEq)]
pub struct HeadsGradient<F> {
    /// Gradient of the layer of the frames.
    pub am: LinearGradient<F>,
    /// Gradient of the layer of the labels.
    pub lm: LinearGradient<F>,
}

impl<'a, F: Real> Heads<'a, F> {
    /// Combines two layers; their widths may differ, their classes may not.
    ///
    /// # Errors
    /// Different numbers of classes.
    pub fn new(am: Linear<'a, F>, lm: Linear<'a, F>) -> Result<Self> {
        match am.classes == lm.classes {
            true => Ok(Self { am, lm }),
            false => Err(Error::Classes { frames: am.classes, labels: lm.classes }),
        }
    }

    fn layer(&self, side: Side) -> &Linear<'a, F> {
        match side {
            Side::Frames => &self.am,
            Side::Labels => &self.lm,
        }
    }
}

impl<F: Real> ScoreSource<F> for Heads<'_, F> {
    type Gradient = HeadsGradient<F>;

    fn classes(&self) -> usize {
        self.am.classes
    }

    fn rows(&self, side: Side) -> usize {
        let layer = self.layer(side);
        layer.rows.len() / layer.hidden
    }

    fn packing_bytes(&self, rows: usize, classes: usize) -> usize {
        self.am.packing_bytes(rows, classes).max(self.lm.packing_bytes(rows, classes))
    }

    fn fill_scores(
        &self,
        side: Side,
        rows: Range<usize>,
        classes: Range<usize>,
        out: &mut [F],
        packing: &mut AlignedVec<F>,
    ) {
        self.layer(side).fill(rows, classes, out, packing);
    }

    fn zero_gradient(&self) -> HeadsGradient<F> {
        HeadsGradient { am: self.am.zero_gradient(), lm: self.lm.zero_gradient() }
    }

    fn add_gradient(
        &self,
        side: Side,
        runs: &[Range<usize>],
        classes: Range<usize>,
        gradient: &[F],
        into: &mut HeadsGradient<F>,
        slots: &WorkerSlots<TaskScratch<F>>,
    ) {
        let layer_gradient = match side {
            Side::Frames => &mut into.am,
            Side::Labels => &mut into.lm,
        };
        self.layer(side).pull_back(runs, classes, gradient, layer_gradient, slots);
    }
}
