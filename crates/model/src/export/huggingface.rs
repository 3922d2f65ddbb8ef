//! Writes folders of Hugging Face transformers.
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::Export;
use super::weights::{ExportTensor, ExportWeights};
use crate::config::ActivationKind;
use crate::encoders::{AttentionLimits, ConvolutionNorm, FastConformerEncoderConfig};
use crate::import::architecture::{Architecture, OutputArchitecture, TransducerArchitecture};
use crate::import::huggingface::{self, STREAMING_TYPE};
use crate::import::{ImportedSource, Layout};
use crate::predictors::{PredictorKind, StartEmbedding};
use crate::{Error, Result};

/// Bytes that the length of the header is a multiple of.
const HEADER_ALIGNMENT: usize = 8;

/// Writes the files of the folder and returns their paths.
pub(super) fn write(export: &Export, folder: &Path) -> Result<Vec<PathBuf>> {
    let source = export.source_of_layout(Layout::HuggingFace, |source: &ImportedSource| {
        let value: Value = serde_json::from_str(&source.configuration)
            .map_err(|error| export.error("configuration", "JSON", error.to_string()))?;
        huggingface::read(export.path, &value, has_blank_embedding(&export.architecture))
    });
    let created;
    let (configuration, mut files) = match source {
        Some(source) => {
            let files = source.files.iter().map(|(name, bytes)| (name.clone(), bytes.0.clone())).collect();
            (source.configuration.as_str(), files)
        }
        None => {
            created = to_json(&configuration(export)?);
            (created.as_str(), created_files(&export.architecture))
        }
    };
    if let Some((name, bytes)) = export.tokenizer.source_file() {
        files.push((name.to_owned(), bytes.to_vec()));
    }
    files.push(("config.json".into(), configuration.as_bytes().to_vec()));
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "create the folder"))?;
    let mut paths = Vec::new();
    for (name, bytes) in files {
        // A checkpoint is not trusted to name files elsewhere.
        if Path::new(&name).file_name().is_none_or(|file_name| file_name != name.as_str()) {
            return Err(export.error(&name, "a file name without folders", "a path"));
        }
        let path = folder.join(name);
        export.write_file(&path, &mut |file| file.write_all(&bytes))?;
        paths.push(path);
    }
    let path = folder.join("model.safetensors");
    export.write_file(&path, &mut |file| write_safetensors(&export.weights, file))?;
    paths.push(path);
    Ok(paths)
}

/// Writes the tensors as a safetensors file.
fn write_safetensors(weights: &ExportWeights, file: &mut dyn Write) -> io::Result<()> {
    // Larger elements first, so that all are aligned.
    let mut tensors: Vec<(&str, &ExportTensor)> = weights.iter().collect();
    tensors.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype.bitsize()));
    let (mut header, mut end) = (Map::new(), 0);
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    for (name, tensor) in &tensors {
        let offsets = [end, end + tensor.len()];
        end += tensor.len();
        let entry = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets });
        header.insert((*name).to_owned(), entry);
    }
    let mut text = serde_json::to_vec(&header)?;
    text.resize(text.len().next_multiple_of(HEADER_ALIGNMENT), b' ');
    file.write_all(&(text.len() as u64).to_le_bytes())?;
    file.write_all(&text)?;
    tensors.iter().try_for_each(|(_, tensor)| file.write_all(&weights.bytes(tensor)))
}

/// Returns true if the predictor starts with the blank's embedding.
fn has_blank_embedding(architecture: &Architecture) -> bool {
    match &architecture.output {
        OutputArchitecture::Transducer(TransducerArchitecture {
            predictor: PredictorKind::Lstm(lstm),
            ..
        }) => lstm.start == StartEmbedding::Blank,
        _ => false,
    }
}

