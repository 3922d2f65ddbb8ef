//! A joint network that keeps nothing: both projections are computed anew for each site.
use std::sync::{Mutex, PoisonError};

use decoding::{Activation, AffineLayer, JointScorer, NetworkScratch, SiteBatch};
use kernels::{par_for, parts, parts_mut};

/// Sizes E, P and H, and labels V, of the model.
pub const ENCODER: usize = 512;
pub const PREDICTOR: usize = 640;
pub const HIDDEN: usize = 640;
pub const LABELS: usize = 1024;

/// Rows of a task that makes hidden rows, as in [`decoding::JointNetwork`].
const ROWS: usize = 8;

/// `z = W tanh(W_e x + W_p g) + b` from encoder rows and predictor outputs as they come.
pub struct Raw {
    frames: AffineLayer,
    predicted: AffineLayer,
    head: AffineLayer,
    durations: usize,
    room: Mutex<JointBuffers>,
}

/// Rows of the sites of a call.
#[derive(Default)]
struct JointBuffers {
    encoded: Vec<f32>,
    predicted: Vec<f32>,
    frames: Vec<f32>,
    labels: Vec<f32>,
    hidden: Vec<f32>,
}

impl Raw {
    /// Projections of frames and predictor, and a head whose last outputs are durations.
    pub fn new([frames, predicted, head]: [AffineLayer; 3], durations: usize) -> Self {
        Self { frames, predicted, head, durations, room: Mutex::default() }
    }
}

impl JointScorer for Raw {
    fn frame_width(&self) -> usize {
        ENCODER
    }

    fn prediction_width(&self) -> usize {
        PREDICTOR
    }

    fn row_width(&self) -> usize {
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
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let JointBuffers { encoded, predicted, frames, labels, hidden } = &mut *room;
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
        let cut =
            (parts_mut(hidden, ROWS * HIDDEN), parts(frames, ROWS * HIDDEN), parts(labels, ROWS * HIDDEN));
        par_for(cut, |_, (hidden, frames, labels)| Activation::Tanh.forward(hidden, frames, labels));
        self.head.forward(hidden, out, scratch);
    }
}
