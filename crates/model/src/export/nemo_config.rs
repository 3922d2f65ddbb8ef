//! Creates `model_config.yaml` of NeMo from an architecture.
use serde_json::{Map, Value, json};

use super::Export;
use crate::Result;
use crate::config::ActivationKind;
use crate::encoders::{AttentionLimits, ConvolutionNorm, FastConformerEncoderConfig};
use crate::import::architecture::{Architecture, OutputArchitecture, TransducerArchitecture};
use crate::predictors::{PredictorKind, StartEmbedding};

/// Module of NeMo's classes.
const MODULES: &str = "nemo.collections.asr.modules";
/// Module of NeMo's models.
const MODELS: &str = "nemo.collections.asr.models";
/// Labels of a frame in greedy search, NeMo's default.
const MAX_SYMBOLS: usize = 10;

/// Returns the configuration of a model; files of the tokenizer have names with `prefix`.
///
/// # Errors
/// [`Error::Conversion`](crate::Error::Conversion) for parts that NeMo does not have.
pub(super) fn configuration(export: &Export, prefix: &str) -> Result<Value> {
    let Architecture { labels, mels, normalizes_features, encoder, output } = &export.architecture;
    let pieces = export.tokenizer.tokens();
    let mut config = json!({
        "sample_rate": 16_000,
        "tokenizer": {
            "type": "bpe",
            "dir": "tokenizer",
            "model_path": format!("nemo:{prefix}tokenizer.model"),
            "vocab_path": format!("nemo:{prefix}vocab.txt"),
            "spe_tokenizer_vocab": format!("nemo:{prefix}tokenizer.vocab"),
        },
        "preprocessor": {
            "_target_": format!("{MODULES}.AudioToMelSpectrogramPreprocessor"),
            "sample_rate": 16_000,
            "normalize": if *normalizes_features { "per_feature" } else { "NA" },
            "window_size": 0.025,
            "window_stride": 0.01,
            "window": "hann",
            "features": mels,
            "n_fft": 512,
            "frame_splicing": 1,
            "dither": 1e-5,
            "pad_to": 0,
        },
        "encoder": encoder_section(export, encoder, *mels)?,
    });
    let head = json!({
        "_target_": format!("{MODULES}.ConvASRDecoder"),
        "feat_in": encoder.width,
        "num_classes": labels,
        "vocabulary": pieces,
    });
    let target = match output {
        OutputArchitecture::Ctc => {
            config["decoder"] = head;
            "ctc_bpe_models.EncDecCTCModelBPE"
        }
        OutputArchitecture::Transducer(transducer) => {
            add_transducer(export, transducer, *labels, encoder.width, pieces, &mut config)?;
            if transducer.ctc_weight > 0.0 {
                // The sum of both weights is 1 in NeMo.
                let weight = transducer.ctc_weight / (1.0 + transducer.ctc_weight);
                config["aux_ctc"] = json!({
                    "ctc_loss_weight": weight,
                    "use_cer": false,
                    "ctc_reduction": "mean_batch",
                    "decoder": head,
                    "decoding": { "strategy": "greedy" },
                });
                "hybrid_rnnt_ctc_bpe_models.EncDecHybridRNNTCTCBPEModel"
            } else {
                "rnnt_bpe_models.EncDecRNNTBPEModel"
            }
        }
    };
    config["target"] = json!(format!("{MODELS}.{target}"));
    Ok(config)
}

fn encoder_section(export: &Export, encoder: &FastConformerEncoderConfig, mels: usize) -> Result<Value> {
    let mut limits = vec![&encoder.attention];
    limits.extend(&encoder.other_attention);
    let is_chunked = limits.iter().any(|limits| matches!(limits, AttentionLimits::Chunks { .. }));
    let pairs =
        limits.iter().map(|limits| context_size(export, limits, is_chunked)).collect::<Result<Vec<_>>>()?;
    if !encoder.feed_forward.is_multiple_of(encoder.width) {
        let expected = format!("a multiple of encoder.width = {}", encoder.width);
        return Err(export.error("encoder.feed_forward", expected, encoder.feed_forward.to_string()));
    }
    Ok(json!({
        "_target_": format!("{MODULES}.ConformerEncoder"),
        "feat_in": mels,
        "feat_out": -1,
        "n_layers": encoder.layers,
        "d_model": encoder.width,
        "use_bias": encoder.bias,
        "subsampling": "dw_striding",
        "subsampling_factor": encoder.subsampling.factor,
        "subsampling_conv_channels": encoder.subsampling.channels,
        "causal_downsampling": encoder.subsampling.causal,
        "ff_expansion_factor": encoder.feed_forward / encoder.width,
        "self_attention_model": "rel_pos",
        "n_heads": encoder.heads,
        "att_context_size": if pairs.len() == 1 { json!(pairs[0]) } else { json!(pairs) },
        "att_context_style": if is_chunked { "chunked_limited" } else { "regular" },
        "xscaling": encoder.scale_input,
        "untie_biases": true,
        "pos_emb_max_len": 5000,
        "conv_kernel_size": encoder.kernel,
        "conv_norm_type": match encoder.convolution_norm {
            ConvolutionNorm::Batch => "batch_norm",
            ConvolutionNorm::Layer => "layer_norm",
        },
        "conv_context_size": if encoder.causal_convolution { json!("causal") } else { Value::Null },
        "dropout": rounded(encoder.dropout),
        "dropout_pre_encoder": rounded(encoder.dropout),
        "dropout_emb": 0.0,
        "dropout_att": rounded(encoder.dropout),
    }))
}

