//! CTC on encoder scores, an auxiliary objective, as an operation.
//!
//! With `p` the softmax of a frame and `o_s` the posterior of a state, `dloss/dz_c = p_c - Σ_{s: class c} o_s`.
use candle_core::{
    CpuStorage, CustomOp1, DType, Layout as TensorLayout, Result as TensorResult, Shape, Tensor,
};
use panda_core::{
    Adjoints, Normalized, Real, Selection,
    candle::{Element, with_values},
    scores::{self, PADDING},
};
use rayon::prelude::*;
use rnnt_dp::ctc::{CtcPosterior, forward_backward};

use super::{expect_dims, expect_dtype, expect_rank};
use crate::{Error, Result, Targets, error::bad_site};

struct CtcLoss<F> {
    normalized: Normalized<F>,
    /// Log-probabilities of each utterance's blank and labels, *T x (U+1)*.
    emissions: Vec<Vec<f64>>,
    posteriors: Vec<CtcPosterior>,
    site_of_row: Vec<u32>,
    targets: Targets,
}

/// Every score enters by way of the denominator alone; labels may repeat, which a selection forbids.
fn no_selection() -> Selection {
    Selection::new(Vec::new(), Vec::new(), 0).expect("an empty selection is legal")
}

impl<F: Element> CtcLoss<F> {
    /// Class of column `j` of an utterance's emissions.
    fn class(targets: &Targets, utterance: usize, column: usize) -> usize {
        let class = if column == 0 { targets.blank() } else { targets.labels(utterance)[column - 1] };
        class as usize
    }

    fn new(z: &[F], frames: usize, classes: usize, targets: &Targets) -> Result<Self> {
        let real = |b: usize, t: usize| t < targets.frames(b);
        let mut sites = 0;
        let site_of_row = (0..targets.batch() * frames).map(|row| {
            if !real(row / frames, row % frames) {
                return PADDING;
            }
            sites += 1;
            sites - 1
        });
        let site_of_row: Vec<u32> = site_of_row.collect();
        let normalized = scores::forward(z, classes, &site_of_row, sites as usize, &no_selection());
        let normalized = normalized.map_err(|error| Self::at_frame(error, &site_of_row, frames))?;
        let emissions = (0..targets.batch()).into_par_iter().map(|b| {
            let labels = targets.labels(b);
            let mut emissions = Vec::with_capacity(targets.frames(b) * (labels.len() + 1));
            for row in b * frames..b * frames + targets.frames(b) {
                let site = site_of_row[row] as usize;
                let (max, log_sum) = (Real::to_f64(normalized.max[site]), normalized.log_sum[site]);
                let scores = &z[row * classes..][..classes];
                let score = |column| Real::to_f64(scores[Self::class(targets, b, column)]);
                emissions.extend((0..=labels.len()).map(|column| score(column) - max - log_sum));
            }
            emissions
        });
        let emissions: Vec<Vec<f64>> = emissions.collect();
        let posteriors = emissions
            .par_iter()
            .enumerate()
            .map(|(b, emissions)| forward_backward(targets.labels(b), emissions));
        let posteriors = posteriors.collect::<Vec<_>>().into_iter().collect::<rnnt_dp::Result<Vec<_>>>()?;
        Ok(Self { normalized, emissions, posteriors, site_of_row, targets: targets.clone() })
    }

    fn at_frame(error: panda_core::Error, site_of_row: &[u32], frames: usize) -> Error {
        let (site, found) = match bad_site(error) {
            Ok(bad) => bad,
            Err(other) => return other.into(),
        };
        let row = site_of_row.iter().position(|s| *s as usize == site).unwrap_or_default();
        Error::Frame { utterance: row / frames, frame: row % frames, found }
    }

