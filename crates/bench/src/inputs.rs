//! Inputs of a loss: projected rows, a head and targets; numbers without pattern, the same in every process.
use std::path::Path;

use recognizer::Recognizer;
use rnnt_loss::Targets;

use super::answer::CaseShape;
use super::case::{LossWork, Posteriors};
use super::error::Result;

/// A padded batch and a head; every value was written, so that all of it is resident.
pub struct LossInputs {
    /// *B x T x H*
    pub frames: Vec<f32>,
    /// *B x (U+1) x H*
    pub labels: Vec<f32>,
    /// *C x H*
    pub weight: Vec<f32>,
    /// *C*
    pub bias: Vec<f32>,
    /// Lengths and labels.
    pub targets: Targets,
    /// B, T, U, H, C of the padded batch and its real sites N.
    pub sizes: BatchSizes,
}

/// Sizes of a padded batch.
#[derive(Clone, Copy)]
pub struct BatchSizes {
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
    /// As it is reported.
    pub fn shape(&self) -> CaseShape {
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

    /// Bytes of frame rows, label rows, weight and bias in `f32`; their gradients take as many.
    pub fn bytes(&self) -> u64 {
        let rows = self.batch * (self.frames + self.labels + 1);
        4 * (rows * self.hidden + self.classes * (self.hidden + 1)) as u64
    }
}

/// Lengths of B utterances: from T down to .907 T frames and from U down to .542 U labels (arXiv 2211.16270).
pub fn ragged(batch: usize, frames: usize, labels: usize) -> (Vec<usize>, Vec<usize>) {
    let shrunk = |most: usize, by: f64| -> Vec<usize> {
        let step = by / batch.saturating_sub(1).max(1) as f64;
        (0..batch).map(|i| (most as f64 * (1.0 - step * i as f64)).round() as usize).collect()
    };
    (shrunk(frames, 0.093), shrunk(labels, 0.458))
}

/// Targets of a made-up batch; blank is class 0.
///
/// # Errors
/// Sizes that the loss refuses.
pub fn targets(work: &LossWork) -> Result<Targets> {
    let (frames, lengths) = work.all_lengths();
    let sequence = |(b, &length): (usize, &usize)| labels(1000 + b as u64, length, work.classes);
    Ok(Targets::new(0, frames, lengths.iter().enumerate().map(sequence).collect())?)
}

impl LossInputs {
    /// Rows and head of a made-up model.
    ///
    /// # Errors
    /// Sizes that the loss refuses.
    pub fn synthetic(work: &LossWork) -> Result<Self> {
        let LossWork { batch, frames: most, labels: longest, hidden, classes, model, .. } = *work;
        let targets = targets(work)?;
        let sites = targets.lattices().sites();
        let sizes = BatchSizes { batch, frames: most, labels: longest, hidden, classes, sites };
        let mut inputs = Self {
            frames: noise(1, batch * most * hidden, 1.0),
            labels: noise(2, batch * (longest + 1) * hidden, 1.0),
            weight: vec![0.0; classes * hidden],
            bias: noise(3, classes, 0.1),
            targets,
            sizes,
        };
        inputs.teach(model);
        Ok(inputs)
    }

    /// Makes the model know which label comes next, and when.
    ///
    /// Coordinate 0 of `f_t + g_u` says how many labels are due: above 0 every label beats the blank, below 0 the
    /// blank beats every label. The other coordinates of `g_u` are the next label's own code, which its row of the
    /// weight repeats.
    fn teach(&mut self, model: Posteriors) {
        let BatchSizes { frames: most, labels: longest, hidden, classes, .. } = self.sizes;
        // By how much the blank or the label is above the other when it is due, at most by twice that; within how many
        // labels that turns; and how far the next label is above all others.
        let (sure, width, margin) = match model {
            Posteriors::Flat => (0.02, 4.0, (classes as f32).ln() + 1.0),
            Posteriors::Peaked => (6.0, 1.5, (classes as f32).ln() + 3.0),
        };
        let code = |class: u32, k: usize| 0.5 * unit(5, u64::from(class) * hidden as u64 + k as u64).signum();
        let scale = margin / (0.5 * 0.5f32.tanh() * (hidden - 1) as f32);
        for b in 0..self.targets.batch() {
            let (frames, labels) = (self.targets.frames(b), self.targets.labels(b));
            for t in 0..most {
                let row = &mut self.frames[(b * most + t) * hidden..][..hidden];
                row.iter_mut().for_each(|x| *x *= 0.1);
                row[0] = (t as f32 + 0.5) / frames as f32 * labels.len() as f32 / width;
            }
            for u in 0..=longest {
                let row = &mut self.labels[(b * (longest + 1) + u) * hidden..][..hidden];
                let next = labels.get(u).copied().unwrap_or(0);
                row.iter_mut().enumerate().for_each(|(k, x)| *x = code(next, k));
                row[0] = -(u as f32) / width;
            }
        }
        for (class, row) in self.weight.chunks_exact_mut(hidden).enumerate() {
            row.iter_mut().enumerate().for_each(|(k, w)| *w = scale * code(class as u32, k));
            row[0] = sure;
        }
        // The blank has no code: its score is that of a label whose code fits, but for coordinate 0.
        self.weight[..hidden].fill(0.0);
        (self.weight[0], self.bias[0]) = (-sure, margin);
    }

