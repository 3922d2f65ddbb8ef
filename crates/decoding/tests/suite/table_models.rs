//! Models whose scores are made by hand: a row of scores for each frame and history of labels.
use std::sync::Arc;

use decoding::{DecodingModel, JointScorer, NetworkScratch, Predictor, Scorer, SiteBatch, States};
use rnnt_dp::Topology;

/// The state counts labels.
pub struct Counter {
    pub ids: usize,
}

impl Predictor for Counter {
    fn width(&self) -> usize {
        1
    }
    fn ids(&self) -> usize {
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

/// A joint network of frames as wide as it says.
pub struct Wide(pub usize);

impl JointScorer for Wide {
    fn frame_width(&self) -> usize {
        self.0
    }
    fn prediction_width(&self) -> usize {
        1
    }
    fn row_width(&self) -> usize {
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

/// Every label has a score of its own.
#[derive(Debug)]
pub struct Unigram;

impl Unigram {
    pub fn score(class: u32) -> f32 {
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

/// The state is a hash of the labels so far, which is the label row as well.
pub struct Histories {
    pub ids: usize,
}

impl Predictor for Histories {
    fn width(&self) -> usize {
        1
    }
    fn ids(&self) -> usize {
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

/// Scores `[C + D]` by a function of the frame's number (its row) and of the history's.
pub struct Scores<F> {
    pub classes: usize,
    pub durations: usize,
    pub of: F,
}

impl<F: Fn(f32, f32, &mut [f32]) + Send + Sync> JointScorer for Scores<F> {
    fn frame_width(&self) -> usize {
        1
    }
    fn prediction_width(&self) -> usize {
        1
    }
    fn row_width(&self) -> usize {
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
        for (out, &site) in out.chunks_exact_mut(self.classes + self.durations).zip(sites.at) {
            let (frame, row) = sites.pair(site, 1, 1);
            (self.of)(frame[0], row[0], out);
        }
    }
}

/// A model of random scores: those of a frame and a history are always the same.
pub fn random(
    topology: &Topology,
    classes: usize,
    blank: u32,
    big_blanks: &[u32],
    seed: u32,
    sharp: f32,
) -> DecodingModel {
    let of = move |frame: f32, row: f32, out: &mut [f32]| {
        if frame.is_nan() {
            return out.fill(frame);
        }
        for (class, score) in out.iter_mut().enumerate() {
            let mut hash =
                (frame as u32) ^ (row as u32).rotate_left(9) ^ (class as u32).rotate_left(23) ^ seed;
            for _ in 0..3 {
                hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b).wrapping_add(0x9e37_79b9);
            }
            *score = sharp * (hash >> 8) as f32 / (1 << 24) as f32;
            if class as u32 == blank {
                *score += 0.4 * sharp;
            }
        }
    };
    let joint = Scores { classes, durations: topology.durations(), of };
    DecodingModel::new(Arc::new(Histories { ids: classes }), Arc::new(joint), blank, big_blanks, topology)
        .unwrap()
}

/// Rows of frames `0 .. count`, or of other numbers from `first` on.
pub fn frames(first: usize, count: usize) -> Vec<f32> {
    (first..first + count).map(|t| t as f32).collect()
}
