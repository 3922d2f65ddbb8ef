//! Models whose scores are made by hand: a row of scores for each frame and history of labels.
use std::sync::Arc;

use decoding::{Joint, Model, Predictor, Scratch, Sites, States};
use rnnt_dp::Topology;

/// The state is a hash of the labels so far, as a number that f32 holds, and the label row is that hash as a small number.
pub struct Histories {
    pub ids: usize,
}

fn as_row(hash: u32) -> f32 {
    (hash % (1 << 20)) as f32
}

impl Predictor for Histories {
    fn width(&self) -> usize {
        1
    }
    fn ids(&self) -> usize {
        self.ids
    }
    fn start(&self) -> (States, Vec<f32>) {
        (States::of_row(vec![], vec![1.0]), vec![as_row(1)])
    }
    fn step(&self, labels: &[u32], states: &mut States, out: &mut [f32], _: &mut Scratch) {
        for ((state, &label), out) in states.values_mut().iter_mut().zip(labels).zip(out) {
            let hash = (*state as u32 * 31 + label + 7) % 900_001;
            (*state, *out) = (hash as f32, as_row(hash));
        }
    }
}

/// Scores `[C + D]` by a function of the frame's number (its row) and of the history's.
pub struct Scores<F> {
    pub classes: usize,
    pub durations: usize,
    pub of: F,
}

impl<F: Fn(f32, f32, &mut [f32]) + Send + Sync> Joint for Scores<F> {
    fn frame_width(&self) -> usize {
        1
    }
    fn predicted_width(&self) -> usize {
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
    fn project(&self, predicted: &[f32], rows: &mut [f32], _: &mut Scratch) {
        rows.copy_from_slice(predicted);
    }
    fn scores(&self, sites: &Sites, out: &mut [f32], _: &mut Scratch) {
        for (out, &site) in out.chunks_exact_mut(self.classes + self.durations).zip(sites.at) {
            let (frame, row) = sites.pair(site, 1, 1);
            (self.of)(frame[0], row[0], out);
        }
    }
}

/// A model of random scores: those of a frame and a history are always the same.
pub fn random(topology: &Topology, classes: usize, blank: u32, big_blanks: &[u32], seed: u32, sharp: f32) -> Model {
    let of = move |frame: f32, row: f32, out: &mut [f32]| {
        for (class, score) in out.iter_mut().enumerate() {
            let mut hash = (frame as u32) ^ (row as u32).rotate_left(9) ^ (class as u32).rotate_left(23) ^ seed;
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
    Model::new(Arc::new(Histories { ids: classes }), Arc::new(joint), blank, big_blanks, topology).unwrap()
}

/// Rows of frames `0 .. count`, or of other numbers from `first` on.
pub fn frames(first: usize, count: usize) -> Vec<f32> {
    (first..first + count).map(|t| t as f32).collect()
}
