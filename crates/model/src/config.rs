//! What a model is, apart from the data that it learns from and how.
mod check;
mod gnat;
mod init;
mod loss;
mod loss_options;
mod presets;
mod recipe;
pub mod table;
mod terms;
pub mod values;

use serde::{Deserialize, Serialize};

use crate::encoders::EncoderKind;
use crate::input::InputConfig;
use crate::predictors::PredictorKind;

pub use gnat::{AlignmentKind, GnatConfig, LatticeNormalization};
pub(crate) use init::covers;
pub use init::{InitConfig, InitKind, PretrainedConfig};
pub use loss::LossKind;
pub use loss_options::{ActivationKind, LossBudget, LossConfig, LossOptions};
pub use recipe::EncoderConfig;
pub use terms::{LossTerms, PrecisionKind};

/// Everything that decides a [`Model`](crate::Model): its parts, its first weights and its loss.
///
/// A recipe holds one ([`ModelConfig::from_recipe`]); without a recipe it is filled in directly.
///
/// ```
/// use model::encoders::{EncoderKind, LstmEncoderConfig};
/// use model::predictors::{PredictorKind, StatelessPredictorConfig};
/// use model::config::JointConfig;
/// use model::{Model, ModelConfig};
///
/// let encoder = LstmEncoderConfig { layers: 2, hidden: 32, ..LstmEncoderConfig::default() };
/// let predictor = StatelessPredictorConfig { embedding: 16, context: 2, ..StatelessPredictorConfig::default() };
/// let config = ModelConfig {
///     predictor: Some(PredictorKind::Stateless(predictor)),
///     ..ModelConfig::new(EncoderKind::Lstm(encoder), JointConfig { width: 48, dropout: 0.0 })
/// };
/// let model = Model::new(&config, 30)?;
/// assert_eq!(model.classes(), 31);
/// # Ok::<(), model::Error>(())
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
    pub loss: LossConfig,
    /// What else is minimised, and how exactly.
    pub terms: LossTerms,
    /// How first weights are drawn.
    pub init: InitKind,
}

/// `[joint]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JointConfig {
    /// Width H.
    pub width: usize,
    /// Share of values dropped after the activation.
    #[serde(default)]
    pub dropout: f32,
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
            loss: LossConfig::default(),
            terms: LossTerms::default(),
            init: InitKind::default(),
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
