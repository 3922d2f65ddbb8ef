//! Hidden rows of a transducer's joint network, computed on demand.
//!
//! A site is a lattice node (t, u). Its hidden row is `h(t,u) = dropout(act(encoded[t] +
//! predicted[u]))`: of a frame row (projected encoder output) and a label row (projected predictor
//! output), whose indices are listed per site. Hidden rows exist only for the sites that the
//! normalizer processes at the time; their gradients are added to those of frame rows and label
//! rows.
use std::ops::Range;

use kernels::{par_for, parts_mut};
use panda_core::Real;
use panda_core::Sites;
use rnnt_dp::Lattices;

use crate::{
    Activation, Error, Result, Targets,
    dropout::DropoutMask,
    inputs::InputValues,
    site_buffers::{RowIndices, clear_with_capacity},
    targets::RowStarts,
};

/// Checked joint network of a batch, without the values of its rows.
pub(crate) struct JointSpec {
    pub width: usize,
    /// First frame row of each utterance.
    pub frames: RowStarts,
    /// First label row of each utterance.
    pub labels: RowStarts,
    pub activation: Activation,
    pub mask: Option<DropoutMask>,
}

impl JointSpec {
    /// Lists frame row, label row and mask key of each site.
    ///
    /// Sites are those of a range of utterances. Without dropout there are no keys. Reuses the
    /// buffers of `spare`.
    ///
    /// # Errors
    /// A row with an infinite value, which the nonlinearity would hide. Padding is not read.
    pub(crate) fn row_indices<F: Real>(
        &self,
        values: &InputValues<F>,
        targets: &Targets,
        utterances: Range<usize>,
        spare: RowIndices,
    ) -> Result<RowIndices> {
        let (Self { width, mask, .. }, lattices) = (self, targets.lattices());
        let num_sites =
            lattices.site_range(utterances.end - 1).end - lattices.site_range(utterances.start).start;
        let RowIndices { rows, label_rows, mask_keys } = spare;
        let mut frame_rows = clear_with_capacity(rows, num_sites);
        let mut label_rows = clear_with_capacity(label_rows, num_sites);
        let mut mask_keys = clear_with_capacity(mask_keys, if mask.is_some() { num_sites } else { 0 });
        for b in utterances {
            let (first_frame_row, first_label_row) = (self.frames.start(b), self.labels.start(b));
            let rows = first_frame_row..first_frame_row + targets.frames(b);
            reject_infinite(values.encoded, *width, rows, "an infinite frame row", lattices, b)?;
            let rows = first_label_row..first_label_row + targets.labels(b).len() + 1;
            reject_infinite(values.predicted, *width, rows, "an infinite label row", lattices, b)?;
            for site in lattices.utterance_sites(b) {
                frame_rows.push((first_frame_row + site.frame) as u32);
                label_rows.push((first_label_row + site.label) as u32);
                mask_keys.extend(mask.map(|mask| mask.key(targets.id(b), site)));
            }
        }
        Ok(RowIndices { rows: frame_rows, label_rows, mask_keys })
    }
}

/// Hidden units whose gradients are computed together with dropout.
const UNITS_PER_BLOCK: usize = 64;

/// Hidden rows of a group of utterances, computed when they are read.
pub(crate) struct JointHiddenRows<'a, F> {
    encoded: &'a [F],
    predicted: &'a [F],
    width: usize,
    activation: Activation,
    mask: Option<DropoutMask>,
    /// Frame row, label row and mask key of each site.
    indices: RowIndices,
}

impl<'a, F: Real> JointHiddenRows<'a, F> {
    /// Creates the hidden rows of the sites that [`JointSpec::row_indices`] lists.
    pub(crate) fn new(joint: &JointSpec, values: &InputValues<'a, F>, indices: RowIndices) -> Self {
        let JointSpec { width, activation, mask, .. } = *joint;
        Self { encoded: values.encoded, predicted: values.predicted, width, activation, mask, indices }
    }