fn to_json(value: &Value) -> String {
    // A value without maps of other keys than texts can always be written.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// Returns `config.json` of a model.
///
/// # Errors
/// [`Error::Conversion`] for parts that transformers does not have.
fn configuration(export: &Export) -> Result<Value> {
    let Architecture { labels, mels, normalizes_features, encoder, output } = &export.architecture;
    let is_streaming = encoder.subsampling.causal;
    let encoder_config = encoder_section(export, encoder, *mels)?;
    if *normalizes_features == is_streaming {
        let expected = "sample normalization, or none in causal models";
        return Err(export.error("features.normalize", expected, "the other"));
    }
    let mut config =
        json!({ "vocab_size": labels + 1, "encoder_config": encoder_config, "dtype": "float32" });
    let (model_type, class) = match output {
        OutputArchitecture::Ctc if is_streaming => {
            return Err(export.error("loss.kind", "a transducer, for causal models", "ctc"));
        }
        OutputArchitecture::Ctc => {
            config["pad_token_id"] = json!(labels);
            config["ctc_loss_reduction"] = json!("mean");
            config["ctc_zero_infinity"] = json!(true);
            ("parakeet_ctc", "ParakeetForCTC")
        }
        OutputArchitecture::Transducer(transducer) => {
            add_transducer(export, transducer, *labels, &mut config)?;
            match (is_streaming, transducer.durations.is_empty()) {
                (true, true) => (STREAMING_TYPE, "NemotronAsrStreamingForRNNT"),
                (false, true) => ("parakeet_rnnt", "ParakeetForRNNT"),
                (false, false) => ("parakeet_tdt", "ParakeetForTDT"),
                (true, false) => return Err(export.error("loss.kind", "rnnt, for causal models", "tdt")),
            }
        }
    };
    config["model_type"] = json!(model_type);
    config["architectures"] = json!([class]);
    Ok(config)
}

fn encoder_section(export: &Export, encoder: &FastConformerEncoderConfig, mels: usize) -> Result<Value> {
    let is_streaming = encoder.subsampling.causal;
    let norm = if is_streaming { ConvolutionNorm::Layer } else { ConvolutionNorm::Batch };
    let is_consistent = encoder.causal_convolution == is_streaming && encoder.convolution_norm == norm;
    if !is_consistent {
        let expected = "causal layers with layer norm, or neither, as the classes of transformers have";
        return Err(export.error("encoder", expected, "a mixture"));
    }
    let mut config = json!({
        "model_type": if is_streaming { "nemotron_asr_streaming_encoder" } else { "parakeet_encoder" },
        "hidden_size": encoder.width,
        "num_hidden_layers": encoder.layers,
        "num_attention_heads": encoder.heads,
        "num_key_value_heads": encoder.heads,
        "intermediate_size": encoder.feed_forward,
        "hidden_act": "silu",
        "attention_bias": encoder.bias,
        "convolution_bias": encoder.bias,
        "conv_kernel_size": encoder.kernel,
        "subsampling_factor": encoder.subsampling.factor,
        "subsampling_conv_channels": encoder.subsampling.channels,
        "subsampling_conv_kernel_size": 3,
        "subsampling_conv_stride": 2,
        "num_mel_bins": mels,
        "scale_input": encoder.scale_input,
        "max_position_embeddings": 5000,
        "dropout": 0.1,
        "layerdrop": 0.0,
    });
    match (is_streaming, encoder.attention) {
        (false, AttentionLimits::Full) => {}
        (true, AttentionLimits::Chunks { chunk, left: Some(left) }) => {
            config["sliding_window"] = json!(left + 1);
            config["default_num_lookahead_tokens"] = json!(chunk - 1);
        }
        _ => {
            let expected = "\"full\", or chunks with a limit on the left in causal models";
            return Err(export.error("encoder.attention", expected, format!("{:?}", encoder.attention)));
        }
    }
    Ok(config)
}

fn add_transducer(
    export: &Export,
    transducer: &TransducerArchitecture,
    labels: usize,
    config: &mut Value,
) -> Result<()> {
    let PredictorKind::Lstm(lstm) = &transducer.predictor else {
        return Err(export.error("predictor.kind", "lstm", "concat"));
    };
    if lstm.hidden != transducer.joint.width {
        let expected = format!("joint.width = {}, as in transformers", transducer.joint.width);
        return Err(export.error("predictor.hidden", expected, lstm.hidden.to_string()));
    }
    if transducer.ctc_weight > 0.0 {
        let expected = "0: transformers has no class with both heads";
        return Err(export.error("training.ctc_weight", expected, transducer.ctc_weight.to_string()));
    }
    config["decoder_hidden_size"] = json!(lstm.hidden);
    config["num_decoder_layers"] = json!(lstm.layers);
    config["hidden_act"] = match transducer.activation {
        ActivationKind::Relu => json!("relu"),
        ActivationKind::Tanh => json!("tanh"),
    };
    let pad = export.tokenizer.tokens().iter().position(|token| token == "<pad>").unwrap_or(0);
    config["pad_token_id"] = json!(pad);
    config["blank_token_id"] = json!(labels);
    config["max_symbols_per_step"] = json!(10);
    config["is_encoder_decoder"] = json!(true);
    if !transducer.durations.is_empty() {
        config["durations"] = json!(transducer.durations);
    }
    Ok(())
}

/// Returns the configurations of feature extractor and generation.
fn created_files(architecture: &Architecture) -> Vec<(String, Vec<u8>)> {
    let extractor = match architecture.encoder.subsampling.causal {
        true => "NemotronAsrStreamingFeatureExtractor",
        false => "ParakeetFeatureExtractor",
    };
    let preprocessor = json!({
        "feature_extractor_type": extractor,
        "feature_size": architecture.mels,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 512,
        "win_length": 400,
        "preemphasis": 0.97,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": true,
    });
    let mut files = vec![("preprocessor_config.json".to_owned(), to_json(&preprocessor).into_bytes())];
    if let OutputArchitecture::Transducer(transducer) = &architecture.output {
        let blank = architecture.labels;
        let mut generation = json!({ "decoder_start_token_id": blank });
        if !transducer.durations.is_empty() {
            let outputs: Vec<usize> = (blank + 1..=blank + transducer.durations.len()).collect();
            generation["suppress_tokens"] = json!(outputs);
        }
        files.push(("generation_config.json".to_owned(), to_json(&generation).into_bytes()));
    }
    files
}
