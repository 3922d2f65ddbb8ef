//! Builds the RNN-T of a golden case; maps parameter names of MLPerf's reference.
use candle_core::{Device, Tensor};
use model::encoders::{EncoderKind, LstmEncoderConfig, TimeReduction};
use model::predictors::PredictorKind;
use model::{Model, ModelConfig};
use serde::Deserialize;

use super::check::MlPerfCheck;
use super::file::MlPerfFile;
use crate::error::RunError;

/// Sizes of a model, named as in MLPerf's reference.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct NetworkSizes {
    pub in_feats: usize,
    pub enc_n_hid: usize,
    pub enc_pre_rnn_layers: usize,
    pub enc_post_rnn_layers: usize,
    pub enc_stack_time_factor: usize,
    pub pred_n_hid: usize,
    pub pred_rnn_layers: usize,
    pub joint_n_hid: usize,
    pub n_classes: usize,
}

impl NetworkSizes {
    /// Returns the configuration of the model without dropout.
    pub(super) fn config(&self) -> ModelConfig {
        let mut config = ModelConfig::mlperf_with_widths(self.enc_n_hid, self.pred_n_hid, self.joint_n_hid);
        config.encoder = EncoderKind::Lstm(LstmEncoderConfig {
            layers: self.enc_pre_rnn_layers + self.enc_post_rnn_layers,
            hidden: self.enc_n_hid,
            two_biases: true,
            time_reduction: Some(TimeReduction {
                after_layer: self.enc_pre_rnn_layers,
                factor: self.enc_stack_time_factor,
            }),
            ..LstmEncoderConfig::default()
        });
        if let Some(PredictorKind::Lstm(predictor)) = &mut config.predictor {
            (predictor.layers, predictor.dropout) = (self.pred_rnn_layers, 0.0);
        }
        if let Some(joint) = &mut config.joint {
            joint.dropout = 0.0;
        }
        (config.input.features.mels, config.input.rows.stack) = (self.in_feats, 1);
        config
    }

    /// Returns this workspace's name of a parameter of the reference; none if unknown.
    pub(super) fn find_parameter_name(&self, name: &str) -> Option<String> {
        let parse_layer = |rest: &str, first: usize| {
            let (kind, layer) = rest.rsplit_once("_l")?;
            Some((kind.to_owned(), first + layer.parse::<usize>().ok()?))
        };
        let lstm_name =
            |side: &str, (kind, layer): (String, usize)| format!("{side}.layers.{layer}.{kind}_l0");
        if let Some(rest) = name.strip_prefix("encoder.pre_rnn.lstm.") {
            return Some(lstm_name("encoder", parse_layer(rest, 0)?));
        }
        if let Some(rest) = name.strip_prefix("encoder.post_rnn.lstm.") {
            return Some(lstm_name("encoder", parse_layer(rest, self.enc_pre_rnn_layers)?));
        }
        if let Some(rest) = name.strip_prefix("prediction.dec_rnn.lstm.") {
            return Some(lstm_name("predictor", parse_layer(rest, 0)?));
        }
        let (module, kind) = name.rsplit_once('.')?;
        let module = match module {
            "prediction.embed" => "predictor.embedding",
            "joint_pred" => "joint.predictor",
            "joint_enc" => "joint.encoder",
            "joint_net.2" => "joint.head",
            _ => return None,
        };
        Some(format!("{module}.{kind}"))
    }

    /// [`Self::find_parameter_name`], or an error about the case.
    pub(super) fn parameter_name(&self, file: &MlPerfFile, name: &str) -> Result<String, RunError> {
        Ok(self
            .find_parameter_name(name)
            .ok_or_else(|| file.error(name, "a parameter of the reference", "another"))?)
    }
}

/// Creates the model of a case and sets its weights.
pub(super) fn load(file: &MlPerfFile, sizes: &NetworkSizes) -> Result<Model, RunError> {
    let model = Model::new(&sizes.config(), sizes.n_classes - 1)?;
    let mut values = model.parameters().values()?;
    let mut remaining = values.len();
    for (name, stored) in file.weights()? {
        let parameter_name = sizes.parameter_name(file, &name)?;
        let parameter = values.get_mut(&parameter_name);
        let Some(parameter) = parameter.filter(|parameter| parameter.len() == stored.values.len()) else {
            return Err(file
                .error(&name, &format!("the size of {parameter_name}"), &format!("{:?}", stored.shape))
                .into());
        };
        *parameter = stored.values.iter().map(|&value| value as f32).collect();
        remaining -= 1;
    }
    if remaining > 0 {
        return Err(file.error("weights", "all parameters", &format!("{remaining} missing")).into());
    }
    model.parameters().set(&values)?;
    Ok(model)
}

/// Returns input rows `[B, T, F]` and their lengths.
pub(super) fn features(
    check: &mut MlPerfCheck,
    sizes: &NetworkSizes,
) -> Result<(Tensor, Vec<usize>), RunError> {
    let lengths = check.input_integers("feature_lens")?;
    let rows = check.input::<f32>("features")?;
    let (batch, width) = (lengths.len().max(1), sizes.in_feats.max(1));
    let frames = rows.len() / (batch * width);
    Ok((tensor(rows, &[batch, frames, width])?, lengths))
}

/// Creates a tensor.
pub(super) fn tensor(values: Vec<f32>, shape: &[usize]) -> Result<Tensor, RunError> {
    Tensor::from_vec(values, shape, &Device::Cpu).map_err(candle_failure)
}

/// Converts an error of candle to a failure.
pub(super) fn candle_failure(error: candle_core::Error) -> RunError {
    RunError::Failed(error.to_string())
}
