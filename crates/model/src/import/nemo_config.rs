//! Reads `model_config.yaml` of NeMo: the architecture, and the tokens.
//!
//! Keys that change the model must be known and have supported values; absent keys have NeMo's
//! defaults. Sections of training, decoding and data are ignored: releases change them.
use std::path::Path;

use serde_json::{Value, json};

use super::architecture::{Architecture, OutputArchitecture, TransducerArchitecture};
use super::section::{Section, describe};
use crate::config::{ActivationKind, JointConfig};
use crate::encoders::FastConformerEncoderConfig;
use crate::predictors::{ConcatPredictorConfig, LstmPredictorConfig, PredictorKind, StartEmbedding};
use crate::{Error, Result};

mod encoder;
mod front_end;

/// Names of model classes that are supported.
const MODEL_CLASSES: [&str; 3] = ["EncDecRNNTBPEModel", "EncDecHybridRNNTCTCBPEModel", "EncDecCTCModelBPE"];
/// Prefixes of sections that change a model in unsupported ways.
const UNSUPPORTED_SECTIONS: [&str; 6] =
    ["adapter", "prompt", "num_prompts", "initialize_prompt", "spk", "lang"];
/// NeMo's weight of the auxiliary CTC loss if the configuration has none.
const DEFAULT_CTC_WEIGHT: f64 = 0.5;
/// The CTC weight of a head that the configuration does not train.
const UNTRAINED_CTC_WEIGHT: f64 = 0.3;

/// A configuration of NeMo.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NemoConfig {
    pub architecture: Architecture,
    /// Pieces in the order of their ids, if the configuration lists them.
    pub pieces: Option<Vec<String>>,
    /// Name of the file of the SentencePiece model, without `nemo:`.
    pub tokenizer_file: Option<String>,
}

/// Facts of the tensors that decide where the configuration has no value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TensorFacts {
    /// True if the linear layers of the encoder's layers have biases.
    pub has_bias: bool,
}

/// Reads a configuration, which was YAML or JSON.
///
/// # Errors
/// [`Error::Conversion`] that names the first key with an unsupported value.
pub(crate) fn read(path: &Path, value: &Value, facts: TensorFacts) -> Result<NemoConfig> {
    let root = Section::root(path, value)?;
    // Model class and sections of the whole model.
    let target = root.text("target", Some(""))?;
    let class = class_name(target);
    if !target.is_empty() && !MODEL_CLASSES.contains(&class) {
        return Err(root.error("target", MODEL_CLASSES.join(", "), class));
    }
    let is_unset = |value: &Value| matches!(value, Value::Null | Value::Bool(false)) || *value == json!({});
    for (key, value) in root.keys().filter(|(_, value)| !is_unset(value)) {
        if UNSUPPORTED_SECTIONS.iter().any(|unsupported| key.starts_with(unsupported)) {
            return Err(root.error(key, "none", describe(value)));
        }
    }
    // Parts of the model.
    let front_end = front_end::read(&root.section("preprocessor")?)?;
    let encoder = encoder::read(root.section("encoder")?, front_end.mels, facts)?;
    let decoder = root.section("decoder")?;
    let decoder_class = class_name(decoder.text("_target_", None)?);
    let labels = root.texts("labels")?;
    let (output, pieces, count) = match decoder_class {
        "ConvASRDecoder" => {
            let (count, vocabulary) = read_ctc_head(decoder, &encoder, None)?;
            (OutputArchitecture::Ctc, labels.or(vocabulary), count)
        }
        _ => {
            let pieces = match labels {
                Some(labels) => Some(labels),
                None => root.section("joint")?.texts("vocabulary")?,
            };
            let count = match &pieces {
                Some(pieces) => pieces.len(),
                None => root.section("joint")?.count("num_classes", None)?,
            };
            let output = read_transducer(&root, decoder_class, decoder, count, &encoder)?;
            (OutputArchitecture::Transducer(output), pieces, count)
        }
    };
    let architecture = Architecture {
        labels: count,
        mels: front_end.mels,
        normalizes_features: front_end.normalizes,
        encoder,
        output,
    };
    let pieces = pieces.map(|pieces| pieces.into_iter().map(str::to_owned).collect());
    Ok(NemoConfig { architecture, pieces, tokenizer_file: read_tokenizer(&root)? })
}

/// Returns the last part of a Python class's name.
fn class_name(target: &str) -> &str {
    target.rsplit('.').next().unwrap_or(target)
}

/// Reads the name of the SentencePiece model.
fn read_tokenizer(root: &Section) -> Result<Option<String>> {
    let Some(tokenizer) = root.optional_section("tokenizer")? else { return Ok(None) };
    tokenizer.expect("type", json!("bpe"), &[json!("bpe")])?;
    let file = tokenizer.text("model_path", Some(""))?;
    let file = file.strip_prefix("nemo:").unwrap_or(file);
    // Before it is saved, a configuration has a path of the training machine here.
    Ok(file.rsplit(['/', '\\']).next().filter(|name| !name.is_empty()).map(str::to_owned))
}

