//! Inputs of a loss benchmark: projected encoder and predictor rows, head, targets.
//!
//! Synthetic inputs are pseudo-random numbers, the same in every process.
use std::path::Path;

use recognizer::Recognizer;
use rnnt_loss::Targets;

use super::case::{LossSizes, Posteriors};
use super::error::Result;
use super::workload::CaseShape;

/// A padded batch and a head; all values are written and hence resident.
pub(crate) struct LossInputs {
    /// Projected encoder outputs `[B, T, H]`.
    pub frames: Vec<f32>,
    /// Projected predictor outputs `[B, U+1, H]`.
    pub labels: Vec<f32>,
    /// Head weight `[C, H]`.
    pub weight: Vec<f32>,
    /// Head bias `[C]`.
    pub bias: Vec<f32>,
    /// Lengths and labels.
    pub targets: Targets,
    /// Sizes of the padded batch, and its number of sites.
    pub sizes: BatchSizes,
}

/// Sizes of a padded batch.
#[derive(Clone, Copy)]
pub(crate) struct BatchSizes {
    /// B
    pub batch: usize,
    /// T
    pub frames: usize,
    /// U
    pub labels: usize,
    /// H
    pub hidden: usize,
    /// C
    pub classes: usize,
    /// N
    pub sites: usize,
}

impl BatchSizes {
    /// Returns the sizes for reports.
    pub(crate) fn shape(&self) -> CaseShape {
        let Self { batch, frames, labels, hidden, classes, sites } = *self;
        CaseShape {
            B: Some(batch),
            T: Some(frames),
            U: Some(labels),
            H: Some(hidden),
            C: Some(classes),
            N: Some(sites),
        }
    }

    /// Returns the bytes of rows and head in `f32`; gradients have as many.
    pub(crate) fn bytes(&self) -> u64 {
        let rows = self.batch * (self.frames + self.labels + 1);
        4 * (rows * self.hidden + self.classes * (self.hidden + 1)) as u64
    }
}

/// Returns frames and labels of B utterances of different lengths.
///
/// From T to .907 T frames and from U to .542 U labels (arXiv 2211.16270).
pub(crate) fn ragged_lengths(batch: usize, frames: usize, labels: usize) -> (Vec<usize>, Vec<usize>) {
    let decreasing = |max: usize, total_decrease: f64| -> Vec<usize> {
        let step = total_decrease / batch.saturating_sub(1).max(1) as f64;
        (0..batch).map(|i| (max as f64 * (1.0 - step * i as f64)).round() as usize).collect()
    };
    (decreasing(frames, 0.093), decreasing(labels, 0.458))
}

/// Returns the targets of a synthetic batch; the blank is class 0.
///
/// # Errors
/// If the loss does not support the sizes.
pub(crate) fn synthetic_targets(work: &LossSizes) -> Result<Targets> {
    let (frames, lengths) = work.all_lengths();
    let sequence = |(b, &length): (usize, &usize)| random_labels(1000 + b as u64, length, work.classes);
    Ok(Targets::new(0, frames, lengths.iter().enumerate().map(sequence).collect())?)
}

impl LossInputs {
    /// Creates rows and head of a synthetic model.
    ///
    /// # Errors
    /// If the loss does not support the sizes.
    pub(crate) fn synthetic(work: &LossSizes) -> Result<Self> {
        let LossSizes { batch, frames: max_frames, labels: max_labels, hidden, classes, posteriors, .. } =
            *work;
        let targets = synthetic_targets(work)?;
        let sites = targets.lattices().num_sites();
        let sizes = BatchSizes { batch, frames: max_frames, labels: max_labels, hidden, classes, sites };
        let mut inputs = Self {
            frames: noise(1, batch * max_frames * hidden, 1.0),
            labels: noise(2, batch * (max_labels + 1) * hidden, 1.0),
            weight: vec![0.0; classes * hidden],
            bias: noise(3, classes, 0.1),
            targets,
            sizes,
        };
        inputs.set_posteriors(posteriors);
        Ok(inputs)
    }

