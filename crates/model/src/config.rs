//! `ModelConfig`: encoder, predictor, joint network, loss and initial weights of a model.
pub(crate) mod adapter;
mod check;
mod gnat;
mod init;
mod loss;
mod loss_options;
pub mod old_names;
mod presets;
mod recipe;
pub mod table;
mod terms;
pub mod values;

use serde::{Deserialize, Serialize};

use crate::encoders::EncoderKind;
use crate::input::InputConfig;
use crate::predictors::PredictorKind;
use crate::{Error, Result};

pub use adapter::{AdapterConfig, AdapterModule};
pub use gnat::{AlignmentKind, GnatConfig, LatticeNormalization};
pub use init::{InitConfig, InitKind, PretrainedConfig, covers, number_range};
pub use loss::LossKind;
pub use loss_options::{ActivationKind, LossBudget, LossConfig, LossOptions};
pub use recipe::EncoderConfig;
pub use terms::{LossTerms, PrecisionKind};

/// The configuration of a [`Model`](crate::Model): its parts, initial weights and loss.
///
/// A recipe contains one ([`ModelConfig::from_recipe`]); programs can also fill it in directly.
///
/// ```
/// use model::encoders::{EncoderKind, LstmEncoderConfig};
/// use model::predictors::{PredictorKind, StatelessPredictorConfig};
/// use model::config::JointConfig;
/// use model::{Model, ModelConfig};
///
/// let encoder = LstmEncoderConfig { layers: 2, hidden: 32, ..LstmEncoderConfig::default() };
/// let predictor = StatelessPredictorConfig { embedding: 16, context: 2, dropout: 0.0 };
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
    /// Seed of the initial weights.
    pub seed: u64,
    /// The input: log-mel features, and the encoder's input rows.
    pub input: InputConfig,
    /// The encoder.
    pub encoder: EncoderKind,
    /// The predictor; none for losses that have none.
    pub predictor: Option<PredictorKind>,
    /// The joint network; none for a CTC model.
    pub joint: Option<JointConfig>,
    /// The loss.
    pub loss: LossConfig,
    /// Terms of the objective, and its precision.
    pub terms: LossTerms,
    /// Initialization of the weights.
    pub init: InitKind,
    /// Names of parameters or modules that training does not change.
    ///
    /// As in a recipe's `init.frozen`, `encoder.layers.0..4` are four layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// Low-rank adapters of the encoder, whose other parameters are then frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterConfig>,
}

/// `[joint]`: the joint network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JointConfig {
    /// Width of the hidden vector, H.
    pub width: usize,
    /// Dropout rate after the activation.
    #[serde(default)]
    pub dropout: f32,
}

impl ModelConfig {
    /// Creates a configuration with defaults, a joint network, and without a predictor.
    pub fn new(encoder: EncoderKind, joint: JointConfig) -> Self {
        ModelConfig {
            seed: 0,
            input: InputConfig::default(),
            encoder,
            predictor: None,
            joint: Some(joint),
            loss: LossConfig::default(),
            terms: LossTerms::default(),
            init: InitKind::default(),
            frozen: Vec::new(),
            adapter: None,
        }
    }

    /// Returns the configuration of the joint network.
    ///
    /// # Errors
    /// [`Error::RecipeValue`] if there is none.
    pub(crate) fn joint_network(&self) -> Result<&JointConfig> {
        self.joint.as_ref().ok_or_else(|| Error::RecipeValue {
            key: "joint".into(),
            expected: "a table, with a width".into(),
            found: "none".into(),
        })
    }

    /// Returns the number of classes, blanks included.
    pub fn classes(&self, labels: usize) -> usize {
        labels + 1 + self.loss.kind.big_blanks().len()
    }

    /// Returns the milliseconds between encoder rows: hop · stride · time reduction.
    pub fn frame_ms(&self) -> f64 {
        f64::from(self.input.features.hop_ms) * (self.input.rows.stride * self.encoder.reduction()) as f64
    }
}
