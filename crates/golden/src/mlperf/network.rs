//! The model of a case, with the names of the reference for its parameters.
use candle_core::{Device, Tensor};
use model::encoders::{EncoderKind, LstmEncoderConfig, TimeReduction};
use model::predictors::PredictorKind;
use model::{Model, ModelConfig};
use serde::Deserialize;

use super::check::Check;
use super::file::File;
use crate::error::Stop;

/// Sizes of a model.
#[derive(Debug, Clone, Deserialize)]
pub struct NetworkSizes {
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
    /// The model's configuration, without dropout.
    pub fn config(&self) -> ModelConfig {
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
        config.joint.dropout = 0.0;
        (config.input.features.mels, config.input.rows.stack) = (self.in_feats, 1);
        config
    }

    /// Our name of a parameter of the reference; none if it has none.
    pub fn ours(&self, name: &str) -> Option<String> {
        let layer = |rest: &str, first: usize| {
            let (kind, layer) = rest.rsplit_once("_l")?;
            Some((kind.to_owned(), first + layer.parse::<usize>().ok()?))
        };
        let lstm = |side: &str, (kind, layer): (String, usize)| format!("{side}.layers.{layer}.{kind}_l0");
        if let Some(rest) = name.strip_prefix("encoder.pre_rnn.lstm.") {
            return Some(lstm("encoder", layer(rest, 0)?));
        }
        if let Some(rest) = name.strip_prefix("encoder.post_rnn.lstm.") {
            return Some(lstm("encoder", layer(rest, self.enc_pre_rnn_layers)?));
        }
        if let Some(rest) = name.strip_prefix("prediction.dec_rnn.lstm.") {
            return Some(lstm("predictor", layer(rest, 0)?));
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

    /// The same, or an error about the case.
    pub fn name(&self, file: &File, name: &str) -> Result<String, Stop> {
        Ok(self.ours(name).ok_or_else(|| file.wrong(name, "a parameter of the reference", "another"))?)
    }
}

/// The model of a case, with its weights.
pub fn loaded(file: &File, sizes: &NetworkSizes) -> Result<Model, Stop> {
    let model = Model::new(&sizes.config(), sizes.n_classes - 1)?;
    let mut values = model.parameters().values()?;
    let mut left = values.len();
    for (name, stored) in file.weights()? {
        let ours = sizes.name(file, &name)?;
        let Some(place) = values.get_mut(&ours).filter(|place| place.len() == stored.values.len()) else {
            return Err(file
                .wrong(&name, &format!("the size of {ours}"), &format!("{:?}", stored.shape))
                .into());
        };
        *place = stored.values.iter().map(|&value| value as f32).collect();
        left -= 1;
    }
    if left > 0 {
        return Err(file.wrong("weights", "every parameter", &format!("{left} too few")).into());
    }
    model.parameters().set(&values)?;
    Ok(model)
}

/// Input rows `[B, T, F]` and their lengths.
pub fn features(check: &mut Check, sizes: &NetworkSizes) -> Result<(Tensor, Vec<usize>), Stop> {
    let lengths = check.whole("feature_lens")?;
    let rows = check.input::<f32>("features")?;
    let (batch, width) = (lengths.len().max(1), sizes.in_feats.max(1));
    let frames = rows.len() / (batch * width);
    Ok((tensor(rows, &[batch, frames, width])?, lengths))
}

/// A tensor of these numbers.
pub fn tensor(values: Vec<f32>, shape: &[usize]) -> Result<Tensor, Stop> {
    Tensor::from_vec(values, shape, &Device::Cpu).map_err(refused)
}

/// Candle said no.
pub fn refused(error: candle_core::Error) -> Stop {
    Stop::Refused(error.to_string())
}
