//! Test transducers of decoding: a row of scores per frame and label history.
use std::sync::Arc;

use decoding::{DecodingModel, JointScorer, NetworkScratch, Predictor, Scorer, SiteBatch, States};
use rnnt_dp::Topology;

/// A predictor whose state counts labels.
pub(crate) struct LabelCountPredictor {
    pub ids: usize,
}

impl Predictor for LabelCountPredictor {
    fn width(&self) -> usize {
        1
    }
    fn label_ids(&self) -> usize {
        self.ids
    }
    fn start(&self) -> (States, Vec<f32>) {
        (States::from_row(vec![], vec![0.0]), vec![0.0])
    }
    fn step(&self, _: &[u32], states: &mut States, out: &mut [f32], _: &mut NetworkScratch) {
        states.values_mut().iter_mut().for_each(|count| *count += 1.0);
        out.copy_from_slice(states.values());
    }
}

/// A joint network of three equal scores with a given frame width.
pub(crate) struct UniformJoint(pub usize);

impl JointScorer for UniformJoint {
    fn frame_width(&self) -> usize {
        self.0
    }
    fn prediction_width(&self) -> usize {
        1
    }
    fn label_row_width(&self) -> usize {
        1
    }
    fn classes(&self) -> usize {
        3
    }
    fn project(&self, _: &[f32], rows: &mut [f32], _: &mut NetworkScratch) {
        rows.fill(0.0);
    }
    fn scores(&self, _: &SiteBatch, out: &mut [f32], _: &mut NetworkScratch) {
        out.fill(0.0);
    }
}

/// A scorer with a constant score per label.
#[derive(Debug)]
pub(crate) struct Unigram;

impl Unigram {
    pub(crate) fn score(class: u32) -> f32 {
        (class * 7 % 5) as f32 - 2.0
    }
}

impl Scorer for Unigram {
    fn start(&self) -> u32 {
        0
    }
    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        (Self::score(class), state + 1)
    }
    fn add_scores(&self, _: u32, weight: f32, scores: &mut [f32]) {
        scores.iter_mut().zip(0..).for_each(|(score, class)| *score += weight * Self::score(class));
    }
    fn finish(&self, _: u32) -> f32 {
        0.0
    }
}

/// A predictor whose state and row are a hash of the labels.
pub(crate) struct LabelHashPredictor {
    pub ids: usize,
}

impl Predictor for LabelHashPredictor {
    fn width(&self) -> usize {
        1
    }
    fn label_ids(&self) -> usize {
        self.ids
    }
    fn start(&self) -> (States, Vec<f32>) {
        (States::from_row(vec![], vec![1.0]), vec![1.0])
    }
    fn step(&self, labels: &[u32], states: &mut States, out: &mut [f32], _: &mut NetworkScratch) {
        for (state, &label) in states.values_mut().iter_mut().zip(labels) {
            *state = ((*state as u32 * 31 + label + 7) % 900_001) as f32;
        }
        out.copy_from_slice(states.values());
    }
}

/// A joint network: scores `[C + D]` as a function of frame number and label row.
pub(crate) struct TableJoint<F> {
    pub classes: usize,
    pub durations: usize,
    /// Writes the scores of a frame number and a label row.
    pub score_fn: F,
}

impl<F: Fn(f32, f32, &mut [f32]) + Send + Sync> JointScorer for TableJoint<F> {
    fn frame_width(&self) -> usize {
        1
    }
    fn prediction_width(&self) -> usize {
        1
    }
    fn label_row_width(&self) -> usize {
        1
    }
    fn classes(&self) -> usize {
        self.classes
    }
    fn durations(&self) -> usize {
        self.durations
    }
    fn project(&self, predicted: &[f32], rows: &mut [f32], _: &mut NetworkScratch) {
        rows.copy_from_slice(predicted);
    }
    fn scores(&self, sites: &SiteBatch, out: &mut [f32], _: &mut NetworkScratch) {
        for (out, &site) in out.chunks_exact_mut(self.classes + self.durations).zip(sites.sites) {
            let (frame, row) = sites.rows_at(site, 1, 1);
            (self.score_fn)(frame[0], row[0], out);
        }
    }
}

/// A model with deterministic pseudo-random scores per frame and history.
pub(crate) fn random_model(
    topology: &Topology,
    classes: usize,
    blank: u32,
    big_blanks: &[u32],
    seed: u32,
    score_scale: f32,
) -> DecodingModel {
    let score_fn = move |frame: f32, row: f32, out: &mut [f32]| {
        if frame.is_nan() {
            return out.fill(frame);
        }
        for (class, score) in out.iter_mut().enumerate() {
            let mut hash =
                (frame as u32) ^ (row as u32).rotate_left(9) ^ (class as u32).rotate_left(23) ^ seed;
            for _ in 0..3 {
                hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b).wrapping_add(0x9e37_79b9);
            }
            *score = score_scale * (hash >> 8) as f32 / (1 << 24) as f32;
            if class as u32 == blank {
                *score += 0.4 * score_scale;
            }
        }
    };
    let joint = TableJoint { classes, durations: topology.num_durations(), score_fn };
    DecodingModel::new(
        Arc::new(LabelHashPredictor { ids: classes }),
        Arc::new(joint),
        blank,
        big_blanks,
        topology,
    )
    .unwrap()
}

/// Rows of `count` frames, numbered from `first_frame`.
pub(crate) fn frames(first_frame: usize, count: usize) -> Vec<f32> {
    (first_frame..first_frame + count).map(|t| t as f32).collect()
}
