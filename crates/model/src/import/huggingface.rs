//! Reads `config.json` of Hugging Face transformers: Parakeet and Nemotron models.
//!
//! | `model_type` | class | model |
//! |---|---|---|
//! | `parakeet_ctc` | `ParakeetForCTC` | encoder and CTC head |
//! | `parakeet_rnnt` | `ParakeetForRNNT` | transducer |
//! | `parakeet_tdt` | `ParakeetForTDT` | token-and-duration transducer |
//! | `nemotron_asr_streaming` | `NemotronAsrStreamingForRNNT` | transducer with causal layers and chunks |
use std::path::Path;

use serde_json::{Value, json};

use super::architecture::{Architecture, OutputArchitecture, TransducerArchitecture};
use super::section::Section;
use crate::Result;
use crate::config::{ActivationKind, JointConfig};
use crate::encoders::{
    AttentionLimits, BatchNormMode, ConvolutionNorm, DepthwiseSubsamplingConfig, FastConformerEncoderConfig,
};
use crate::predictors::{LstmPredictorConfig, PredictorKind, StartEmbedding};

/// Value of `model_type` of streaming models.
pub(crate) const STREAMING_TYPE: &str = "nemotron_asr_streaming";
/// Values of `model_type`.
const MODEL_TYPES: [&str; 4] = ["parakeet_ctc", "parakeet_rnnt", "parakeet_tdt", STREAMING_TYPE];
/// Keys of all configurations that do not describe the model.
const GENERAL_KEYS: [&str; 21] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// Reads a configuration.
///
/// `has_blank_embedding` is true if the embedding of the blank is not zero.
///
/// # Errors
/// [`Error::Conversion`](crate::Error::Conversion) that names the first key with an unsupported
/// value.
pub(crate) fn read(path: &Path, value: &Value, has_blank_embedding: bool) -> Result<Architecture> {
    let root = Section::root(path, value)?;
    let model_type = root.text("model_type", None)?;
    if !MODEL_TYPES.contains(&model_type) {
        return Err(root.error("model_type", MODEL_TYPES.join(", "), model_type));
    }
    let is_streaming = model_type == STREAMING_TYPE;
    let (encoder, mels) = read_encoder(root.section("encoder_config")?, is_streaming)?;
    let labels = match root.count("vocab_size", None)?.checked_sub(1) {
        Some(labels) if labels > 0 => labels,
        _ => return Err(root.error("vocab_size", "at least 2", "less")),
    };
    let output = if model_type == "parakeet_ctc" {
        root.expect("pad_token_id", json!(labels), &[json!(labels)])?;
        root.ignore(&["ctc_loss_reduction", "ctc_zero_infinity"]);
        OutputArchitecture::Ctc
    } else {
        let transducer = read_transducer(&root, labels, model_type == "parakeet_tdt", has_blank_embedding)?;
        OutputArchitecture::Transducer(transducer)
    };
    root.ignore(&GENERAL_KEYS);
    root.finish()?;
    // Streaming models are trained without normalization, all others with it.
    Ok(Architecture { labels, mels, normalizes_features: !is_streaming, encoder, output })
}

/// Reads the encoder, and the number of mel bins.
fn read_encoder(section: Section, is_streaming: bool) -> Result<(FastConformerEncoderConfig, usize)> {
    let model_type = if is_streaming { "nemotron_asr_streaming_encoder" } else { "parakeet_encoder" };
    section.expect("model_type", json!(model_type), &[json!(model_type)])?;
    section.expect("hidden_act", json!("silu"), &[json!("silu"), json!("swish")])?;
    section.expect("subsampling_conv_kernel_size", json!(3), &[json!(3)])?;
    section.expect("subsampling_conv_stride", json!(2), &[json!(2)])?;
    let heads = section.count("num_attention_heads", None)?;
    section.expect("num_key_value_heads", json!(heads), &[json!(heads)])?;
    let bias = section.flag("attention_bias", true)?;
    section.expect("convolution_bias", json!(bias), &[json!(bias)])?;
    let attention = match is_streaming {
        false => AttentionLimits::Full,
        true => {
            // The window contains the query.
            let window = section.count("sliding_window", None)?;
            let right = section.count("default_num_lookahead_tokens", None)?;
            let Some(left) = window.checked_sub(1) else {
                return Err(section.error("sliding_window", "at least 1", "0"));
            };
            AttentionLimits::Chunks { chunk: right.saturating_add(1), left: Some(left) }
        }
    };
    let config = FastConformerEncoderConfig {
        layers: section.count("num_hidden_layers", None)?,
        width: section.count("hidden_size", None)?,
        heads,
        feed_forward: section.count("intermediate_size", None)?,
        kernel: section.count("conv_kernel_size", Some(9))?,
        subsampling: DepthwiseSubsamplingConfig {
            channels: section.count("subsampling_conv_channels", Some(256))?,
            factor: section.count("subsampling_factor", Some(8))?,
            causal: is_streaming,
        },
        attention,
        other_attention: Vec::new(),
        causal_convolution: is_streaming,
        convolution_norm: if is_streaming { ConvolutionNorm::Layer } else { ConvolutionNorm::Batch },
        batch_norm: BatchNormMode::Frozen,
        bias,
        scale_input: section.flag("scale_input", true)?,
        dropout: section.number("dropout", Some(0.1))? as f32,
    };
    let mels = section.count("num_mel_bins", Some(80))?;
    section.ignore(&[
        "activation_dropout",
        "attention_dropout",
        "dropout_positions",
        "layerdrop",
        "max_position_embeddings",
    ]);
    section.ignore(&GENERAL_KEYS);
    section.finish()?;
    Ok((config, mels))
}

/// Reads predictor and joint network, which have one width.
fn read_transducer(
    root: &Section,
    labels: usize,
    has_durations: bool,
    has_blank_embedding: bool,
) -> Result<TransducerArchitecture> {
    root.expect("blank_token_id", json!(labels), &[json!(labels)])?;
    let hidden = root.count("decoder_hidden_size", None)?;
    let activation = match root.text("hidden_act", Some("relu"))? {
        "relu" => ActivationKind::Relu,
        "tanh" => ActivationKind::Tanh,
        other => return Err(root.error("hidden_act", "relu or tanh", other)),
    };
    let durations = match has_durations {
        true => {
            root.counts("durations")?.ok_or_else(|| root.error("durations", "a list of frames", "none"))?
        }
        false => Vec::new(),
    };
    root.ignore(&[
        "durations",
        "max_symbols_per_step",
        "pad_token_id",
        "tdt_loss_reduction",
        "rnnt_loss_reduction",
    ]);
    let start = if has_blank_embedding { StartEmbedding::Blank } else { StartEmbedding::Zero };
    Ok(TransducerArchitecture {
        predictor: PredictorKind::Lstm(LstmPredictorConfig {
            embedding: hidden,
            hidden,
            layers: root.count("num_decoder_layers", None)?,
            dropout: 0.0,
            embedding_dropout: None,
            start,
            two_biases: true,
        }),
        joint: JointConfig { width: hidden, dropout: 0.0 },
        activation,
        durations,
        sigma: 0.0,
        ctc_weight: 0.0,
    })
}
