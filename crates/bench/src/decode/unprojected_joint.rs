//! Baseline joint network: projects encoder and predictor outputs at every site.
//!
//! A site is a lattice node (t, u). `decoding::JointNetwork`, with which it is compared, projects
//! each frame and label only once.
use std::sync::{Mutex, PoisonError};

use decoding::{Activation, AffineLayer, JointScorer, NetworkScratch, SiteBatch};
use kernels::{par_for, parts, parts_mut};

/// Width E of the encoder output.
pub(super) const ENCODER_WIDTH: usize = 512;
/// Width P of the predictor output.
pub(super) const PREDICTOR_WIDTH: usize = 640;
/// Width H of the joint network.
pub(super) const JOINT_WIDTH: usize = 640;
/// Number V of labels.
pub(super) const LABEL_COUNT: usize = 1024;

/// Rows per task of the activation, as in [`decoding::JointNetwork`].
const ROWS_PER_TASK: usize = 8;

/// `z = W tanh(W_e x + W_p g) + b` of encoder outputs x and predictor outputs g.
pub(super) struct UnprojectedJoint {
    /// Projection of encoder outputs, W_e.
    frame_projection: AffineLayer,
    /// Projection of predictor outputs, W_p.
    label_projection: AffineLayer,
    head: AffineLayer,
    durations: usize,
    buffers: Mutex<JointBuffers>,
}

/// Scratch memory of a call: one row per evaluated site in each buffer.
#[derive(Default)]
struct JointBuffers {
    encoded: Vec<f32>,
    predicted: Vec<f32>,
    projected_frames: Vec<f32>,
    projected_labels: Vec<f32>,
    hidden: Vec<f32>,
}

impl UnprojectedJoint {
    /// Creates a joint network; the last `durations` outputs of the head are durations.
    pub(super) fn new(
        [frame_projection, label_projection, head]: [AffineLayer; 3],
        durations: usize,
    ) -> Self {
        Self { frame_projection, label_projection, head, durations, buffers: Mutex::default() }
    }
}

impl JointScorer for UnprojectedJoint {
    fn frame_width(&self) -> usize {
        ENCODER_WIDTH
    }

    fn prediction_width(&self) -> usize {
        PREDICTOR_WIDTH
    }

    fn label_row_width(&self) -> usize {
        PREDICTOR_WIDTH
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
        let site_count = sites.sites.len();
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let JointBuffers { encoded, predicted, projected_frames, projected_labels, hidden } = &mut *buffers;
        // Gather the encoder and predictor outputs of each site.
        encoded.clear();
        predicted.clear();
        for &site in sites.sites {
            let (frame_row, label_row) = sites.rows_at(site, ENCODER_WIDTH, PREDICTOR_WIDTH);
            encoded.extend_from_slice(frame_row);
            predicted.extend_from_slice(label_row);
        }
        // Project them, apply tanh and the head.
        for rows in [&mut *projected_frames, &mut *projected_labels, &mut *hidden] {
            rows.truncate(site_count * JOINT_WIDTH);
            rows.resize(site_count * JOINT_WIDTH, 0.0);
        }
        self.frame_projection.forward(encoded, projected_frames, scratch);
        self.label_projection.forward(predicted, projected_labels, scratch);
        let tasks = (
            parts_mut(hidden, ROWS_PER_TASK * JOINT_WIDTH),
            parts(projected_frames, ROWS_PER_TASK * JOINT_WIDTH),
            parts(projected_labels, ROWS_PER_TASK * JOINT_WIDTH),
        );
        par_for(tasks, |_, (hidden, frames, labels)| Activation::Tanh.forward(hidden, frames, labels));
        self.head.forward(hidden, out, scratch);
    }
}
