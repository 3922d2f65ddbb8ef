//! The Conformer's depthwise convolution over time, as one candle operation.
//!
//! Each of W channels has a filter of k taps. Ragged rows are the frames of all utterances without
//! padding, T_b of utterance b.
use std::sync::Arc;

use candle_core::{Shape, Tensor};
use kernels::{Real, items_mut, par_for};

use crate::operation::{SliceOperation, apply3, sum_partials};
use crate::ragged::Ragged;
use crate::{Error, Result};

/// Rows that one task processes.
const ROWS_PER_TASK: usize = 64;
/// Channels whose sums are in registers at a time.
const CHANNELS_PER_BLOCK: usize = 16;

/// Convolves each channel of an utterance over time, with zero padding.
///
/// `y[t] = b + Σ_j w[:, j] ∘ x[t + j - past_taps]`
///
/// # Shapes
/// `x [Σ T_b, W]`, `weight [W, k]`, `bias [W]`; returns `[Σ T_b, W]`.
///
/// # Errors
/// [`Error::Shape`] if shapes or dtypes do not match.
///
/// Cost: `O(Σ T_b · W · k)` time; only `x` is saved.
pub fn depthwise(
    x: &Tensor,
    ragged: &Arc<Ragged>,
    weight: &Tensor,
    bias: &Tensor,
    past_taps: usize,
) -> Result<Tensor> {
    let (_, width) = x.dims2()?;
    let is_valid = matches!(weight.dims(), &[w, k] if w == width && k > past_taps) && bias.dims() == [width];
    if !is_valid || x.dims()[0] != ragged.rows() {
        let expected = format!("[{width}, more than {past_taps}], a bias and {} rows", ragged.rows());
        let actual = format!("{:?}, {:?} and {} rows", weight.dims(), bias.dims(), x.dims()[0]);
        return Err(Error::shape("weight", expected, actual));
    }
    let operation = Depthwise { ragged: ragged.clone(), width, taps: weight.dim(1)?, past_taps };
    apply3(operation, x, weight, bias)
}

/// The operation of [`depthwise`].
struct Depthwise {
    ragged: Arc<Ragged>,
    width: usize,
    taps: usize,
    /// Taps that apply to earlier frames.
    past_taps: usize,
}

/// Transposes a weight `[W, k]` to `[k, W]`.
pub fn transpose_weight<F: Real>(weight: &[F], taps: usize) -> Vec<F> {
    let width = weight.len() / taps;
    (0..taps * width).map(|i| weight[i % width * taps + i / width]).collect()
}

/// Computes the last rows of each utterance, with a weight `[k, W]`.
///
/// `ragged` has the numbers of these rows; `utterances` have rows before them as well. `past_taps`
/// taps apply to earlier frames, the next one to the output's own frame.
///
/// # Shapes
/// Each of `utterances` `[at least T_b, W]`; returns `[Σ T_b, W]`.
///
/// # Panics
/// If there are fewer utterances or rows than in `ragged`.
pub fn last_rows<F: Real>(
    ragged: &Ragged,
    utterances: &[&[F]],
    weight: &[F],
    bias: &[F],
    past_taps: usize,
) -> Vec<F> {
    let width = bias.len();
    let mut out = kernels::alloc(ragged.rows() * width, F::ZERO);
    par_for(items_mut(&mut ragged.blocks(&mut out, width, ROWS_PER_TASK)), |_, block| {
        let x = utterances[block.utterance];
        let earlier_rows = x.len() / width - ragged.range(block.utterance).len();
        compute_rows(x, earlier_rows + block.first_row, weight, bias, past_taps, block.rows);
    });
    out
}

/// Computes the outputs `first_row ..` of an utterance `x`; see [`last_rows`].
fn compute_rows<F: Real>(
    x: &[F],
    first_row: usize,
    weight: &[F],
    bias: &[F],
    past_taps: usize,
    out: &mut [F],
) {
    let width = bias.len();
    let (taps, frames) = (weight.len() / width, x.len() / width);
    for (t, out) in (first_row..).zip(out.chunks_exact_mut(width)) {
        // Taps outside the utterance are omitted.
        let first_tap = past_taps.saturating_sub(t);
        let end_tap = taps.min(frames + past_taps - t);
        for (channel, out) in (0..).step_by(CHANNELS_PER_BLOCK).zip(out.chunks_mut(CHANNELS_PER_BLOCK)) {
            let channels = out.len();
            if let Ok(out) = <&mut [F; CHANNELS_PER_BLOCK]>::try_from(&mut *out) {
                // One sum for each channel, in registers.
                let mut sums: [F; CHANNELS_PER_BLOCK] =
                    bias[channel..channel + CHANNELS_PER_BLOCK].try_into().expect("a block of channels");
                for j in first_tap..end_tap {
                    let x = &x[(t + j - past_taps) * width + channel..][..CHANNELS_PER_BLOCK];
                    let w = &weight[j * width + channel..][..CHANNELS_PER_BLOCK];
                    sums.iter_mut().zip(x.iter().zip(w)).for_each(|(sum, (&x, &w))| *sum += x * w);
                }
                *out = sums;
                continue;
            }
            // The last block may have fewer channels.
            out.copy_from_slice(&bias[channel..channel + channels]);
            for j in first_tap..end_tap {
                let x = &x[(t + j - past_taps) * width + channel..][..channels];
                let w = &weight[j * width + channel..][..channels];
                out.iter_mut().zip(x.iter().zip(w)).for_each(|(sum, (&x, &w))| *sum += x * w);
            }
        }
    }
}

