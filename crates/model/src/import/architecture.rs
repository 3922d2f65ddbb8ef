//! `Architecture`: an imported model, and its recipe.
use std::path::Path;

use serde::Serialize;
use toml::Table;

use crate::config::{ActivationKind, JointConfig};
use crate::encoders::{EncoderKind, FastConformerEncoderConfig};
use crate::predictors::PredictorKind;
use crate::{Error, ModelConfig, Result};

/// Limits of the encoder's batches: two minutes of frames.
const MAX_BATCH_FRAMES: usize = 12_000;
/// Largest number of utterances of a batch.
const MAX_BATCH_UTTERANCES: usize = 16;

/// The parts of a model, as other toolkits describe them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Architecture {
    /// Number of labels V, without the blank.
    pub labels: usize,
    /// Number of mel bins.
    pub mels: usize,
    /// True for features normalized over each utterance.
    pub normalizes_features: bool,
    pub encoder: FastConformerEncoderConfig,
    pub output: OutputArchitecture,
}

/// The parts after the encoder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OutputArchitecture {
    Transducer(TransducerArchitecture),
    Ctc,
}

/// Predictor and joint network of a transducer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TransducerArchitecture {
    pub predictor: PredictorKind,
    pub joint: JointConfig,
    pub activation: ActivationKind,
    /// Durations of a token-and-duration transducer; empty for others.
    pub durations: Vec<usize>,
    /// Logit under-normalization of the loss with durations.
    pub sigma: f64,
    /// Weight of the auxiliary CTC loss; 0 without a CTC head.
    pub ctc_weight: f64,
}

/// The tables of a recipe, in the order of its text.
#[derive(Serialize)]
struct RecipeTables {
    features: Table,
    tokens: Table,
    encoder: EncoderTable,
    #[serde(skip_serializing_if = "Option::is_none")]
    predictor: Option<PredictorKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    joint: Option<JointConfig>,
    batch: BatchTable,
    loss: Table,
    training: Table,
}

#[derive(Serialize)]
struct EncoderTable {
    stack: usize,
    stride: usize,
    #[serde(flatten)]
    kind: EncoderKind,
}

#[derive(Serialize)]
struct BatchTable {
    max_frames: usize,
    max_utterances: usize,
}

impl Architecture {
    /// Returns the text of the recipe and the configuration that it describes.
    ///
    /// `tokens` is the kind of the tokenizer; `path` is the source, for messages.
    ///
    /// # Errors
    /// [`Error::Inside`] the source if the recipe is out of range, for example for widths.
    pub(crate) fn recipe(&self, path: &Path, tokens: &str) -> Result<(String, ModelConfig)> {
        let inside = |source| Error::Inside { path: path.to_owned(), source: Box::new(source) };
        let tables = self.tables(tokens);
        let text = toml::to_string(&tables).map_err(|error| {
            Error::conversion(path, "configuration", "values of a recipe", error.to_string())
        })?;
        let text = format!("# Imported from {}.\n{text}", one_line(path));
        let config = ModelConfig::from_recipe(&text, Path::new("of the import")).map_err(inside)?;
        Ok((text, config))
    }

    /// Returns the architecture without values that concern training only.
    pub(crate) fn without_training(mut self) -> Self {
        self.encoder.dropout = 0.0;
        if let OutputArchitecture::Transducer(transducer) = &mut self.output {
            transducer.sigma = 0.0;
            transducer.ctc_weight = if transducer.ctc_weight > 0.0 { 1.0 } else { 0.0 };
            // The existence of a dropout layer changes names.
            transducer.joint.dropout = if transducer.joint.dropout > 0.0 { 1.0 } else { 0.0 };
            match &mut transducer.predictor {
                PredictorKind::Lstm(config) => (config.dropout, config.embedding_dropout) = (0.0, None),
                PredictorKind::Concat(config) => config.dropout = 0.0,
                PredictorKind::Stateless(config) => config.dropout = 0.0,
            }
        }
        self
    }

    fn tables(&self, tokens: &str) -> RecipeTables {
        let mut features = table([("preset", "nemo".into()), ("mels", (self.mels as i64).into())]);
        if !self.normalizes_features {
            features.insert("normalize".into(), "none".into());
        }
        let (mut predictor, mut joint, mut training) = (None, None, Table::new());
        let loss = match &self.output {
            OutputArchitecture::Ctc => table([("kind", "ctc".into())]),
            OutputArchitecture::Transducer(transducer) => {
                predictor = Some(transducer.predictor.clone());
                joint = Some(transducer.joint.clone());
                if transducer.ctc_weight > 0.0 {
                    training.insert("ctc_weight".into(), transducer.ctc_weight.into());
                }
                transducer.loss_table()
            }
        };
        RecipeTables {
            features,
            tokens: table([("kind", tokens.into())]),
            encoder: EncoderTable {
                stack: 1,
                stride: 1,
                kind: EncoderKind::FastConformer(self.encoder.clone()),
            },
            predictor,
            joint,
            batch: BatchTable { max_frames: MAX_BATCH_FRAMES, max_utterances: MAX_BATCH_UTTERANCES },
            loss,
            training,
        }
    }
}

impl TransducerArchitecture {
    fn loss_table(&self) -> Table {
        let mut loss = match &self.durations[..] {
            [] => table([("kind", "rnnt".into())]),
            durations => {
                let durations: Vec<i64> = durations.iter().map(|&frames| frames as i64).collect();
                table([("kind", "tdt".into()), ("durations", durations.into()), ("sigma", self.sigma.into())])
            }
        };
        if self.activation == ActivationKind::Relu {
            loss.insert("activation".into(), "relu".into());
        }
        loss
    }
}

fn table<const N: usize>(entries: [(&str, toml::Value); N]) -> Table {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the name of a file for a comment.
fn one_line(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
