//! Names and shapes of parameters in other toolkits, in both directions.
//!
//! [`foreign_tensors`] groups the parameters of a model by the tensors of another layout. Import
//! reads each parameter from its rows of a tensor; export writes a tensor from its parts.
use std::collections::BTreeMap;

use super::metadata::Layout;
use crate::ModelConfig;
use crate::encoders::EncoderKind;
use crate::parameters::Shapes;
use crate::predictors::{PredictorKind, StartEmbedding};

/// Names of modules and parameters: of this crate, of NeMo, of Hugging Face.
///
/// `{}` is a number. The first pattern that a name begins with applies; the rest of the name is the
/// same in all layouts. An empty pattern has no equivalent.
const NAMES: [[&str; 3]; 21] = [
    ["encoder.pre_encode.conv.{}", "encoder.pre_encode.conv.{}", "encoder.subsampling.layers.{}"],
    ["encoder.pre_encode.out", "encoder.pre_encode.out", "encoder.subsampling.linear"],
    ["encoder.layers.{}.conv.batch_norm", "encoder.layers.{}.conv.batch_norm", "encoder.layers.{}.conv.norm"],
    [
        "encoder.layers.{}.self_attn.linear_q",
        "encoder.layers.{}.self_attn.linear_q",
        "encoder.layers.{}.self_attn.q_proj",
    ],
    [
        "encoder.layers.{}.self_attn.linear_k",
        "encoder.layers.{}.self_attn.linear_k",
        "encoder.layers.{}.self_attn.k_proj",
    ],
    [
        "encoder.layers.{}.self_attn.linear_v",
        "encoder.layers.{}.self_attn.linear_v",
        "encoder.layers.{}.self_attn.v_proj",
    ],
    [
        "encoder.layers.{}.self_attn.linear_out",
        "encoder.layers.{}.self_attn.linear_out",
        "encoder.layers.{}.self_attn.o_proj",
    ],
    [
        "encoder.layers.{}.self_attn.linear_pos",
        "encoder.layers.{}.self_attn.linear_pos",
        "encoder.layers.{}.self_attn.relative_k_proj",
    ],
    [
        "encoder.layers.{}.self_attn.pos_bias_u",
        "encoder.layers.{}.self_attn.pos_bias_u",
        "encoder.layers.{}.self_attn.bias_u",
    ],
    [
        "encoder.layers.{}.self_attn.pos_bias_v",
        "encoder.layers.{}.self_attn.pos_bias_v",
        "encoder.layers.{}.self_attn.bias_v",
    ],
    ["encoder.layers.{}", "encoder.layers.{}", "encoder.layers.{}"],
    ["predictor.embedding", "decoder.prediction.embed", "decoder.embedding"],
    ["predictor.embeddings.{}", "decoder.prediction.embeds.{}", ""],
    [
        "predictor.layers.{}.weight_ih_l0",
        "decoder.prediction.dec_rnn.lstm.weight_ih_l{}",
        "decoder.lstm.weight_ih_l{}",
    ],
    [
        "predictor.layers.{}.weight_hh_l0",
        "decoder.prediction.dec_rnn.lstm.weight_hh_l{}",
        "decoder.lstm.weight_hh_l{}",
    ],
    [
        "predictor.layers.{}.bias_ih_l0",
        "decoder.prediction.dec_rnn.lstm.bias_ih_l{}",
        "decoder.lstm.bias_ih_l{}",
    ],
    [
        "predictor.layers.{}.bias_hh_l0",
        "decoder.prediction.dec_rnn.lstm.bias_hh_l{}",
        "decoder.lstm.bias_hh_l{}",
    ],
    ["joint.encoder", "joint.enc", "encoder_projector"],
    ["joint.predictor", "joint.pred", "decoder.decoder_projector"],
    ["joint.head", "joint.joint_net.2", "joint.head"],
    ["ctc", "ctc_decoder.decoder_layers.0", "ctc_head"],
];

/// The variant of a layout, which some names depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameOptions {
    pub layout: Layout,
    /// True for Hugging Face's streaming models, with other names of the subsampling.
    pub is_streaming: bool,
    /// True for a model without predictor and joint network.
    pub is_ctc: bool,
    /// True if the joint network has a dropout layer, which NeMo numbers.
    pub has_joint_dropout: bool,
    /// Rows of zeros after the embeddings: NeMo's row of the blank.
    pub zero_rows: usize,
}