/// Returns NeMo's pair of limits; -1 is no limit.
fn context_size(export: &Export, limits: &AttentionLimits, is_chunked: bool) -> Result<[i64; 2]> {
    let rows = |side: Option<usize>| side.map_or(-1, |rows| rows as i64);
    match *limits {
        AttentionLimits::Full => Ok([-1, -1]),
        AttentionLimits::Chunks { chunk, left } => Ok([rows(left), chunk as i64 - 1]),
        AttentionLimits::Window { left, right: None } => Ok([rows(left), -1]),
        AttentionLimits::Window { .. } if is_chunked => {
            let expected = "chunks, or all windows without chunks";
            Err(export.error("encoder.attention", expected, "chunks and windows"))
        }
        AttentionLimits::Window { left, right } => Ok([rows(left), rows(right)]),
    }
}

/// Adds the sections of predictor, joint network, loss and decoding.
fn add_transducer(
    export: &Export,
    transducer: &TransducerArchitecture,
    labels: usize,
    encoder_width: usize,
    pieces: &[String],
    config: &mut Value,
) -> Result<()> {
    let (decoder, predictor_width) = match &transducer.predictor {
        PredictorKind::Lstm(lstm) => {
            if lstm.start == StartEmbedding::Blank {
                let expected = "zero, as in NeMo";
                return Err(export.error("predictor.start", expected, "blank"));
            }
            let section = json!({
                "_target_": format!("{MODULES}.RNNTDecoder"),
                "normalization_mode": null,
                "random_state_sampling": false,
                "blank_as_pad": true,
                "vocab_size": labels,
                "prednet": {
                    "pred_hidden": lstm.hidden,
                    "pred_rnn_layers": lstm.layers,
                    "t_max": null,
                    "dropout": rounded(lstm.dropout),
                },
            });
            (section, lstm.hidden)
        }
        PredictorKind::Concat(concat) => {
            let section = json!({
                "_target_": format!("{MODULES}.StatelessTransducerDecoder"),
                "context_size": concat.context,
                "normalization_mode": if concat.normalize { json!("layer") } else { Value::Null },
                "vocab_size": labels,
                "prednet": { "pred_hidden": concat.width, "dropout": rounded(concat.dropout) },
            });
            (section, concat.width)
        }
        PredictorKind::Stateless(_) => {
            return Err(export.error("predictor.kind", "lstm or concat", "stateless"));
        }
    };
    let durations = &transducer.durations;
    let width = transducer.joint.width;
    let mut joint = json!({
        "_target_": format!("{MODULES}.RNNTJoint"),
        "log_softmax": null,
        "preserve_memory": false,
        "fuse_loss_wer": true,
        "fused_batch_size": 4,
        "jointnet": {
            "joint_hidden": width,
            "activation": match transducer.activation {
                ActivationKind::Relu => "relu",
                ActivationKind::Tanh => "tanh",
            },
            "dropout": rounded(transducer.joint.dropout),
            "encoder_hidden": encoder_width,
            "pred_hidden": predictor_width,
        },
        "num_classes": labels,
        "vocabulary": pieces,
    });
    let mut decoding = json!({ "strategy": "greedy_batch", "greedy": { "max_symbols": MAX_SYMBOLS } });
    let mut defaults = Map::new();
    for (key, value) in
        [("enc_hidden", encoder_width), ("pred_hidden", predictor_width), ("joint_hidden", width)]
    {
        defaults.insert(key.to_owned(), json!(value));
    }
    let loss = match durations.is_empty() {
        true => json!({ "loss_name": "default" }),
        false => {
            joint["num_extra_outputs"] = json!(durations.len());
            decoding["model_type"] = json!("tdt");
            decoding["durations"] = json!(durations);
            defaults.insert("tdt_durations".into(), json!(durations));
            defaults.insert("num_tdt_durations".into(), json!(durations.len()));
            let sigma = transducer.sigma;
            let options =
                json!({ "durations": durations, "sigma": sigma, "omega": 0.0, "fastemit_lambda": 0.0 });
            json!({ "loss_name": "tdt", "tdt_kwargs": options })
        }
    };
    config["model_defaults"] = Value::Object(defaults);
    config["decoder"] = decoder;
    config["joint"] = joint;
    config["decoding"] = decoding;
    config["loss"] = loss;
    config["labels"] = json!(pieces);
    Ok(())
}

/// Returns a rate with the digits of its `f32`.
fn rounded(rate: f32) -> f64 {
    rate.to_string().parse().unwrap_or(f64::from(rate))
}