    /// Bytes per site in each list of [`RowIndices`].
    pub(crate) fn index_bytes(has_dropout: bool) -> [usize; 3] {
        [size_of::<u32>(), size_of::<u32>(), if has_dropout { size_of::<u64>() } else { 0 }]
    }

    /// Releases the row indices of the sites.
    pub(crate) fn into_indices(self) -> RowIndices {
        self.indices
    }

    /// Range of a row among the values of its matrix.
    fn row_range(&self, row: u32) -> Range<usize> {
        row as usize * self.width..(row as usize + 1) * self.width
    }

    /// Factor of the units that dropout does not drop.
    fn dropout_scale(&self) -> f64 {
        self.mask.map_or(1.0, |mask| mask.scale())
    }

    /// Bound on the derivative of a hidden unit by its inputs.
    pub(crate) fn max_slope(&self) -> f64 {
        // The slope of every activation is at most 1.
        self.dropout_scale()
    }
}

/// Gradients of the input rows, by the names of the inputs.
#[derive(Debug)]
pub(crate) struct RowGradients<F> {
    pub encoded: Vec<F>,
    pub predicted: Vec<F>,
    pub hidden: Vec<F>,
}

impl<F> Default for RowGradients<F> {
    fn default() -> Self {
        Self { encoded: Vec::new(), predicted: Vec::new(), hidden: Vec::new() }
    }
}

/// Fails if a row of an utterance has an infinite value; reports the first site that uses it.
fn reject_infinite<F: Real>(
    rows: &[F],
    width: usize,
    range: Range<usize>,
    found: &'static str,
    lattices: &Lattices,
    utterance: usize,
) -> Result<()> {
    let first_row = range.start;
    for row in range {
        let values = &rows[row * width..][..width];
        // Without an early exit the loop is vectorized. A product with 0 is NaN only for infinities
        // and NaN.
        let has_nonfinite = values.iter().fold(false, |any, &value| any | (value * F::ZERO != F::ZERO));
        if has_nonfinite && values.iter().any(|value| value.to_f64().is_infinite()) {
            let uses_row = |site: &rnnt_dp::Site| match found.contains("frame") {
                true => site.frame == row - first_row,
                false => site.label == row - first_row,
            };
            // A row that no site within the bands uses is ignored.
            let Some(site) = lattices.utterance_sites(utterance).find(uses_row) else { continue };
            return Err(Error::Scores { utterance, frame: site.frame, label: site.label, found });
        }
    }
    Ok(())
}