    /// Sets rows and head to predict the next label and its time.
    ///
    /// Coordinate 0 of `f_t + g_u` is the number of due labels: above 0 the labels score above the
    /// blank, below 0 the blank scores above the labels. The other coordinates of `g_u` are a code
    /// of the next label, which is also its row of the weight.
    fn set_posteriors(&mut self, posteriors: Posteriors) {
        let BatchSizes { frames: max_frames, labels: max_labels, hidden, classes, .. } = self.sizes;
        // `slope`: half of the maximum score difference of label and blank; `width`: number of
        // labels over which the difference changes sign; `margin`: score of the next label above
        // all others.
        let (slope, width, margin) = match posteriors {
            Posteriors::Flat => (0.02, 4.0, (classes as f32).ln() + 1.0),
            Posteriors::Peaked => (6.0, 1.5, (classes as f32).ln() + 3.0),
        };
        // Component k of the code of a class: 0.5 or -0.5.
        let code =
            |class: u32, k: usize| 0.5 * uniform(5, u64::from(class) * hidden as u64 + k as u64).signum();
        // With this scale, the score of a code, after tanh, by its own class is the margin.
        let scale = margin / (0.5 * 0.5f32.tanh() * (hidden - 1) as f32);
        // Rows of frames and label positions.
        for b in 0..self.targets.batch() {
            let (frames, labels) = (self.targets.frames(b), self.targets.labels(b));
            for t in 0..max_frames {
                let row = &mut self.frames[(b * max_frames + t) * hidden..][..hidden];
                row.iter_mut().for_each(|x| *x *= 0.1);
                row[0] = (t as f32 + 0.5) / frames as f32 * labels.len() as f32 / width;
            }
            for u in 0..=max_labels {
                let row = &mut self.labels[(b * (max_labels + 1) + u) * hidden..][..hidden];
                let next = labels.get(u).copied().unwrap_or(0);
                row.iter_mut().enumerate().for_each(|(k, x)| *x = code(next, k));
                row[0] = -(u as f32) / width;
            }
        }
        // Head.
        for (class, row) in self.weight.chunks_exact_mut(hidden).enumerate() {
            row.iter_mut().enumerate().for_each(|(k, w)| *w = scale * code(class as u32, k));
            row[0] = slope;
        }
        // The blank has no code: its score is that of the next label except for coordinate 0.
        self.weight[..hidden].fill(0.0);
        (self.weight[0], self.bias[0]) = (-slope, margin);
    }

    /// Computes rows and head of a trained model on a manifest.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn recorded(checkpoint: &Path, manifest: &Path, utterances: usize) -> Result<Self> {
        let recognizer = Recognizer::load(checkpoint)?;
        let recordings = speech::read_manifest(manifest)?;
        let rows = recognizer.joint_rows(&recordings[..utterances.min(recordings.len())])?;
        let (batch, frames, hidden) = rows.frames.dims3()?;
        let labels = rows.labels.dims3()?.1 - 1;
        let values = |tensor: &candle_core::Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let sizes = BatchSizes {
            batch,
            frames,
            labels,
            hidden,
            classes: recognizer.model().classes(),
            sites: rows.targets.lattices().num_sites(),
        };
        Ok(Self {
            frames: values(&rows.frames)?,
            labels: values(&rows.labels)?,
            weight: values(&rows.weight)?,
            bias: values(&rows.bias)?,
            targets: rows.targets,
            sizes,
        })
    }
}

/// Draws `count` numbers uniformly between `-scale` and `scale`.
///
/// Each `stream` is a different sequence; the same holds for the other functions.
pub(crate) fn noise(stream: u64, count: usize, scale: f32) -> Vec<f32> {
    (0..count as u64).map(|i| scale * uniform(stream, i)).collect()
}

/// Draws `count` label ids from 1 to `classes - 1`; 0 is the blank.
pub(crate) fn random_labels(stream: u64, count: usize, classes: usize) -> Vec<u32> {
    (0..count as u64).map(|i| 1 + (hash(stream, i) % (classes as u64 - 1)) as u32).collect()
}

/// Draws number `index` of a stream, uniformly between -1 and 1.
pub(crate) fn uniform(stream: u64, index: u64) -> f32 {
    // The upper 24 bits fit into an f32 exactly.
    (hash(stream, index) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// SplitMix64 (Steele, Lea, Flood 2014) of a counter.
fn hash(stream: u64, index: u64) -> u64 {
    let mut z = (stream << 40 | index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Budget, LengthSpread};
    use crate::loss::SessionWorkload;

    #[test]
    fn lengths_are_those_of_the_paper() {
        let (frames, labels) = ragged_lengths(16, 50, 10);
        assert_eq!((frames[0], frames[15], labels[0], labels[15]), (50, 45, 10, 5));
        let sites: usize = frames.iter().zip(&labels).map(|(t, u)| t * (u + 1)).sum();
        assert_eq!(sites, 6_662);
        assert_eq!(ragged_lengths(1, 7, 3), (vec![7], vec![3]));
    }

    #[test]
    fn posteriors_are_peaked_or_flat() {
        let loss = |posteriors| {
            let work = LossSizes {
                batch: 2,
                frames: 40,
                labels: 8,
                hidden: 64,
                classes: 50,
                posteriors,
                lengths: LengthSpread::Ragged,
            };
            let mut workload =
                SessionWorkload::new(LossInputs::synthetic(&work).unwrap(), Budget::Unlimited, 0.0, false)
                    .unwrap();
            workload.loss().unwrap().losses.iter().sum::<f64>() / 2.0
        };
        let (peaked, flat) = (loss(Posteriors::Peaked), loss(Posteriors::Flat));
        assert!((0.5..8.0).contains(&peaked) && (8.0..40.0).contains(&flat), "{peaked} {flat}");
    }

    #[test]
    fn noise_is_uniform_and_streams_differ() {
        let draws = noise(3, 30_000, 2.0);
        let mean = draws.iter().sum::<f32>() / 30_000.0;
        let variance = draws.iter().map(|x| x * x).sum::<f32>() / 30_000.0;
        assert!(mean.abs() < 0.03 && (variance - 4.0 / 3.0).abs() < 0.03, "{mean} {variance}");
        assert_ne!(noise(1, 5, 1.0), noise(2, 5, 1.0));
        assert!(random_labels(1, 500, 4).iter().all(|&id| (1..4).contains(&id)));
    }
}
