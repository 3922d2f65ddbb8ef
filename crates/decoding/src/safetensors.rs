//! Reads transducers for decoding from safetensors files.
//!
//! Tensors have the names of common toolkits. V: labels without the blank; K: big blanks; P: width
//! of the predictor's output; E: width of the encoder output; H: joint width; D: durations.
use std::sync::Arc;

use rnnt_dp::Topology;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::{
    Activation, AffineLayer, DecodingModel, Error, JointNetwork, LstmLayer, LstmPredictor, NO_LABEL,
    Predictor, PredictorActivation, Result, StatelessPredictor,
};

/// Configuration of a model whose weights are in a safetensors file.
///
/// ```
/// let text = r#"{
///     "vocab": 31, "blank": 31, "predictor": "lstm", "layers": 1, "activation": "tanh"
/// }"#;
/// let config: decoding::DecodingModelConfig = serde_json::from_str(text).unwrap();
/// assert_eq!(config.blank, 31);
/// ```
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct DecodingModelConfig {
    /// Labels V, without the blank.
    pub vocab: usize,
    /// Class id of the blank, from 0 to V.
    pub blank: u32,
    /// The predictor.
    #[serde(flatten)]
    pub predictor: PredictorConfig,
    /// The nonlinearity of the joint network.
    pub activation: ActivationName,
    /// Durations of a token-and-duration transducer, in the order of their outputs.
    #[serde(default)]
    pub durations: Option<Vec<usize>>,
    /// Frames of each of the K big blanks.
    ///
    /// Their classes follow the V + 1 others.
    #[serde(default)]
    pub big_blanks: Vec<usize>,
    /// Whether the blank is factored (HAT).
    #[serde(default)]
    pub factored_blank: bool,
    /// Whether a label advances by one frame (the modified topology).
    ///
    /// It has no effect on token-and-duration models.
    #[serde(default)]
    pub modified: bool,
}

/// Kind of predictor.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "predictor", rename_all = "lowercase")]
pub enum PredictorConfig {
    /// An LSTM, which starts with a step on the blank.
    ///
    /// Tensors: `embed.weight [V+1, P]`; for layer i `lstm.weight_ih_l{i} [4P, P]`,
    /// `lstm.weight_hh_l{i}`, `lstm.bias_ih_l{i}` and optionally `lstm.bias_hh_l{i}`.
    Lstm {
        /// Number of layers.
        layers: usize,
    },
    /// A stateless predictor with ReLU; its initial context is the blank, preceded by zeros.
    ///
    /// Tensors: `embed.weight [V+1, P]`, `conv.weight [P, P/groups, context]`.
    Stateless {
        /// Number of labels in the context.
        context: usize,
        /// Groups of the convolution.
        conv_groups: usize,
    },
}

/// Name of an activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum ActivationName {
    Tanh,
    Relu,
}

/// Tensors by name, with errors for missing ones.
struct TensorFile<'a>(SafeTensors<'a>);

impl TensorFile<'_> {
    /// Returns a tensor of an expected shape, where 0 means any size.
    fn get(&self, name: &str, shape: &[usize]) -> Result<(Vec<f32>, Vec<usize>)> {
        let expected = || format!("f32 of {shape:?} (0: any)");
        let view = self.0.tensor(name).map_err(|_| Error::shape(name, expected(), "no such tensor"))?;
        let has_shape = view.shape().len() == shape.len()
            && view.shape().iter().zip(shape).all(|(found, &size)| size == 0 || *found == size);
        if view.dtype() != Dtype::F32 || !has_shape {
            let actual = format!("{:?} of {:?}", view.dtype(), view.shape());
            return Err(Error::shape(name, expected(), actual));
        }
        let values: Vec<f32> = view.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            return Err(Error::shape(name, "finite numbers".into(), format!("{} at {index}", values[index])));
        }
        Ok((values, view.shape().to_vec()))
    }

    /// Returns whether the file has a tensor.
    fn has(&self, name: &str) -> bool {
        self.0.tensor(name).is_ok()
    }

    /// Reads the layer `NAME.weight` with `NAME.bias`, if present.
    fn affine(&self, name: &str, outputs: usize, inputs: usize) -> Result<AffineLayer> {
        let weight = format!("{name}.weight");
        let (values, shape) = self.get(&weight, &[outputs, inputs])?;
        let bias = format!("{name}.bias");
        let bias = self.has(&bias).then(|| self.get(&bias, &[shape[0]])).transpose()?;
        AffineLayer::new(&weight, &values, shape[1], bias.as_ref().map(|(values, _)| &values[..]))
    }
}