impl NameOptions {
    /// Returns the options of a model.
    pub(crate) fn new(config: &ModelConfig, layout: Layout) -> Self {
        let is_causal = match &config.encoder {
            EncoderKind::FastConformer(encoder) => encoder.subsampling.causal,
            _ => false,
        };
        let has_blank_embedding = match &config.predictor {
            Some(PredictorKind::Lstm(predictor)) => predictor.start == StartEmbedding::Blank,
            _ => false,
        };
        NameOptions {
            layout,
            is_streaming: is_causal,
            is_ctc: config.loss.kind.is_ctc(),
            has_joint_dropout: config.joint.as_ref().is_some_and(|joint| joint.dropout > 0.0),
            zero_rows: if has_blank_embedding { 0 } else { 1 },
        }
    }
}

/// A tensor of another layout, and the parameters that it contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForeignTensor {
    pub shape: Vec<usize>,
    /// Names and numbers of rows of the parameters, in order.
    pub parts: Vec<(String, usize)>,
    /// Rows of zeros after them.
    pub zero_rows: usize,
}

/// Returns the tensors of a layout that contain these parameters, by name.
///
/// A parameter without an equivalent is returned as an error.
pub(crate) fn foreign_tensors(
    shapes: &Shapes,
    options: &NameOptions,
) -> std::result::Result<BTreeMap<String, ForeignTensor>, String> {
    let mut tensors: BTreeMap<String, ForeignTensor> = BTreeMap::new();
    // The durations are the last rows of the joint's head, and follow it in this order.
    let (heads, others): (Vec<_>, Vec<_>) =
        shapes.iter().partition(|(name, _)| name.starts_with("joint.head."));
    for (name, shape) in heads.into_iter().chain(others) {
        let foreign_name = foreign_name(name, options).ok_or_else(|| name.clone())?;
        let rows = shape.first().copied().unwrap_or(1);
        let is_embedding = name.starts_with("predictor.embedding");
        let zero_rows = if is_embedding { options.zero_rows } else { 0 };
        match tensors.get_mut(&foreign_name) {
            Some(tensor) => {
                tensor.shape[0] += rows;
                tensor.parts.push((name.clone(), rows));
            }
            None => {
                let mut shape = foreign_shape(name, shape);
                if zero_rows > 0 {
                    shape[0] += zero_rows;
                }
                let tensor = ForeignTensor { shape, parts: vec![(name.clone(), rows)], zero_rows };
                tensors.insert(foreign_name, tensor);
            }
        }
    }
    Ok(tensors)
}

/// Returns the name of a parameter in a layout.
pub(crate) fn foreign_name(name: &str, options: &NameOptions) -> Option<String> {
    // The duration head is a part of the joint's head.
    let joined = name.strip_prefix("joint.durations.").map(|rest| format!("joint.head.{rest}"));
    let name = joined.as_deref().unwrap_or(name);
    let column = match options.layout {
        Layout::Nemo => 1,
        Layout::HuggingFace => 2,
    };
    let (pattern, number, rest) = NAMES
        .iter()
        .find_map(|names| match_name(names[0], name).map(|(number, rest)| (names, number, rest)))?;
    let foreign = pattern[column];
    if foreign.is_empty() {
        return None;
    }
    let foreign = match (options.layout, pattern[0]) {
        (Layout::Nemo, "joint.head") if !options.has_joint_dropout => "joint.joint_net.1".to_owned(),
        (Layout::Nemo, "ctc") if options.is_ctc => "decoder.decoder_layers.0".to_owned(),
        (Layout::HuggingFace, "encoder.pre_encode.conv.{}") if options.is_streaming => {
            streaming_convolution(number?)?
        }
        _ => number.map_or(foreign.to_owned(), |number| foreign.replace("{}", &number.to_string())),
    };
    Some(foreign + rest)
}

/// Matches the start of a name; returns its number and the rest.
fn match_name<'a>(pattern: &str, name: &'a str) -> Option<(Option<usize>, &'a str)> {
    let (number, rest) = match pattern.split_once("{}") {
        None => (None, name.strip_prefix(pattern)?),
        Some((before, after)) => {
            let rest = name.strip_prefix(before)?;
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            (Some(rest[..digits].parse().ok()?), rest[digits..].strip_prefix(after)?)
        }
    };
    (rest.is_empty() || rest.starts_with('.')).then_some((number, rest))
}

/// Returns the name of a convolution of the subsampling in streaming models.
///
/// NeMo numbers convolutions and activations: 0; 2 and 3; 5 and 6.
fn streaming_convolution(number: usize) -> Option<String> {
    let stage = number.checked_sub(2);
    match (number, stage.map(|stage| (stage / 3, stage % 3))) {
        (0, _) => Some("encoder.subsampling.conv_in".into()),
        (_, Some((stage, 0))) => Some(format!("encoder.subsampling.layers.{stage}.depthwise_conv")),
        (_, Some((stage, 1))) => Some(format!("encoder.subsampling.layers.{stage}.pointwise_conv")),
        _ => None,
    }
}

