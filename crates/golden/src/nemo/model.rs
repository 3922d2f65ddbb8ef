//! Builds this workspace's model from a NeMo model.
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarBuilder;
use model::config::{ActivationKind, JointConfig, LossKind};
use model::encoders::{
    AttentionLimits, BatchNormMode, BuildEncoder, ConvolutionNorm, DepthwiseSubsamplingConfig, Encoder,
    EncoderKind, FastConformerEncoderConfig,
};
use model::predictors::{
    ConcatPredictorConfig, LstmPredictorConfig, Predictor, PredictorKind, StartEmbedding,
};
use model::{Model, ModelConfig, Shapes};
use serde_json::Value;

use super::check::NemoCheck;
use crate::case::StoredTensor;
use crate::error::RunError;

/// A NeMo model, and this workspace's configuration of it.
pub(super) struct NemoModel {
    json: Value,
    /// Weights by NeMo's names.
    weights: BTreeMap<String, StoredTensor>,
    pub config: ModelConfig,
    /// Number of labels V, without the blank.
    pub labels: usize,
    /// Shapes of this workspace's parameters.
    shapes: Shapes,
}

/// A part of a NeMo tensor, in the order of its values.
pub(super) enum TensorPart {
    /// This workspace's parameter.
    Parameter(String),
    /// The embedding of the blank, which is 0.
    Zeros(usize),
}

/// Returns an error about a key of the configuration.
fn key_error(key: &str, found: &Value) -> RunError {
    RunError::Failed(format!("model configuration: {key}: expected another value, found {found}"))
}

/// Converts an error of candle to a failure.
pub(super) fn candle_failure(error: candle_core::Error) -> RunError {
    RunError::Failed(error.to_string())
}

/// Converts limits of NeMo, -1 for none; `style` is `regular` or `chunked_limited`.
pub(super) fn attention_limits(style: &str, left: i64, right: i64) -> AttentionLimits {
    let rows = |rows: i64| usize::try_from(rows).ok();
    match (style, rows(left), rows(right)) {
        (_, None, None) => AttentionLimits::Full,
        ("chunked_limited", left, Some(right)) => AttentionLimits::Chunks { chunk: right + 1, left },
        (_, left, right) => AttentionLimits::Window { left, right },
    }
}

impl NemoModel {
    pub(super) fn read(check: &NemoCheck) -> Result<Self, RunError> {
        let json = check.json("config.json")?;
        let weights = check.tensors("weights.safetensors")?;
        let labels = check.json("case.json")?["blank"].as_u64();
        let labels = labels.ok_or_else(|| RunError::Failed("case.json: expected blank".into()))? as usize;
        let mut model = NemoModel {
            config: ModelConfig::new(
                EncoderKind::FastConformer(encoder_config(&json["encoder"])?),
                JointConfig { width: 1, dropout: 0.0 },
            ),
            json,
            weights,
            labels,
            shapes: Shapes::new(),
        };
        model.configure()?;
        model.shapes = Model::shapes(&model.config, labels)?;
        Ok(model)
    }

    /// Returns true for a CTC model.
    pub(super) fn is_ctc_only(&self) -> bool {
        self.json["joint"].is_null()
    }

    /// Returns true for a model with a CTC head.
    pub(super) fn has_ctc(&self) -> bool {
        self.is_ctc_only() || !self.json["aux_ctc"].is_null()
    }

    /// Returns the factor of the auxiliary CTC loss in the total loss.
    pub(super) fn ctc_weight(&self) -> f64 {
        self.json["aux_ctc"]["ctc_loss_weight"].as_f64().unwrap_or(0.0)
    }

    /// Returns the configuration of the encoder.
    pub(super) fn encoder_config(&self) -> FastConformerEncoderConfig {
        match &self.config.encoder {
            EncoderKind::FastConformer(config) => config.clone(),
            other => unreachable!("the model has a FastConformer, found {other:?}"),
        }
    }

    /// Returns the style of NeMo's attention limits.
    pub(super) fn attention_style(&self) -> &str {
        self.json["encoder"]["att_context_style"].as_str().unwrap_or("regular")
    }

