//! The network after the encoder: predictor and joint, a CTC head, or a recognition lattice.
use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use lattice::Context;
use lattice::candle::{BatchTensors, EmbeddingConfig, Gnat, JointConfig, JointWeights};

use crate::config::{GnatConfig, LossBudget, LossKind};
use crate::predictors::Predictor;
use crate::{Error, Linear, ModelConfig, Result};
use layers::tensors::counts_tensor;

/// A transducer's network, a CTC head, or a recognition lattice.
#[derive(Clone)]
pub(crate) enum OutputModel {
    Transducer(TransducerNetwork),
    Ctc(Linear),
    Lattice(Box<Gnat>),
}

/// A predictor, and all linear layers after it and the encoder.
#[derive(Clone)]
pub(crate) struct TransducerNetwork {
    pub predictor: Arc<dyn Predictor>,
    pub layers: JointLayers,
}

/// The linear layers after encoder and predictor.
#[derive(Debug, Clone)]
pub(crate) struct JointLayers {
    /// Projections to the joint width: of encoder rows, and of predictor rows.
    pub encoder: Linear,
    pub predictor: Linear,
    pub head: Linear,
    /// The duration head of a token-and-duration transducer.
    pub durations: Option<Linear>,
    /// The layers of the simple joiner, for encoder rows and predictor rows.
    pub simple: Option<(Linear, Linear)>,
}

impl JointLayers {
    pub(crate) fn new(
        config: &ModelConfig,
        labels: usize,
        encoder_width: usize,
        predictor_width: usize,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let classes = config.classes(labels);
        let (width, durations) = (config.joint_network()?.width, config.loss.kind.durations().len());
        let optional_layer =
            |exists: bool, name: &str, inputs: usize, outputs: usize| -> layers::Result<Option<Linear>> {
                exists.then(|| Linear::new(inputs, outputs, &vb.pp(name))).transpose()
            };
        let is_pruned = matches!(config.loss.kind, LossKind::Pruned { .. });
        Ok(JointLayers {
            encoder: Linear::new(encoder_width, width, &vb.pp("joint.encoder"))?,
            predictor: Linear::new(predictor_width, width, &vb.pp("joint.predictor"))?,
            head: Linear::new(width, classes, &vb.pp("joint.head"))?,
            durations: optional_layer(durations > 0, "joint.durations", width, durations)?,
            simple: optional_layer(is_pruned, "simple.encoder", encoder_width, classes)?.zip(optional_layer(
                is_pruned,
                "simple.predictor",
                predictor_width,
                classes,
            )?),
        })
    }
}

/// Creates the recognition lattice of a model; parameters have the names of the LAST library.
pub(crate) fn build_lattice(
    gnat: &GnatConfig,
    config: &ModelConfig,
    labels: usize,
    encoder_width: usize,
    vb: &VarBuilder,
) -> Result<OutputModel> {
    let context = gnat.ngram(labels)?;
    let joint_config = JointConfig {
        states: context.states(),
        vocabulary: labels,
        frame: encoder_width,
        hidden: config.joint_network()?.width,
        embeddings: EmbeddingConfig::Table { width: gnat.embedding },
        normalize: gnat.normalize.normalize(),
    };
    let weights = JointWeights::new(joint_config, vb)?;
    let LossBudget { bytes, keep_scores } = config.loss.options.budget;
    let options = lattice::Options { budget: bytes, keep_weights: keep_scores };
    Ok(OutputModel::Lattice(Box::new(Gnat::new(Arc::new(context), gnat.alignment()?, weights, options)?)))
}

/// Padded labels and lengths of a batch for a lattice.
///
/// A lattice's labels are 1 .. V, the model's labels plus one; 0 is padding.
pub(crate) struct LatticeBatch {
    num_frames: Tensor,
    labels: Tensor,
    num_labels: Tensor,
}

impl LatticeBatch {
    pub(crate) fn new(lengths: &[usize], labels: &[Vec<u32>]) -> Result<Self> {
        let longest = labels.iter().map(Vec::len).max().unwrap_or(0);
        let padded_ids = |labels: &Vec<u32>| {
            let ids = labels.iter().map(|&label| i64::from(label) + 1);
            ids.chain(std::iter::repeat_n(0, longest - labels.len())).collect::<Vec<_>>()
        };
        let ids: Vec<i64> = labels.iter().flat_map(padded_ids).collect();
        Ok(Self {
            num_frames: counts_tensor(lengths)?,
            labels: Tensor::from_vec(ids, (labels.len(), longest), &Device::Cpu)?,
            num_labels: counts_tensor(&labels.iter().map(Vec::len).collect::<Vec<_>>())?,
        })
    }

    /// Returns the tensors of the batch for its encoder rows.
    pub(crate) fn with_frames<'a>(&'a self, frames: &'a Tensor) -> BatchTensors<'a> {
        let Self { num_frames, labels, num_labels } = self;
        BatchTensors { frames, num_frames, labels, num_labels }
    }
}

impl OutputModel {
    /// Returns the transducer's network; fails for other models.
    pub(crate) fn transducer(&self) -> Result<&TransducerNetwork> {
        let kind = match self {
            Self::Transducer(transducer) => return Ok(transducer),
            Self::Ctc(_) => "a CTC model (loss.kind = \"ctc\")",
            Self::Lattice(_) => "a recognition lattice (loss.kind = \"gnat\")",
        };
        Err(Error::shape("model", "a transducer with a predictor and a joint network", kind))
    }

    /// Returns the head of a CTC model; none for other models.
    pub(crate) fn ctc_head(&self) -> Option<&Linear> {
        match self {
            Self::Ctc(head) => Some(head),
            Self::Transducer(_) | Self::Lattice(_) => None,
        }
    }

    /// Returns the recognition lattice, if it is one.
    pub(crate) fn lattice(&self) -> Option<&Gnat> {
        match self {
            Self::Lattice(gnat) => Some(gnat),
            Self::Transducer(_) | Self::Ctc(_) => None,
        }
    }
}
