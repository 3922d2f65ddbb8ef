//! What a model is, apart from the data that it learns from and how.
mod check;
mod objective;
mod presets;

use serde::{Deserialize, Serialize};
use speech::FeatureConfig;

use crate::encoder::EncoderKind;
use crate::predictor::PredictorKind;
use crate::recipe::{InitConfig, JointConfig, Loss, RowsConfig, Terms};

/// Everything that decides a [`Model`](crate::Model): its parts, its first weights and its loss.
///
/// A recipe holds one ([`Recipe::model`](crate::Recipe::model)); without a recipe it is filled in directly.
///
/// ```
/// use training::encoder::{EncoderKind, LstmEncoderConfig};
/// use training::predictor::{PredictorKind, StatelessPredictorConfig};
/// use training::recipe::JointConfig;
/// use training::{Model, ModelConfig};
///
/// let encoder = LstmEncoderConfig { layers: 2, hidden: 32, ..LstmEncoderConfig::default() };
/// let predictor = StatelessPredictorConfig { embedding: 16, context: 2, ..StatelessPredictorConfig::default() };
/// let config = ModelConfig {
///     predictor: Some(PredictorKind::Stateless(predictor)),
///     ..ModelConfig::new(EncoderKind::Lstm(encoder), JointConfig { width: 48, dropout: 0.0 })
/// };
/// let model = Model::new(&config, 30)?;
/// assert_eq!(model.classes(), 31);
/// # Ok::<(), training::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Decides first weights.
    pub seed: u64,
    /// From samples to the encoder's rows.
    pub input: InputConfig,
    /// The acoustic side.
    pub encoder: EncoderKind,
    /// The label side; none where the loss brings its own.
    pub predictor: Option<PredictorKind>,
    /// Where both meet.
    pub joint: JointConfig,
    /// Kind of the loss, and what all kinds can say.
    pub loss: Loss,
    /// What else is minimised, and how exactly.
    pub terms: Terms,
    /// How first weights are drawn.
    pub init: InitConfig,
}

/// From samples to the rows that an encoder reads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InputConfig {
    /// From samples to frames.
    pub features: FeatureConfig,
    /// From frames to rows.
    pub rows: RowsConfig,
}

impl InputConfig {
    /// Values of a row.
    pub fn width(&self) -> usize {
        self.rows.width(self.features.mels)
    }
}

impl ModelConfig {
    /// An encoder and a joint, all else by default; a predictor is still to be given.
    pub fn new(encoder: EncoderKind, joint: JointConfig) -> Self {
        ModelConfig {
            seed: 0,
            input: InputConfig::default(),
            encoder,
            predictor: None,
            joint,
            loss: Loss::default(),
            terms: Terms::default(),
            init: InitConfig::default(),
        }
    }

    /// Number of classes with so many labels, blanks included.
    pub fn classes(&self, labels: usize) -> usize {
        labels + 1 + self.loss.kind.big_blanks().len()
    }

    /// Milliseconds from one encoder row to the next: hop · stride · time reduction.
    pub fn frame_ms(&self) -> f64 {
        f64::from(self.input.features.hop_ms) * (self.input.rows.stride * self.encoder.reduction()) as f64
    }
}