    /// Writes the gradient over the scores.
    fn backward(&self, z: &mut [F], frames: usize, classes: usize, weights: &[f64]) -> Result<()> {
        let weight = |b: usize| if self.posteriors[b].loss.is_finite() { weights[b] } else { 0.0 };
        if let Some(utterance) = (0..self.targets.batch()).find(|&b| !weight(b).is_finite()) {
            return Err(Error::Weight { utterance, found: weights[utterance] });
        }
        let log_z: Vec<f64> = (0..self.targets.batch())
            .flat_map(|b| std::iter::repeat_n(weight(b), self.targets.frames(b)))
            .collect();
        let adjoints = Adjoints { emissions: &[], log_z: Some(&log_z), clamp: None };
        let selection = no_selection();
        scores::backward_in_place(z, classes, &self.site_of_row, &selection, &self.normalized, &adjoints)?;
        z.par_chunks_mut(frames * classes).enumerate().for_each(|(b, z)| {
            let columns = self.targets.labels(b).len() + 1;
            let class = |column: usize| Self::class(&self.targets, b, column);
            // Columns of one class stand together, so that `p - Σ o` is formed once, in f64: it cancels when the model is sure.
            let mut order: Vec<usize> = (0..columns).collect();
            order.sort_by_key(|&column| class(column));
            let groups: Vec<&[usize]> = order.chunk_by(|&a, &b| class(a) == class(b)).collect();
            let rows = self.posteriors[b]
                .adjoints
                .chunks_exact(columns)
                .zip(self.emissions[b].chunks_exact(columns));
            for (z, (adjoints, emissions)) in z.chunks_exact_mut(classes).zip(rows) {
                for group in &groups {
                    let sum: f64 = group.iter().map(|&column| adjoints[column]).sum();
                    let p = emissions[group[0]].exp();
                    z[class(group[0])] = <F as Real>::from_f64(weight(b) * (p + sum));
                }
            }
        });
        Ok(())
    }
}

impl<F: Element> CustomOp1 for CtcLoss<F> {
    fn name(&self) -> &'static str {
        "ctc-loss"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &TensorLayout) -> TensorResult<(CpuStorage, Shape)> {
        let losses = self.posteriors.iter().map(|p| p.loss).collect();
        Ok((CpuStorage::F64(losses), Shape::from(self.targets.batch())))
    }

    fn bwd(&self, z: &Tensor, _losses: &Tensor, upstream: &Tensor) -> TensorResult<Option<Tensor>> {
        let weights = upstream.to_vec1::<f64>()?;
        let (_, frames, classes) = z.dims3()?;
        let mut gradient = with_values([z], |[z]: [&[F]; 1]| TensorResult::Ok(z.to_vec()))?;
        self.backward(&mut gradient, frames, classes, &weights).map_err(candle_core::Error::wrap)?;
        Tensor::from_vec(gradient, z.shape(), z.device()).map(Some)
    }
}

/// CTC loss *B* (`f64`) of scores *B x T x C* (logits), differentiable. Graves et al. 2006.
///
/// # Errors
/// Shapes or types that do not fit, utterances longer than the tensor, labels outside the classes, scores of a real
/// frame that are NaN or +inf. Labels that do not fit into their frames give +inf and zero gradient.
///
/// # Cost
/// O(B T (C + U)) time and memory.
pub fn ctc_loss(scores: &Tensor, targets: &Targets) -> Result<Tensor> {
    expect_rank("scores", scores, "[B, T, C]", 3)?;
    let (_, t, classes) = scores.dims3()?;
    expect_dims("scores", scores, &[targets.batch(), t, classes])?;
    let dtype = expect_dtype(&[("scores", scores)])?;
    targets.check_classes(classes)?;
    if let Some(utterance) = (0..targets.batch()).find(|&b| targets.frames(b) > t) {
        let needed = targets.frames(utterance);
        return Err(Error::TooLong { argument: "scores", utterance, needed, found: t });
    }
    let scores = scores.contiguous()?;
    match dtype {
        DType::F32 => run::<f32>(&scores, t, classes, targets),
        _ => run::<f64>(&scores, t, classes, targets),
    }
}

fn run<F: Element>(z: &Tensor, frames: usize, classes: usize, targets: &Targets) -> Result<Tensor> {
    let op = with_values([z], |[z]: [&[F]; 1]| CtcLoss::new(z, frames, classes, targets))?;
    Ok(z.apply_op1(op)?)
}