    /// Rows and head of a trained model on the first utterances of a manifest.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn recorded(checkpoint: &Path, manifest: &Path, utterances: usize) -> Result<Self> {
        let recogniser = Recognizer::load(checkpoint)?;
        let recordings = speech::read_manifest(manifest)?;
        let rows = recogniser.joint_rows(&recordings[..utterances.min(recordings.len())])?;
        let (batch, frames, hidden) = rows.frames.dims3()?;
        let labels = rows.labels.dims3()?.1 - 1;
        let values = |tensor: &candle_core::Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let sizes = BatchSizes {
            batch,
            frames,
            labels,
            hidden,
            classes: recogniser.model().classes(),
            sites: rows.targets.lattices().sites(),
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

/// `count` numbers, uniform between `-scale` and `scale`; each purpose has its own.
pub fn noise(purpose: u64, count: usize, scale: f32) -> Vec<f32> {
    (0..count as u64).map(|i| scale * unit(purpose, i)).collect()
}

/// `count` label ids from 1 to below `classes`; 0 is the blank.
pub fn labels(purpose: u64, count: usize, classes: usize) -> Vec<u32> {
    (0..count as u64).map(|i| 1 + (hash(purpose, i) % (classes as u64 - 1)) as u32).collect()
}

/// Uniform between -1 and 1.
pub fn unit(purpose: u64, index: u64) -> f32 {
    // The upper 24 bits, all of which an f32 holds.
    (hash(purpose, index) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// SplitMix64 (Steele, Lea, Flood 2014) of a counter.
fn hash(purpose: u64, index: u64) -> u64 {
    let mut z = (purpose << 40 | index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
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
        let (frames, labels) = ragged(16, 50, 10);
        assert_eq!((frames[0], frames[15], labels[0], labels[15]), (50, 45, 10, 5));
        let sites: usize = frames.iter().zip(&labels).map(|(t, u)| t * (u + 1)).sum();
        assert_eq!(sites, 6_662);
        assert_eq!(ragged(1, 7, 3), (vec![7], vec![3]));
    }

    #[test]
    fn models_know_what_they_should() {
        let loss = |model| {
            let work = LossWork {
                batch: 2,
                frames: 40,
                labels: 8,
                hidden: 64,
                classes: 50,
                model,
                lengths: LengthSpread::Ragged,
            };
            let mut ours =
                SessionWorkload::new(LossInputs::synthetic(&work).unwrap(), Budget::Unlimited, 0.0, false)
                    .unwrap();
            ours.loss().unwrap().losses.iter().sum::<f64>() / 2.0
        };
        let (sharp, vague) = (loss(Posteriors::Peaked), loss(Posteriors::Flat));
        assert!((0.5..8.0).contains(&sharp) && (8.0..40.0).contains(&vague), "{sharp} {vague}");
    }

    #[test]
    fn is_uniform_and_tells_purposes_apart() {
        let draws = noise(3, 30_000, 2.0);
        let mean = draws.iter().sum::<f32>() / 30_000.0;
        let variance = draws.iter().map(|x| x * x).sum::<f32>() / 30_000.0;
        assert!(mean.abs() < 0.03 && (variance - 4.0 / 3.0).abs() < 0.03, "{mean} {variance}");
        assert_ne!(noise(1, 5, 1.0), noise(2, 5, 1.0));
        assert!(labels(1, 500, 4).iter().all(|&id| (1..4).contains(&id)));
    }
}