impl<F: Real> Sites<F> for JointHiddenRows<'_, F> {
    /// Gradients of the encoder and predictor rows.
    type Gradient = RowGradients<F>;

    fn len(&self) -> usize {
        self.indices.rows.len()
    }

    fn width(&self) -> usize {
        self.width
    }

    fn max_abs(&self) -> f64 {
        let max_abs = |rows: &[F], indices: &[u32]| {
            let row = |&row: &u32| &rows[self.row_range(row)];
            indices.iter().flat_map(row).map(|value| value.to_f64().abs()).fold(0.0, f64::max)
        };
        let input_bound =
            || max_abs(self.encoded, &self.indices.rows) + max_abs(self.predicted, &self.indices.label_rows);
        self.dropout_scale() * self.activation.bound(input_bound)
    }

    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        for (&site, out) in sites.iter().zip(hidden.chunks_exact_mut(self.width)) {
            let frame = &self.encoded[self.row_range(self.indices.rows[site])];
            let label = &self.predicted[self.row_range(self.indices.label_rows[site])];
            self.activation.forward(out, frame, label);
            if let Some(mask) = self.mask {
                mask.apply(self.indices.mask_keys[site], out);
            }
        }
    }

    fn pull_back(&self, sites: &[usize], hidden: &[F], gradient: &mut [F]) {
        let Some(mask) = self.mask else { return self.activation.backward(gradient, hidden) };
        let inverse_scale = F::from_f64(1.0 / mask.scale());
        let rows = hidden.chunks_exact(self.width).zip(gradient.chunks_exact_mut(self.width));
        for (&site, (hidden, gradient)) in sites.iter().zip(rows) {
            // The derivative of the activation requires its value before the scale of dropout.
            // Dropped units get no gradient by the mask below.
            let mut activated = [F::ZERO; UNITS_PER_BLOCK];
            for (gradient, hidden) in gradient.chunks_mut(UNITS_PER_BLOCK).zip(hidden.chunks(UNITS_PER_BLOCK))
            {
                activated.iter_mut().zip(hidden).for_each(|(value, &hidden)| *value = hidden * inverse_scale);
                self.activation.backward(gradient, &activated[..hidden.len()]);
            }
            mask.apply(self.indices.mask_keys[site], gradient);
        }
    }

    fn zero_gradient(&self) -> RowGradients<F> {
        let [encoded, predicted] = [self.encoded, self.predicted].map(|rows| kernels::zeros(rows.len()));
        RowGradients { encoded, predicted, hidden: Vec::new() }
    }

    fn scatter(&self, sites: &[usize], gradient: &[F], sums: &mut RowGradients<F>) {
        let RowGradients { encoded, predicted, .. } = sums;
        let RowIndices { rows: frame_rows, label_rows, .. } = &self.indices;
        let add = |indices: &[u32], sum: &mut [F]| {
            add_rows(gradient, self.width, |row| indices[sites[row]] as usize, sum);
        };
        rayon::join(|| add(frame_rows, encoded), || add(label_rows, predicted));
    }
}

/// Most parallel tasks of a sum of rows.
const MAX_TASKS: usize = 64;

/// Adds each gradient row to row `row_of(row)` of a sum, in order.
///
/// ```text
/// par for each range of rows of the sum:
///     for each row of the gradient that belongs to it:  sum += gradient
/// ```
pub(crate) fn add_rows<F: Real>(
    gradient: &[F],
    width: usize,
    row_of: impl Fn(usize) -> usize + Sync,
    sum: &mut [F],
) {
    let num_rows = gradient.len() / width;
    let (min_row, max_row) =
        (0..num_rows).map(&row_of).fold((usize::MAX, 0), |(min, max), row| (min.min(row), max.max(row)));
    if num_rows == 0 {
        return;
    }
    let rows_per_task = (max_row + 1 - min_row).div_ceil(MAX_TASKS);
    let used_rows = &mut sum[min_row * width..(max_row + 1) * width];
    par_for(parts_mut(used_rows, rows_per_task * width), |task, task_sum| {
        let first_row = min_row + task * rows_per_task;
        let task_rows = first_row..first_row + task_sum.len() / width;
        for (row, gradient) in gradient.chunks_exact(width).enumerate() {
            let sum_row = row_of(row);
            if task_rows.contains(&sum_row) {
                F::add_slice(&mut task_sum[(sum_row - first_row) * width..][..width], gradient);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_rows_have_the_bits_of_a_plain_loop() {
        let (rows, width, sum_rows) = (700, 3, 300);
        // Values of different magnitudes, so that another order gives other bits; some rows stay
        // unchanged.
        let gradient: Vec<f32> = (0..rows * width).map(|i| 1.1f32.powi((i * 37 % 101) as i32 - 50)).collect();
        for row_of in [|row: usize| row * row % 271 + 7, |row| row / 3, |_| 299] {
            let (mut actual, mut expected) = (vec![0.5; sum_rows * width], vec![0.5; sum_rows * width]);
            add_rows(&gradient, width, row_of, &mut actual);
            for (i, g) in gradient.iter().enumerate() {
                expected[row_of(i / width) * width + i % width] += g;
            }
            assert_eq!(actual, expected);
        }
        let mut unchanged = [1.0f64];
        add_rows(&[], 1, |row| row, &mut unchanged);
        assert_eq!(unchanged, [1.0]);
    }
}