/// Reads the CTC head; returns the number of labels, and the pieces.
fn read_ctc_head<'a>(
    head: Section<'a>,
    encoder: &FastConformerEncoderConfig,
    labels: Option<usize>,
) -> Result<(usize, Option<Vec<&'a str>>)> {
    head.expect_class("_target_", "ConvASRDecoder", false)?;
    let width = encoder.width;
    head.expect("feat_in", json!(width), &[json!(width)])?;
    let vocabulary = head.texts("vocabulary")?;
    let count = vocabulary.as_ref().map(Vec::len).or(labels);
    let count = count.map_or_else(|| head.count("num_classes", None), Ok)?;
    head.expect("num_classes", json!(count), &[json!(count), json!(-1)])?;
    head.expect("add_blank", json!(true), &[json!(true)])?;
    head.ignore(&["init_mode"]);
    head.finish()?;
    Ok((count, vocabulary))
}

/// Reads predictor, joint network, loss and the optional CTC head.
fn read_transducer(
    root: &Section,
    decoder_class: &str,
    decoder: Section,
    labels: usize,
    encoder: &FastConformerEncoderConfig,
) -> Result<TransducerArchitecture> {
    let joint = root.section("joint")?;
    let extra_outputs = joint.count("num_extra_outputs", Some(0))?;
    let predictor = match decoder_class {
        "RNNTDecoder" => read_lstm(decoder, labels)?,
        "StatelessTransducerDecoder" => read_stateless(decoder, labels)?,
        _ => {
            let expected = "RNNTDecoder, StatelessTransducerDecoder or ConvASRDecoder";
            return Err(decoder.error("_target_", expected, decoder_class));
        }
    };
    let width = match &predictor {
        PredictorKind::Concat(config) => config.width,
        PredictorKind::Lstm(config) => config.hidden,
        PredictorKind::Stateless(config) => config.embedding,
    };
    let (joint, activation) = read_joint(joint, labels, encoder.width, width)?;
    let (durations, sigma) = read_loss(root, extra_outputs)?;
    let mut ctc_weight = 0.0;
    if let Some(section) = root.optional_section("aux_ctc")? {
        let (head_labels, _) = read_ctc_head(section.section("decoder")?, encoder, Some(labels))?;
        if head_labels != labels {
            return Err(section.error(
                "decoder.vocabulary",
                format!("{labels} pieces"),
                head_labels.to_string(),
            ));
        }
        // NeMo's loss is (1 - w) · transducer + w · CTC.
        let weight = section.number("ctc_loss_weight", Some(DEFAULT_CTC_WEIGHT))?;
        if !(0.0..1.0).contains(&weight) {
            return Err(section.error("ctc_loss_weight", "at least 0, below 1", weight.to_string()));
        }
        ctc_weight = if weight > 0.0 { weight / (1.0 - weight) } else { UNTRAINED_CTC_WEIGHT };
    }
    Ok(TransducerArchitecture { predictor, joint, activation, durations, sigma, ctc_weight })
}

/// Checks the number of labels of a predictor.
fn expect_labels(decoder: &Section, labels: usize) -> Result<()> {
    decoder.expect("vocab_size", json!(labels), &[json!(labels), json!(-1)])
}

fn read_lstm(decoder: Section, labels: usize) -> Result<PredictorKind> {
    expect_labels(&decoder, labels)?;
    decoder.expect("normalization_mode", Value::Null, &[Value::Null])?;
    decoder.expect("blank_as_pad", json!(true), &[json!(true)])?;
    let network = decoder.section("prednet")?;
    let hidden = network.count("pred_hidden", None)?;
    let layers = network.count("pred_rnn_layers", None)?;
    network.expect("rnn_hidden_size", json!(-1), &[json!(-1), json!(hidden)])?;
    network.expect("t_max", Value::Null, &[Value::Null])?;
    let dropout = network.number("dropout", Some(0.0))? as f32;
    let initial = ["forget_gate_bias", "weights_init_scale", "hidden_hidden_bias_scale", "norm_first_rnn"];
    network.ignore(&initial);
    network.finish()?;
    decoder.ignore(&["_target_", "random_state_sampling"]);
    decoder.finish()?;
    Ok(PredictorKind::Lstm(LstmPredictorConfig {
        embedding: hidden,
        hidden,
        layers,
        dropout,
        embedding_dropout: None,
        start: StartEmbedding::Zero,
        two_biases: true,
    }))
}

fn read_stateless(decoder: Section, labels: usize) -> Result<PredictorKind> {
    expect_labels(&decoder, labels)?;
    decoder.expect("normalization_mode", Value::Null, &[Value::Null, json!("layer")])?;
    decoder.expect("blank_as_pad", json!(true), &[json!(true)])?;
    let normalize = decoder.value("normalization_mode").is_some();
    let context = decoder.count("context_size", Some(1))?;
    let network = decoder.section("prednet")?;
    let width = network.count("pred_hidden", None)?;
    let dropout = network.number("dropout", Some(0.0))? as f32;
    network.ignore(&["pred_rnn_layers", "t_max"]);
    network.finish()?;
    decoder.ignore(&["_target_"]);
    decoder.finish()?;
    Ok(PredictorKind::Concat(ConcatPredictorConfig { width, context, normalize, dropout }))
}