impl Depthwise {
    /// Convolves all utterances, with a weight `[k, W]`.
    fn convolve<F: Real>(&self, x: &[F], weight: &[F], bias: &[F], past_taps: usize) -> Vec<F> {
        let utterances: Vec<&[F]> =
            (0..self.ragged.utterances()).map(|b| self.ragged.utterance(x, self.width, b)).collect();
        last_rows(&self.ragged, &utterances, weight, bias, past_taps)
    }
}

impl SliceOperation<3> for Depthwise {
    const NAME: &'static str = "depthwise convolution";

    fn shape(&self) -> Shape {
        Shape::from((self.ragged.rows(), self.width))
    }

    fn forward<F: Real>(&self, [x, weight, bias]: [&[F]; 3]) -> Vec<F> {
        self.convolve(x, &transpose_weight(weight, self.taps), bias, self.past_taps)
    }

    /// Computes the gradients.
    ///
    /// ```text
    /// dx[s] = Σ_j w[:, j] ∘ dy[s - j + past_taps]      dw[:, j] = Σ_t dy[t] ∘ x[t + j - past_taps]
    /// db = Σ dy
    /// ```
    fn backward<F: Real>(&self, [x, weight, _]: [&[F]; 3], _: &[F], d_out: &[F], _: bool) -> [Vec<F>; 3] {
        let (width, taps, past_taps) = (self.width, self.taps, self.past_taps);
        let reversed: Vec<F> = weight.chunks_exact(taps).flat_map(|w| w.iter().rev().copied()).collect();
        let zeros = vec![F::ZERO; width];
        let dx = self.convolve(d_out, &transpose_weight(&reversed, taps), &zeros, taps - 1 - past_taps);
        // Gradients of weight and bias, of each utterance.
        let parameter_count = (taps + 1) * width;
        let mut partials = vec![F::ZERO; self.ragged.utterances() * parameter_count];
        par_for(kernels::parts_mut(&mut partials, parameter_count), |b, partial| {
            let [x, d_out] = [x, d_out].map(|rows| self.ragged.utterance(rows, width, b));
            let (dw, db) = partial.split_at_mut(taps * width);
            for (t, dy) in d_out.chunks_exact(width).enumerate() {
                db.iter_mut().zip(dy).for_each(|(db, &dy)| *db += dy);
                let first_tap = past_taps.saturating_sub(t);
                let end_tap = taps.min(x.len() / width + past_taps - t);
                for j in first_tap..end_tap {
                    let x = &x[(t + j - past_taps) * width..][..width];
                    let dw = &mut dw[j * width..][..width];
                    dw.iter_mut().zip(x.iter().zip(dy)).for_each(|(dw, (&x, &dy))| *dw += x * dy);
                }
            }
        });
        let mut dw = sum_partials(&partials, parameter_count);
        let db = dw.split_off(taps * width);
        [dx, transpose_weight(&dw, width), db]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::tests::{check_gradients, test_values, values};

    #[test]
    fn values_are_plain_sums_and_gradients_equal_finite_differences() {
        for (lengths, width, taps, past_taps) in [
            (&[3, 0, 7][..], 3, 5, 2),
            (&[4, 1], 3, 4, 3),
            (&[9], 17, 3, 0),
            (&[2], 2, 1, 0),
            (&[70], 16, 5, 2),
        ] {
            let ragged = Ragged::new(lengths);
            let [x, w, b] = [
                test_values(&[ragged.rows(), width], 0.7),
                test_values(&[width, taps], 1.1),
                test_values(&[width], 0.9),
            ];
            let run = |a: &[candle_core::Var]| depthwise(&a[0], &ragged, &a[1], &a[2], past_taps).unwrap();
            let y = values(&run(&[x.clone(), w.clone(), b.clone()]));
            let [rows, weight, bias] = [&x, &w, &b].map(|v| values(v));
            for (b, &length) in lengths.iter().enumerate() {
                let first_row = ragged.range(b).start;
                for (t, channel) in (0..length).flat_map(|t| (0..width).map(move |channel| (t, channel))) {
                    let term = |j: usize| match (t + j).checked_sub(past_taps) {
                        Some(frame) if frame < length => {
                            weight[channel * taps + j] * rows[(first_row + frame) * width + channel]
                        }
                        _ => 0.0,
                    };
                    let expected = bias[channel] + (0..taps).map(term).sum::<f64>();
                    assert!((y[(first_row + t) * width + channel] - expected).abs() < 1e-13);
                }
            }
            if ragged.rows() < 20 {
                check_gradients(run, &[x, w, b]);
            }
        }
    }

    #[test]
    fn errors_of_shapes_name_the_argument() {
        let (x, ragged) = (test_values(&[5, 3], 1.0), Ragged::new(&[5]));
        let expect_error = |weight: &[usize], bias: &[usize], past_taps| {
            let error = depthwise(&x, &ragged, &test_values(weight, 1.0), &test_values(bias, 1.0), past_taps)
                .unwrap_err();
            assert!(error.to_string().starts_with("weight: expected [3, more than"), "{error}");
        };
        expect_error(&[4, 3], &[3], 1);
        expect_error(&[3, 3], &[4], 1);
        expect_error(&[3, 3], &[3], 3);
    }
}
