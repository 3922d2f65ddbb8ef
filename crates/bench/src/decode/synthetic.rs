//! Synthetic transducer models and encoder outputs for decoding benchmarks.
//!
//! They are the same in every process and in `crates/bench/python/torch_decode.py`.
use std::sync::Arc;

use decoding::{Activation, AffineLayer, DecodingModel, JointNetwork, JointScorer, LstmLayer, LstmPredictor};
use rnnt_dp::Topology;

use super::unprojected_joint::{ENCODER_WIDTH, JOINT_WIDTH, LABEL_COUNT, PREDICTOR_WIDTH, UnprojectedJoint};
use crate::case::{DecodeWork, Family};
use crate::error::Result;
use crate::inputs::noise;
use crate::workload::CaseShape;

/// Class id of the blank, the last class.
const BLANK: u32 = LABEL_COUNT as u32;
/// Durations of the TDT model.
const DURATIONS: [usize; 5] = [0, 1, 2, 3, 4];

/// Random weights of a model.
///
/// With the bias of the blank (`blank_bias`), about a quarter of the frames has a label.
pub(super) struct SyntheticWeights {
    /// Label embeddings `[V + 1, P]`; the last row is the start of the sequence.
    embedding: Vec<f32>,
    /// Input weight of the LSTM predictor `[4 P, P]`.
    input: Vec<f32>,
    /// Recurrent weight of the LSTM predictor `[4 P, P]`.
    recurrent: Vec<f32>,
    /// Bias of the LSTM predictor `[4 P]`.
    bias: Vec<f32>,
    /// Projection of encoder outputs `[H, E]`.
    frame_projection: Vec<f32>,
    /// Projection of predictor outputs `[H, P]`.
    label_projection: Vec<f32>,
    /// Head weight `[C + D, H]`.
    head: Vec<f32>,
    /// Head bias `[C + D]`.
    head_bias: Vec<f32>,
    family: Family,
}

impl Family {
    /// Returns the durations of the model.
    pub(crate) fn durations(self) -> &'static [usize] {
        match self {
            Self::Rnnt => &[],
            Self::Tdt => &DURATIONS,
        }
    }

    /// Returns the number of head outputs, C + D.
    pub(crate) fn outputs(self) -> usize {
        LABEL_COUNT + 1 + self.durations().len()
    }

    fn topology(self) -> Result<Topology> {
        Ok(match self {
            Self::Rnnt => Topology::rnnt(),
            Self::Tdt => Topology::tdt(&DURATIONS)?,
        })
    }

    /// Returns the blank bias; a quarter of the frames has a label.
    fn blank_bias(self) -> f32 {
        match self {
            Self::Rnnt => 11.225,
            Self::Tdt => 8.765,
        }
    }
}

impl SyntheticWeights {
    /// Draws the weights of a model.
    pub(super) fn new(family: Family) -> Self {
        // Arguments of `noise`: stream, number of values, scale.
        let mut embedding = noise(201, (LABEL_COUNT + 1) * PREDICTOR_WIDTH, 1.7);
        // The start of the sequence has a zero embedding.
        embedding[LABEL_COUNT * PREDICTOR_WIDTH..].fill(0.0);
        let mut head_bias = vec![0.0; family.outputs()];
        head_bias[LABEL_COUNT] = family.blank_bias();
        Self {
            embedding,
            input: noise(202, 4 * PREDICTOR_WIDTH * PREDICTOR_WIDTH, 0.06),
            recurrent: noise(203, 4 * PREDICTOR_WIDTH * PREDICTOR_WIDTH, 0.06),
            bias: noise(204, 4 * PREDICTOR_WIDTH, 0.06),
            frame_projection: noise(205, JOINT_WIDTH * ENCODER_WIDTH, 0.1),
            label_projection: noise(206, JOINT_WIDTH * PREDICTOR_WIDTH, 0.15),
            head: noise(207, family.outputs() * JOINT_WIDTH, 0.25),
            head_bias,
            family,
        }
    }

    /// Returns the model with precomputed projections and input products.
    ///
    /// # Errors
    /// If layers do not fit together; the same holds for the other functions.
    pub(super) fn network(&self) -> Result<(DecodingModel, Arc<JointNetwork>)> {
        let [frame_projection, label_projection, head] = self.layers()?;
        let durations = self.family.durations().len();
        let network = Arc::new(JointNetwork::new(
            Activation::Tanh,
            Some(frame_projection),
            label_projection,
            head,
            durations,
        )?);
        Ok((self.model(usize::MAX, network.clone())?, network))
    }

