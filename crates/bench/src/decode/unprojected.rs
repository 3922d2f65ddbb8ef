//! Baseline joint network: projects encoder and predictor outputs at every site.
//!
//! A site is a lattice node (t, u). `decoding::JointNetwork`, with
//! which it is compared, projects each frame and label only once.
use std::sync::{Mutex, PoisonError};

use decoding::{Activation, AffineLayer, JointScorer, NetworkScratch, SiteBatch};
use kernels::{par_for, parts, parts_mut};

/// Width E of the encoder output.
pub const ENCODER: usize = 512;
/// Width P of the predictor output.
pub const PREDICTOR: usize = 640;
/// Width H of the joint network.
pub const HIDDEN: usize = 640;
/// Number V of labels.
pub const LABELS: usize = 1024;

/// Rows per task of the activation, as in [`decoding::JointNetwork`].
const ROWS_PER_TASK: usize = 8;

/// `z = W tanh(W_e x + W_p g) + b` of encoder outputs x and predictor outputs g.
pub struct UnprojectedJoint {
    frames: AffineLayer,
    predicted: AffineLayer,
    head: AffineLayer,
    durations: usize,
    buffers: Mutex<JointBuffers>,
}

/// Scratch memory of a call: one row per evaluated site in each buffer.
#[derive(Default)]
struct JointBuffers {
    encoded: Vec<f32>,
    predicted: Vec<f32>,
    frames: Vec<f32>,
    labels: Vec<f32>,
    hidden: Vec<f32>,
}

impl UnprojectedJoint {
    /// Creates a joint network; the last `durations` outputs of the head are durations.
    pub fn new([frames, predicted, head]: [AffineLayer; 3], durations: usize) -> Self {
        Self { frames, predicted, head, durations, buffers: Mutex::default() }
    }
}

impl JointScorer for UnprojectedJoint {
    fn frame_width(&self) -> usize {
        ENCODER
    }

    fn prediction_width(&self) -> usize {
        PREDICTOR
    }

    fn label_row_width(&self) -> usize {
        PREDICTOR
    }

    fn classes(&self) -> usize {
        self.head.outputs() - self.durations
    }

    fn durations(&self) -> usize {
        self.durations
    }

    fn project(&self, predicted: &[f32], rows: &mut [f32], _: &mut NetworkScratch) {
        rows.copy_from_slice(predicted);
    }

    fn scores(&self, sites: &SiteBatch, out: &mut [f32], scratch: &mut NetworkScratch) {
        let count = sites.sites.len();
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let JointBuffers { encoded, predicted, frames, labels, hidden } = &mut *buffers;
        encoded.clear();
        predicted.clear();
        for &site in sites.sites {
            let (frame, row) = sites.rows_at(site, ENCODER, PREDICTOR);
            encoded.extend_from_slice(frame);
            predicted.extend_from_slice(row);
        }
        for rows in [&mut *frames, &mut *labels, &mut *hidden] {
            rows.truncate(count * HIDDEN);
            rows.resize(count * HIDDEN, 0.0);
        }
        self.frames.forward(encoded, frames, scratch);
        self.predicted.forward(predicted, labels, scratch);
        let tasks = (
            parts_mut(hidden, ROWS_PER_TASK * HIDDEN),
            parts(frames, ROWS_PER_TASK * HIDDEN),
            parts(labels, ROWS_PER_TASK * HIDDEN),
        );
        par_for(tasks, |_, (hidden, frames, labels)| Activation::Tanh.forward(hidden, frames, labels));
        self.head.forward(hidden, out, scratch);
    }
}