/// Adds the axes of length 1 that convolutions have in other toolkits.
fn foreign_shape(name: &str, shape: &[usize]) -> Vec<usize> {
    let is_weight = name.ends_with(".weight");
    match *shape {
        [outputs, inputs] if is_weight && name.starts_with("encoder.pre_encode.conv.") => {
            vec![outputs, inputs, 1, 1]
        }
        [channels, taps] if is_weight && name.ends_with(".conv.depthwise_conv.weight") => {
            vec![channels, 1, taps]
        }
        [outputs, inputs] if is_weight && (name.contains(".conv.pointwise_conv") || name == "ctc.weight") => {
            vec![outputs, inputs, 1]
        }
        _ => shape.to_vec(),
    }
}

/// Returns the name of the counter of a layer's batch norm.
pub(crate) fn counter_name(layer: usize, options: &NameOptions) -> Option<String> {
    foreign_name(&format!("encoder.layers.{layer}.conv.batch_norm.num_batches_tracked"), options)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: NameOptions = NameOptions {
        layout: Layout::Nemo,
        is_streaming: false,
        is_ctc: false,
        has_joint_dropout: true,
        zero_rows: 1,
    };

    #[test]
    fn heads_are_joined_and_rows_of_zeros_are_added() {
        let shapes: Shapes = [
            ("joint.durations.weight", vec![5, 8]),
            ("joint.durations.bias", vec![5]),
            ("joint.head.weight", vec![11, 8]),
            ("joint.head.bias", vec![11]),
            ("predictor.embedding.weight", vec![10, 6]),
            ("predictor.embeddings.1.weight", vec![10, 2]),
            ("ctc.weight", vec![11, 4]),
            ("encoder.layers.12.conv.depthwise_conv.weight", vec![4, 9]),
            ("encoder.pre_encode.conv.3.weight", vec![8, 8]),
        ]
        .map(|(name, shape)| (name.to_owned(), shape))
        .into();
        let tensors = foreign_tensors(&shapes, &OPTIONS).unwrap();
        let head = &tensors["joint.joint_net.2.weight"];
        assert_eq!(head.shape, [16, 8]);
        assert_eq!(head.parts, [("joint.head.weight".into(), 11), ("joint.durations.weight".into(), 5)]);
        assert_eq!(tensors["joint.joint_net.2.bias"].shape, [16]);
        let embedding = &tensors["decoder.prediction.embed.weight"];
        assert_eq!((&embedding.shape[..], embedding.zero_rows), (&[11, 6][..], 1));
        assert_eq!(tensors["decoder.prediction.embeds.1.weight"].shape, [11, 2]);
        assert_eq!(tensors["ctc_decoder.decoder_layers.0.weight"].shape, [11, 4, 1]);
        assert_eq!(tensors["encoder.layers.12.conv.depthwise_conv.weight"].shape, [4, 1, 9]);
        assert_eq!(tensors["encoder.pre_encode.conv.3.weight"].shape, [8, 8, 1, 1]);
        assert_eq!(tensors.len(), 7);
        let error = foreign_tensors(&shapes, &NameOptions { layout: Layout::HuggingFace, ..OPTIONS });
        assert_eq!(error, Err("predictor.embeddings.1.weight".into()));
    }

    #[test]
    fn names_depend_on_the_kind_of_model() {
        let streaming = NameOptions { layout: Layout::HuggingFace, is_streaming: true, ..OPTIONS };
        for (name, options, expected) in [
            ("ctc.bias", NameOptions { is_ctc: true, ..OPTIONS }, Some("decoder.decoder_layers.0.bias")),
            (
                "joint.head.bias",
                NameOptions { has_joint_dropout: false, ..OPTIONS },
                Some("joint.joint_net.1.bias"),
            ),
            ("encoder.pre_encode.conv.0.bias", streaming, Some("encoder.subsampling.conv_in.bias")),
            ("encoder.pre_encode.conv.1.bias", streaming, None),
            (
                "encoder.pre_encode.conv.5.bias",
                streaming,
                Some("encoder.subsampling.layers.1.depthwise_conv.bias"),
            ),
            (
                "encoder.pre_encode.conv.6.bias",
                streaming,
                Some("encoder.subsampling.layers.1.pointwise_conv.bias"),
            ),
            ("encoder.pre_encode.conv.7.bias", streaming, None),
            ("simple.encoder.weight", OPTIONS, None),
            ("ctcx.bias", OPTIONS, None),
            ("encoder.layers.x.norm_out.bias", OPTIONS, None),
        ] {
            assert_eq!(foreign_name(name, &options).as_deref(), expected, "{name}");
        }
    }
}