    /// Returns the model with [`UnprojectedJoint`] and without a table of input products.
    pub(super) fn unprojected(&self) -> Result<DecodingModel> {
        let durations = self.family.durations().len();
        self.model(0, Arc::new(UnprojectedJoint::new(self.layers()?, durations)))
    }

    fn model(&self, table_limit: usize, joint: Arc<dyn JointScorer>) -> Result<DecodingModel> {
        let layer = LstmLayer { input: &self.input, recurrent: &self.recurrent, bias: &self.bias };
        let predictor =
            LstmPredictor::with_table_limit(table_limit, &self.embedding, PREDICTOR_WIDTH, &[layer], BLANK)?;
        Ok(DecodingModel::new(Arc::new(predictor), joint, BLANK, &[], &self.family.topology()?)?)
    }

    /// Returns the projections of encoder and predictor outputs, and the head.
    fn layers(&self) -> Result<[AffineLayer; 3]> {
        Ok([
            AffineLayer::new("frames", &self.frame_projection, ENCODER_WIDTH, None)?,
            AffineLayer::new("predicted", &self.label_projection, PREDICTOR_WIDTH, None)?,
            AffineLayer::new("head", &self.head, JOINT_WIDTH, Some(&self.head_bias))?,
        ])
    }
}

impl DecodeWork {
    /// Returns the frames of each utterance, from 100 to 400.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        (0..self.utterances).map(|b| 100 + b * 97 % 301).collect()
    }

    /// Returns the encoder outputs `[ΣT, E]` of all utterances.
    ///
    /// Consecutive rows have a correlation of 0.5.
    pub(crate) fn encoded(&self) -> Vec<f32> {
        let mut encoded = Vec::new();
        for (b, &length) in self.lengths().iter().enumerate() {
            let mut rows = noise(300 + b as u64, length * ENCODER_WIDTH, 1.7);
            // 0.5² + 0.866² = 1 keeps the variance.
            for index in ENCODER_WIDTH..rows.len() {
                rows[index] = 0.5 * rows[index - ENCODER_WIDTH] + 0.866 * rows[index];
            }
            encoded.append(&mut rows);
        }
        encoded
    }

    /// Returns the sizes for reports.
    pub(crate) fn shape(&self) -> CaseShape {
        let classes = self.family.outputs() - self.family.durations().len();
        CaseShape {
            B: Some(self.batch),
            T: self.lengths().into_iter().max(),
            H: Some(JOINT_WIDTH),
            C: Some(classes),
            ..CaseShape::default()
        }
    }

    /// Returns the bytes of weights, packed weights and encoder outputs in `f32`.
    pub(crate) fn input_bytes(&self) -> u64 {
        // Numbers of values. The table has the LSTM's input products of each label; weights exist
        // twice, as given and packed.
        let table = (LABEL_COUNT + 1) * 4 * PREDICTOR_WIDTH;
        let lstm = 8 * PREDICTOR_WIDTH * PREDICTOR_WIDTH + (LABEL_COUNT + 1) * PREDICTOR_WIDTH;
        let joint = JOINT_WIDTH * (ENCODER_WIDTH + PREDICTOR_WIDTH + self.family.outputs());
        let frames = self.lengths().iter().sum::<usize>() * ENCODER_WIDTH;
        4 * (table + 2 * (lstm + joint) + frames) as u64
    }

    /// Returns the floating-point operations that decoding requires.
    ///
    /// They are the matrix products of each frame, each label and each site on the path, once.
    pub(crate) fn operations(&self, labels: usize, sites: usize) -> u64 {
        // Multiplications for one frame, and for one label.
        let per_frame = ENCODER_WIDTH * JOINT_WIDTH;
        let per_label = PREDICTOR_WIDTH * (4 * PREDICTOR_WIDTH + JOINT_WIDTH);
        let frames: usize = self.lengths().iter().sum();
        2 * (frames * per_frame + labels * per_label + sites * JOINT_WIDTH * self.family.outputs()) as u64
    }
}