    /// Fills in input, predictor, joint network and loss.
    fn configure(&mut self) -> Result<(), RunError> {
        let (json, config) = (&self.json, &mut self.config);
        config.input.features.mels = json["encoder"]["feat_in"].as_u64().unwrap_or(0) as usize;
        (config.input.rows.stack, config.input.rows.stride) = (1, 1);
        if json["joint"].is_null() {
            (config.joint, config.loss.kind) = (None, LossKind::Ctc {});
            return Ok(());
        }
        config.terms.ctc_weight = if json["aux_ctc"].is_null() { 0.0 } else { 1.0 };
        let count = |value: &Value| value.as_u64().unwrap_or(0) as usize;
        let (decoder, joint) = (&json["decoder"], &json["joint"]);
        let width = count(&decoder["prednet"]["pred_hidden"]).max(1);
        let context = count(&decoder["context_size"]);
        config.predictor = Some(match context {
            0 => PredictorKind::Lstm(LstmPredictorConfig {
                embedding: width,
                hidden: width,
                layers: count(&decoder["prednet"]["pred_rnn_layers"]).max(1),
                start: StartEmbedding::Zero,
                two_biases: true,
                ..LstmPredictorConfig::default()
            }),
            context => PredictorKind::Concat(ConcatPredictorConfig {
                width,
                context,
                normalize: decoder["normalization_mode"] == "layer",
                dropout: 0.0,
            }),
        });
        let joint_width = count(&joint["jointnet"]["joint_hidden"]);
        config.joint = Some(JointConfig { width: joint_width, dropout: 0.0 });
        config.loss.options.activation = match joint["jointnet"]["activation"].as_str() {
            Some("relu") => ActivationKind::Relu,
            Some("tanh") => ActivationKind::Tanh,
            _ => return Err(key_error("joint.jointnet.activation", &joint["jointnet"]["activation"])),
        };
        if json["loss"]["loss_name"] == "tdt" {
            let durations = json["loss"]["tdt_kwargs"]["durations"].as_array().into_iter().flatten();
            let durations = durations.map(count).collect();
            config.loss.kind = LossKind::Tdt { durations, sigma: 0.0, omega: 0.0 };
        }
        Ok(())
    }

    /// Returns the parts of a NeMo tensor; none for counters and the front end.
    pub(super) fn parts(&self, name: &str) -> Result<Vec<TensorPart>, RunError> {
        let parameter = |name: String| vec![TensorPart::Parameter(name)];
        let with_blank_row = |name: String| {
            let width = self.shapes.get(&name).and_then(|shape| shape.last()).copied().unwrap_or(0);
            vec![TensorPart::Parameter(name), TensorPart::Zeros(width)]
        };
        if name.starts_with("preprocessor.") || name.ends_with(".num_batches_tracked") {
            return Ok(Vec::new());
        }
        if name.starts_with("encoder.") {
            return Ok(parameter(name.to_owned()));
        }
        if name == "decoder.prediction.embed.weight" {
            return Ok(with_blank_row("predictor.embedding.weight".into()));
        }
        if let Some(table) = name.strip_prefix("decoder.prediction.embeds.") {
            return Ok(with_blank_row(format!("predictor.embeddings.{table}")));
        }
        if let Some((kind, layer)) =
            name.strip_prefix("decoder.prediction.dec_rnn.lstm.").and_then(|rest| rest.rsplit_once("_l"))
        {
            return Ok(parameter(format!("predictor.layers.{layer}.{kind}_l0")));
        }
        let Some((module, kind)) = name.rsplit_once('.') else { return Ok(parameter(name.to_owned())) };
        Ok(match module {
            "joint.enc" => parameter(format!("joint.encoder.{kind}")),
            "joint.pred" => parameter(format!("joint.predictor.{kind}")),
            "joint.joint_net.2" => {
                let mut parts = parameter(format!("joint.head.{kind}"));
                let durations = format!("joint.durations.{kind}");
                if self.shapes.contains_key(&durations) {
                    parts.extend(parameter(durations));
                }
                parts
            }
            "ctc_decoder.decoder_layers.0" | "decoder.decoder_layers.0" => parameter(format!("ctc.{kind}")),
            _ => return Err(RunError::Failed(format!("{name}: expected a known name"))),
        })
    }

    /// Returns all weights by this workspace's names.
    fn values(&self) -> Result<BTreeMap<String, Vec<f64>>, RunError> {
        let mut values = BTreeMap::new();
        for (name, stored) in &self.weights {
            let mut rest = &stored.values[..];
            for part in self.parts(name)? {
                let (count, target) = match part {
                    TensorPart::Zeros(count) => (count, None),
                    TensorPart::Parameter(name) => (self.element_count(&name)?, Some(name)),
                };
                let Some((part_values, next)) = rest.split_at_checked(count) else {
                    return Err(RunError::Failed(format!("{name}: expected more than {}", rest.len())));
                };
                rest = next;
                match target {
                    Some(name) => drop(values.insert(name, part_values.to_vec())),
                    None if part_values.iter().all(|&value| value == 0.0) => {}
                    None => return Err(RunError::Failed(format!("{name}: expected 0 for the blank"))),
                }
            }
            if !rest.is_empty() && !self.parts(name)?.is_empty() {
                return Err(RunError::Failed(format!("{name}: expected {} fewer values", rest.len())));
            }
        }
        match self.shapes.keys().find(|name| !values.contains_key(*name)) {
            Some(name) => Err(RunError::Failed(format!("{name}: expected values, found none"))),
            None => Ok(values),
        }
    }