impl DecodingModel {
    /// Reads a model and its joint network from a safetensors file.
    ///
    /// In addition to the predictor's tensors ([`PredictorConfig`]) the file contains
    /// `enc_proj.weight [H, E]`, `pred_proj.weight [H, P]` and `out.weight [V + 1 + K + D, H]`,
    /// each with an optional bias. Rows of `out` are the classes, big blanks last, then the
    /// durations. All tensors are f32.
    ///
    /// # Errors
    /// [`Error::Shape`] for bytes that are not safetensors and for a tensor that is missing, has
    /// another shape or type, or is not finite; those of [`DecodingModel::new`].
    pub fn from_safetensors(
        bytes: &[u8],
        config: &DecodingModelConfig,
    ) -> Result<(DecodingModel, Arc<JointNetwork>)> {
        let file = SafeTensors::deserialize(bytes);
        let weights = TensorFile(file.map_err(|error| Error::shape("file", "safetensors".into(), error))?);
        let classes = config.vocab.saturating_add(1);
        if config.blank as usize >= classes {
            return Err(Error::Blank { blank: config.blank, classes });
        }
        // Predictor.
        let (embedding, shape) = weights.get("embed.weight", &[classes, 0])?;
        let width = shape[1];
        let predictor: Arc<dyn Predictor> = match config.predictor {
            PredictorConfig::Lstm { layers } => {
                lstm_predictor(&weights, &embedding, width, layers, config.blank)?
            }
            PredictorConfig::Stateless { context, conv_groups } => {
                stateless_predictor(&weights, &embedding, width, context, conv_groups, config.blank)?
            }
        };
        // Joint network.
        let durations = config.durations.as_deref().unwrap_or_default();
        let all_classes = classes.saturating_add(config.big_blanks.len());
        let head = weights.affine("out", all_classes.saturating_add(durations.len()), 0)?;
        let frames = weights.affine("enc_proj", head.inputs(), 0)?;
        let predicted = weights.affine("pred_proj", head.inputs(), width)?;
        let activation = match config.activation {
            ActivationName::Tanh => Activation::Tanh,
            ActivationName::Relu => Activation::Relu,
        };
        let mut network = JointNetwork::new(activation, Some(frames), predicted, head, durations.len())?;
        if config.factored_blank {
            network = network.with_factored_blank(config.blank)?;
        }
        // Topology: frames and labels by which each class advances. Labels and blanks of a
        // token-and-duration transducer advance by the durations, with or without `modified`.
        let topology = match (durations, config.modified) {
            ([], false) => Ok(Topology::rnnt()),
            ([], true) => Ok(Topology::modified()),
            (durations, _) => Topology::tdt(durations),
        };
        let topology = topology.and_then(|topology| match config.big_blanks.as_slice() {
            [] => Ok(topology),
            frames => topology.with_big_blanks(frames),
        });
        let topology = topology.map_err(|error| Error::shape("durations", "a topology".into(), error))?;
        let (network, big_blanks) =
            (Arc::new(network), (classes as u32..all_classes as u32).collect::<Vec<_>>());
        Ok((DecodingModel::new(predictor, network.clone(), config.blank, &big_blanks, &topology)?, network))
    }
}

/// Reads an LSTM predictor.
fn lstm_predictor(
    weights: &TensorFile,
    embedding: &[f32],
    width: usize,
    layers: usize,
    blank: u32,
) -> Result<Arc<dyn Predictor>> {
    let mut layer_tensors = Vec::new();
    for index in 0..layers {
        let name = |tensor: &str| format!("lstm.{tensor}_l{index}");
        let (recurrent, shape) = weights.get(&name("weight_hh"), &[0, 0])?;
        let hidden = shape[1];
        let inputs = if index == 0 { width } else { hidden };
        let (input, _) = weights.get(&name("weight_ih"), &[4 * hidden, inputs])?;
        let (mut bias, _) = weights.get(&name("bias_ih"), &[4 * hidden])?;
        if weights.has(&name("bias_hh")) {
            kernels::add(&mut bias, &weights.get(&name("bias_hh"), &[4 * hidden])?.0);
        }
        layer_tensors.push((input, recurrent, bias));
    }
    let layers: Vec<LstmLayer> =
        layer_tensors.iter().map(|(input, recurrent, bias)| LstmLayer { input, recurrent, bias }).collect();
    Ok(Arc::new(LstmPredictor::new(embedding, width, &layers, blank)?))
}

/// Reads a stateless predictor, whose grouped convolution becomes a dense matrix.
fn stateless_predictor(
    weights: &TensorFile,
    embedding: &[f32],
    width: usize,
    context: usize,
    groups: usize,
    blank: u32,
) -> Result<Arc<dyn Predictor>> {
    if groups == 0 || context == 0 || !width.is_multiple_of(groups) {
        let expected = format!("a context of at least 1 and a divisor of {width} as conv_groups");
        return Err(Error::shape("predictor", expected, format!("{context} and {groups}")));
    }
    let group_width = width / groups;
    let (kernel, _) = weights.get("conv.weight", &[width, group_width, context])?;
    // A matrix [P, context, P], for each context position 0 outside the blocks of the groups.
    let mut dense_kernel = vec![0.0; width * context * width];
    for (output, kernel) in kernel.chunks_exact(group_width * context).enumerate() {
        let group_start = output / group_width * group_width;
        for (input, kernel) in kernel.chunks_exact(context).enumerate() {
            for (position, &weight) in kernel.iter().enumerate() {
                dense_kernel[(output * context + position) * width + group_start + input] = weight;
            }
        }
    }
    let mut start = vec![NO_LABEL; context];
    start[context - 1] = blank;
    let bias = vec![0.0; width];
    Ok(Arc::new(StatelessPredictor::new(
        (embedding, width),
        &dense_kernel,
        &bias,
        &start,
        PredictorActivation::Relu,
    )?))
}
