//! The section `encoder` of NeMo: a FastConformer.
use serde_json::{Value, json};

use super::super::section::{Section, describe};
use super::TensorFacts;
use crate::Result;
use crate::encoders::{
    AttentionLimits, BatchNormMode, ConvolutionNorm, DepthwiseSubsamplingConfig, FastConformerEncoderConfig,
};

/// Reads the encoder; `mels` is the number of mel bins of the front end.
pub(super) fn read(section: Section, mels: usize, facts: TensorFacts) -> Result<FastConformerEncoderConfig> {
    section.expect_class("_target_", "ConformerEncoder", true)?;
    section.expect("feat_in", Value::Null, &[json!(mels)])?;
    let width = section.count("d_model", None)?;
    section.expect("feat_out", json!(-1), &[json!(-1), json!(width), Value::Null])?;
    section.expect("subsampling", json!("striding"), &[json!("dw_striding")])?;
    for (key, supported) in [
        ("reduction", Value::Null),
        ("reduction_position", Value::Null),
        ("reduction_factor", json!(1)),
        ("global_tokens", json!(0)),
        ("global_attn_separate", json!(false)),
        ("untie_biases_per_layer", json!(false)),
    ] {
        section.expect(key, supported.clone(), &[supported])?;
    }
    let channels = match section.integer("subsampling_conv_channels", Some(-1))? {
        -1 => width,
        channels => usize::try_from(channels)
            .map_err(|_| section.error("subsampling_conv_channels", "a count or -1", channels.to_string()))?,
    };
    let subsampling = DepthwiseSubsamplingConfig {
        channels,
        factor: section.count("subsampling_factor", Some(4))?,
        causal: section.flag("causal_downsampling", false)?,
    };
    let expansion = section.count("ff_expansion_factor", Some(4))?;
    let kernel = section.count("conv_kernel_size", Some(31))?;
    let convolution_norm = match section.text("conv_norm_type", Some("batch_norm"))? {
        "batch_norm" => ConvolutionNorm::Batch,
        "layer_norm" => ConvolutionNorm::Layer,
        other => return Err(section.error("conv_norm_type", "batch_norm or layer_norm", other)),
    };
    let mut attention = read_attention(&section)?;
    let config = FastConformerEncoderConfig {
        layers: section.count("n_layers", None)?,
        width,
        heads: section.count("n_heads", Some(4))?,
        feed_forward: width.saturating_mul(expansion),
        kernel,
        subsampling,
        attention: attention.remove(0),
        other_attention: attention,
        causal_convolution: read_causal_convolution(&section, kernel)?,
        convolution_norm,
        batch_norm: BatchNormMode::Frozen,
        bias: section.flag("use_bias", facts.has_bias)?,
        scale_input: section.flag("xscaling", true)?,
        dropout: section.number("dropout", Some(0.1))? as f32,
    };
    // Memory, training, and choices between trained settings.
    section.ignore(&[
        "untie_biases",
        "pos_emb_max_len",
        "subsampling_conv_chunking_factor",
        "dropout_pre_encoder",
        "dropout_emb",
        "dropout_att",
        "att_context_probs",
        "stochastic_depth_drop_prob",
        "stochastic_depth_mode",
        "stochastic_depth_start_layer",
        "global_tokens_spacing",
        "use_pytorch_sdpa",
        "use_pytorch_sdpa_backends",
        "sync_max_audio_length",
    ]);
    section.finish()?;
    Ok(config)
}

/// Returns true for a convolution over the current and earlier rows only.
fn read_causal_convolution(section: &Section, kernel: usize) -> Result<bool> {
    let causal = [json!("causal"), json!([kernel.saturating_sub(1), 0])];
    let half = kernel.saturating_sub(1) / 2;
    match section.value("conv_context_size") {
        None => Ok(false),
        Some(value) if causal.contains(value) => Ok(true),
        Some(value) if *value == json!([half, half]) => Ok(false),
        Some(value) => {
            let expected = "null, causal, or both sides of a symmetric or causal convolution";
            Err(section.error("conv_context_size", expected, describe(value)))
        }
    }
}

/// Reads the limits of attention, the default one first.
fn read_attention(section: &Section) -> Result<Vec<AttentionLimits>> {
    let is_local = match section.text("self_attention_model", Some("rel_pos"))? {
        "rel_pos" => false,
        "rel_pos_local_attn" => true,
        other => {
            let expected = "rel_pos or rel_pos_local_attn";
            return Err(section.error("self_attention_model", expected, other));
        }
    };
    let style = section.text("att_context_style", Some("regular"))?;
    let full = json!([-1, -1]);
    let value = section.value("att_context_size").unwrap_or(&full);
    let error = |expected: &str| Err(section.error("att_context_size", expected, describe(value)));
    let pair = |value: &Value| match value.as_array()?.as_slice() {
        [left, right] => Some((left.as_i64()?, right.as_i64()?)),
        _ => None,
    };
    let pairs = match pair(value) {
        Some(pair) => Some(vec![pair]),
        None => value.as_array().and_then(|values| values.iter().map(pair).collect()),
    };
    let Some(pairs) = pairs.filter(|pairs| !pairs.is_empty()) else {
        return error("[left, right] or a list of such pairs");
    };
    let mut limits = Vec::with_capacity(pairs.len());
    for (left, right) in pairs {
        let rows = |side: i64| match side {
            -1 => Some(None),
            side => usize::try_from(side).ok().map(Some),
        };
        let (Some(left), Some(right)) = (rows(left), rows(right)) else {
            return error("counts or -1 for attention without a limit");
        };
        limits.push(match (style, left, right) {
            ("regular" | "chunked_limited", None, None) => AttentionLimits::Full,
            // NeMo computes unequal sides of local attention with wrong positions.
            ("regular", left, right) if is_local && left != right => {
                return error("equal sides of local attention");
            }
            ("regular", left, right) => AttentionLimits::Window { left, right },
            ("chunked_limited", left, None) => AttentionLimits::Window { left, right: None },
            ("chunked_limited", _, Some(_)) if is_local => return error("no chunks with local attention"),
            ("chunked_limited", left, Some(right)) => {
                AttentionLimits::Chunks { chunk: right.saturating_add(1), left }
            }
            _ => return Err(section.error("att_context_style", "regular or chunked_limited", style)),
        });
    }
    Ok(limits)
}