    /// Returns the number of values of a parameter.
    fn element_count(&self, name: &str) -> Result<usize, RunError> {
        let shape = self.shapes.get(name);
        let shape = shape.ok_or_else(|| RunError::Failed(format!("{name}: no parameter of the model")))?;
        Ok(shape.iter().product())
    }

    /// Creates the model with a kind of loss.
    pub(super) fn model(&self, loss: LossKind) -> Result<Model, RunError> {
        let mut config = self.config.clone();
        config.loss.kind = loss;
        let model = Model::new(&config, self.labels)?;
        self.set_weights(&model)?;
        Ok(model)
    }

    /// Sets all parameters of a model that this one has.
    pub(super) fn set_weights(&self, model: &Model) -> Result<(), RunError> {
        let mut values = model.parameters().values()?;
        for (name, stored) in self.values()? {
            if let Some(values) = values.get_mut(&name) {
                *values = stored.iter().map(|&value| value as f32).collect();
            }
        }
        Ok(model.parameters().set(&values)?)
    }

    /// Returns variables with the weights, by name.
    pub(super) fn variables(&self, dtype: DType) -> Result<HashMap<String, Var>, RunError> {
        let variable = |(name, values): (String, Vec<f64>)| {
            let tensor = Tensor::from_vec(values, &self.shapes[&name][..], &Device::Cpu)
                .and_then(|tensor| Var::from_tensor(&tensor.to_dtype(dtype)?));
            Ok((name, tensor.map_err(candle_failure)?))
        };
        self.values()?.into_iter().map(variable).collect()
    }

    /// Creates an encoder of a configuration over variables.
    pub(super) fn encoder(
        &self,
        config: &FastConformerEncoderConfig,
        variables: &HashMap<String, Var>,
    ) -> Result<Arc<dyn Encoder>, RunError> {
        let vb = builder(variables);
        Ok(config.build(self.config.input.width(), &vb.pp("encoder"))?)
    }

    /// Creates the predictor over variables.
    pub(super) fn predictor(&self, variables: &HashMap<String, Var>) -> Result<Arc<dyn Predictor>, RunError> {
        let predictor = self.config.predictor.as_ref();
        let predictor = predictor.ok_or_else(|| RunError::Failed("no predictor".into()))?;
        let vb = builder(variables);
        Ok(predictor.build(self.labels + 1, self.labels as u32, &vb.pp("predictor"))?)
    }
}

/// Returns a builder of layers over variables.
fn builder(variables: &HashMap<String, Var>) -> VarBuilder<'static> {
    let tensors = variables.iter().map(|(name, variable)| (name.clone(), variable.as_tensor().clone()));
    let dtype = variables.values().next().map_or(DType::F32, |variable| variable.dtype());
    VarBuilder::from_tensors(tensors.collect(), dtype, &Device::Cpu)
}

/// Converts NeMo's configuration of an encoder.
fn encoder_config(json: &Value) -> Result<FastConformerEncoderConfig, RunError> {
    let count = |key: &str| {
        let value = json[key].as_u64().ok_or_else(|| key_error(&format!("encoder.{key}"), &json[key]));
        value.map(|value| value as usize)
    };
    let flag = |key: &str, default: bool| json[key].as_bool().unwrap_or(default);
    let style = json["att_context_style"].as_str().unwrap_or("regular");
    // One pair of limits, or a list of pairs.
    let limits: Vec<AttentionLimits> = {
        let pair = |pair: &Value| Some(attention_limits(style, pair[0].as_i64()?, pair[1].as_i64()?));
        let all = &json["att_context_size"];
        let pairs = if all[0].is_array() { all.as_array().cloned() } else { Some(vec![all.clone()]) };
        pairs.unwrap_or_default().iter().filter_map(pair).collect()
    };
    let width = count("d_model")?;
    let channels = json["subsampling_conv_channels"].as_u64().map_or(width, |channels| channels as usize);
    Ok(FastConformerEncoderConfig {
        layers: count("n_layers")?,
        width,
        heads: count("n_heads")?,
        feed_forward: width * json["ff_expansion_factor"].as_u64().unwrap_or(4) as usize,
        kernel: json["conv_kernel_size"].as_u64().unwrap_or(31) as usize,
        subsampling: DepthwiseSubsamplingConfig {
            channels,
            factor: json["subsampling_factor"].as_u64().unwrap_or(4) as usize,
            causal: flag("causal_downsampling", false),
        },
        attention: limits.first().copied().unwrap_or_default(),
        other_attention: limits.into_iter().skip(1).collect(),
        causal_convolution: json["conv_context_size"] == "causal",
        convolution_norm: match json["conv_norm_type"].as_str() {
            Some("layer_norm") => ConvolutionNorm::Layer,
            _ => ConvolutionNorm::Batch,
        },
        batch_norm: BatchNormMode::Frozen,
        bias: flag("use_bias", true),
        scale_input: flag("xscaling", true),
        dropout: 0.0,
    })
}
