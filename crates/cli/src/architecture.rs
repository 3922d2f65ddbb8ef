//! Describes the architecture of FastConformer models, which may be imported.
use model::ModelConfig;
use model::config::{ActivationKind, AdapterModule, LossKind};
use model::encoders::{AttentionLimits, ConvolutionNorm, EncoderKind};
use model::predictors::PredictorKind;

/// Returns a line for each part of a FastConformer model; none for other models.
pub(crate) fn lines(config: &ModelConfig) -> Vec<String> {
    let EncoderKind::FastConformer(encoder) = &config.encoder else { return Vec::new() };
    let (norm, biases) = match (encoder.convolution_norm, encoder.bias) {
        (ConvolutionNorm::Batch, true) => ("batch norm", "with biases"),
        (ConvolutionNorm::Batch, false) => ("batch norm", "without biases"),
        (ConvolutionNorm::Layer, true) => ("layer norm", "with biases"),
        (ConvolutionNorm::Layer, false) => ("layer norm", "without biases"),
    };
    let causal = |is_causal: bool| if is_causal { ", causal" } else { "" };
    let scale = if encoder.scale_input { ", input scaled" } else { "" };
    let mut lines = vec![
        format!(
            "encoder: FastConformer, {} layers of width {}, {} heads, feed-forward {}, {biases}{scale}",
            encoder.layers, encoder.width, encoder.heads, encoder.feed_forward
        ),
        format!(
            "subsampling: {} frames per row, {} channels{}",
            encoder.subsampling.factor,
            encoder.subsampling.channels,
            causal(encoder.subsampling.causal)
        ),
        format!("convolution: {} taps, {norm}{}", encoder.kernel, causal(encoder.causal_convolution)),
        format!("attention: {}", describe_limits(&encoder.attention)),
    ];
    if !encoder.other_attention.is_empty() {
        let other_limits: Vec<String> = encoder.other_attention.iter().map(describe_limits).collect();
        lines.push(format!("attention, also trained: {}", other_limits.join("; ")));
    }
    if let Some(adapter) = &config.adapter {
        let module = |module: &AdapterModule| match module {
            AdapterModule::Attention => "attention",
            AdapterModule::FeedForward => "feed-forward modules",
        };
        let modules: Vec<&str> = adapter.modules.iter().map(module).collect();
        let (rank, factor) = (adapter.rank, adapter.scale());
        lines.push(format!("adapter: rank {rank}, factor {factor}, of {}", modules.join(" and ")));
    }
    match &config.predictor {
        Some(PredictorKind::Lstm(lstm)) => {
            lines.push(format!("predictor: LSTM, {} layers of width {}", lstm.layers, lstm.hidden));
        }
        Some(PredictorKind::Concat(concat)) => {
            let (width, context) = (concat.width, concat.context);
            lines.push(format!("predictor: embeddings of the last {context} labels, width {width}"));
        }
        Some(PredictorKind::Stateless(stateless)) => {
            let (width, context) = (stateless.embedding, stateless.context);
            lines.push(format!("predictor: linear layer over the last {context} labels, width {width}"));
        }
        None => {}
    }
    if let Some(joint) = &config.joint {
        let activation = match config.loss.options.activation {
            ActivationKind::Relu => "ReLU",
            ActivationKind::Tanh => "tanh",
        };
        lines.push(format!("joint: width {}, {activation}", joint.width));
    }
    let head = if config.terms.has_ctc() { ", and a CTC head" } else { "" };
    lines.push(match &config.loss.kind {
        LossKind::Tdt { durations, .. } => {
            let durations: Vec<String> = durations.iter().map(ToString::to_string).collect();
            format!("output: TDT with durations {}{head}", durations.join(", "))
        }
        LossKind::Ctc {} => "output: CTC".to_owned(),
        _ => format!("output: RNN-T{head}"),
    });
    lines
}

/// Describes limits of attention in encoder frames.
fn describe_limits(limits: &AttentionLimits) -> String {
    let side = |rows: Option<usize>| rows.map_or("all".to_owned(), |rows| rows.to_string());
    match *limits {
        AttentionLimits::Full => "the whole utterance".into(),
        AttentionLimits::Window { left, right } => {
            format!("{} frames before and {} after", side(left), side(right))
        }
        AttentionLimits::Chunks { chunk, left } => {
            format!("chunks of {chunk} frames and {} frames before", side(left))
        }
    }
}