fn read_joint(
    joint: Section,
    labels: usize,
    encoder_width: usize,
    predictor_width: usize,
) -> Result<(JointConfig, ActivationKind)> {
    joint.expect_class("_target_", "RNNTJoint", false)?;
    joint.expect("num_classes", json!(labels), &[json!(labels), json!(-1)])?;
    let vocabulary = joint.texts("vocabulary")?.map_or(labels, |pieces| pieces.len());
    if vocabulary != labels {
        return Err(joint.error("vocabulary", format!("{labels} pieces"), vocabulary.to_string()));
    }
    let network = joint.section("jointnet")?;
    let width = network.count("joint_hidden", None)?;
    network.expect("encoder_hidden", json!(encoder_width), &[json!(encoder_width)])?;
    network.expect("pred_hidden", json!(predictor_width), &[json!(predictor_width)])?;
    let dropout = network.number("dropout", Some(0.0))? as f32;
    let activation = match network.text("activation", None)?.to_lowercase().as_str() {
        "relu" => ActivationKind::Relu,
        "tanh" => ActivationKind::Tanh,
        other => return Err(network.error("activation", "relu or tanh", other)),
    };
    network.finish()?;
    // How NeMo computes the same outputs, or trains.
    joint.ignore(&[
        "log_softmax",
        "preserve_memory",
        "fuse_loss_wer",
        "fused_batch_size",
        "experimental_fuse_loss_wer",
        "num_extra_outputs",
        "masking_prob",
    ]);
    joint.finish()?;
    Ok((JointConfig { width, dropout }, activation))
}

/// Reads the durations of the joint's extra outputs, and the loss's under-normalization.
fn read_loss(root: &Section, extra_outputs: usize) -> Result<(Vec<usize>, f64)> {
    let loss = root.optional_section("loss")?;
    let name = match &loss {
        Some(loss) => loss.text("loss_name", Some("default"))?,
        None => "default",
    };
    if extra_outputs == 0 {
        let has_tdt = matches!(name, "tdt" | "multiblank_rnnt");
        return match &loss {
            Some(loss) if has_tdt => Err(loss.error("loss_name", "a transducer without extra outputs", name)),
            _ => Ok((Vec::new(), 0.0)),
        };
    }
    let tdt = match &loss {
        Some(loss) if name != "tdt" => {
            return Err(loss.error("loss_name", format!("tdt, with {extra_outputs} extra outputs"), name));
        }
        Some(loss) => loss.optional_section("tdt_kwargs")?,
        None => None,
    };
    let tdt_durations = tdt.as_ref().map(|tdt| tdt.counts("durations")).transpose()?.flatten();
    let decoding = root.optional_section("decoding")?;
    let decoding_durations =
        decoding.as_ref().map(|section| section.counts("durations")).transpose()?.flatten();
    let defaults = root.optional_section("model_defaults")?;
    let default_durations =
        defaults.as_ref().map(|section| section.counts("tdt_durations")).transpose()?.flatten();
    let lists: Vec<Vec<usize>> =
        [tdt_durations, decoding_durations, default_durations].into_iter().flatten().collect();
    let Some(durations) = lists.first() else {
        return Err(root.error("loss.tdt_kwargs.durations", format!("{extra_outputs} durations"), "none"));
    };
    let is_valid = durations.len() == extra_outputs && lists.iter().all(|list| list == durations);
    if !is_valid {
        let expected = format!("{extra_outputs} durations, the same in loss, decoding and model_defaults");
        return Err(root.error("loss.tdt_kwargs.durations", expected, format!("{lists:?}")));
    }
    let sigma = tdt.as_ref().map(|tdt| tdt.number("sigma", Some(0.0))).transpose()?.unwrap_or(0.0);
    Ok((durations.clone(), sigma))
}

/// Checks that the configuration's pieces are those of the tokenizer.
///
/// # Errors
/// [`Error::Conversion`] for the first one that differs.
pub(crate) fn check_pieces(path: &Path, pieces: &[String], tokens: &[String]) -> Result<()> {
    if pieces.len() != tokens.len() {
        let expected = format!("{} pieces, those of the tokenizer", tokens.len());
        return Err(Error::conversion(path, "labels", expected, pieces.len().to_string()));
    }
    match pieces.iter().zip(tokens).position(|(piece, token)| piece != token) {
        Some(id) => {
            let expected = format!("{:?}, the tokenizer's piece", tokens[id]);
            Err(Error::conversion(path, format!("labels[{id}]"), expected, format!("{:?}", pieces[id])))
        }
        None => Ok(()),
    }
}
