//! Parameters of a lattice's joint network as candle tensors, with LAST names.
//!
//! LAST is the toolkit of Wu et al., arXiv 2304.13134. [`Gnat`](super::Gnat) trains them;
//! [`JointWeights::save`] and [`load`] use LAST's files.
use std::{collections::HashMap, path::Path};

use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use kernels::ScratchReq;

use super::batch::expect_cpu;
use crate::weight_fn::JointSizes;
use crate::{Embeddings, Error, JointWeightFn, Normalize, Result, SharedRnn};

/// Sizes of a [`JointWeightFn`] over the states of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JointConfig {
    /// C, the number of context states.
    pub states: usize,
    /// V, the number of labels.
    pub vocabulary: usize,
    /// F, the number of features of a frame.
    pub frame: usize,
    /// H, the width of the hidden layer.
    pub hidden: usize,
    /// Source of context embeddings.
    pub embeddings: EmbeddingConfig,
    /// Local normalization of the arcs from each state; none for global normalization.
    pub normalize: Option<Normalize>,
}

/// Sizes of [`Embeddings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingConfig {
    /// A table, `context_embeddings`.
    Table {
        /// E, the width of an embedding.
        width: usize,
    },
    /// An LSTM over the labels of an n-gram.
    Rnn {
        /// n, the number of labels of a history.
        order: usize,
        /// R, the width of the LSTM and of an embedding.
        width: usize,
        /// RE, the width of a label embedding.
        label: usize,
    },
}

/// Number of parameters in addition to those of the embeddings.
const JOINT_PARAMETERS: usize = 7;

/// Initial values of a parameter.
#[derive(Clone, Copy)]
enum InitialValues {
    Zero,
    /// Normal with this variance.
    Normal(f64),
}

impl JointConfig {
    /// Names, shapes and initial values of the parameters.
    ///
    /// Their order is that of [`Self::joint`].
    fn parameters(&self) -> Vec<(String, Vec<usize>, InitialValues)> {
        let Self { states, vocabulary, frame, hidden, embeddings, normalize } = *self;
        let mut parameters = Vec::new();
        let width = match embeddings {
            EmbeddingConfig::Table { width } => {
                let name = "weight_fn_cacher/context_embeddings".to_owned();
                parameters.push((name, vec![states, width], InitialValues::Normal(1.0 / width as f64)));
                width
            }
            EmbeddingConfig::Rnn { width, label, .. } => {
                let cell_parameters =
                    |source: char, parameter: &str, shape: &[usize], init: InitialValues| {
                        let name =
                            move |gate| format!("weight_fn_cacher/rnn_cell/{source}{gate}/{parameter}");
                        ['i', 'f', 'g', 'o'].map(|gate| (name(gate), shape.to_vec(), init))
                    };
                let name = "weight_fn_cacher/Embed_0/embedding".to_owned();
                parameters.push((
                    name,
                    vec![vocabulary + 1, label],
                    InitialValues::Normal(1.0 / label as f64),
                ));
                parameters.extend(cell_parameters(
                    'i',
                    "kernel",
                    &[label, width],
                    InitialValues::Normal(1.0 / label as f64),
                ));
                parameters.extend(cell_parameters(
                    'h',
                    "kernel",
                    &[width, width],
                    InitialValues::Normal(1.0 / width as f64),
                ));
                parameters.extend(cell_parameters('h', "bias", &[width], InitialValues::Zero));
                width
            }
        };
        let init_for_inputs = |inputs: usize| InitialValues::Normal(1.0 / inputs as f64);
        let joint_parameters: [(&str, Vec<usize>, InitialValues); JOINT_PARAMETERS] = [
            ("project_context_embeddings/kernel", vec![width, hidden], init_for_inputs(width)),
            ("project_frame/kernel", vec![frame, hidden], init_for_inputs(frame)),
            ("joint_bias", vec![hidden], InitialValues::Zero),
            ("Dense_0/kernel", vec![hidden, 1], init_for_inputs(hidden)),
            ("Dense_0/bias", vec![1], InitialValues::Zero),
            ("Dense_1/kernel", vec![hidden, vocabulary], init_for_inputs(hidden)),
            ("Dense_1/bias", vec![vocabulary], InitialValues::Zero),
        ];
        // A normalizer wraps another weight function.
        let inner = if normalize.is_some() { "weight_fn/weight_fn" } else { "weight_fn" };
        parameters
            .extend(joint_parameters.map(|(name, shape, init)| (format!("{inner}/{name}"), shape, init)));
        parameters
    }

    /// Returns the weight function of values in the order of [`Self::parameters`].
    pub(super) fn joint<'a, F>(&self, values: &[&'a [F]]) -> JointWeightFn<'a, F> {
        let Self { states, vocabulary, embeddings, .. } = *self;
        let (embedding_values, joint_values) = values.split_at(values.len() - JOINT_PARAMETERS);
        // The label embeddings, and then input kernels, recurrent kernels and biases of four gates.
        let gates = |first_gate: usize| [0, 1, 2, 3].map(|gate| embedding_values[first_gate + gate]);
        let embeddings = match embeddings {
            EmbeddingConfig::Table { .. } => Embeddings::Table(embedding_values[0]),
            EmbeddingConfig::Rnn { order, .. } => Embeddings::Rnn(SharedRnn {
                vocabulary,
                order,
                embedding: embedding_values[0],
                input: gates(1),
                recurrent: gates(5),
                bias: gates(9),
            }),
        };
        JointWeightFn {
            embeddings,
            states,
            vocabulary,
            project_context: joint_values[0],
            project_frame: joint_values[1],
            joint_bias: joint_values[2],
            blank_kernel: joint_values[3],
            blank_bias: joint_values[4],
            label_kernel: joint_values[5],
            label_bias: joint_values[6],
        }
    }

    /// Sizes for planning, without parameters.
    pub(super) fn sizes<F: kernels::Real>(&self) -> JointSizes {
        let Self { states, vocabulary, frame, hidden, embeddings, .. } = *self;
        let (embedding, rnn) = match embeddings {
            EmbeddingConfig::Table { width } => (width, ScratchReq::EMPTY),
            EmbeddingConfig::Rnn { width, label, .. } => {
                (width, SharedRnn::<F>::scratch_for(states, vocabulary, width, label))
            }
        };
        JointSizes { states, vocabulary, hidden, embedding, features: frame, rnn }
    }

    /// Fails if a size is 0.
    fn check(&self) -> Result<()> {
        let (width, label) = match self.embeddings {
            EmbeddingConfig::Table { width } => (width, 1),
            EmbeddingConfig::Rnn { width, label, .. } => (width, label),
        };
        let sizes = [
            ("states", self.states),
            ("vocabulary", self.vocabulary),
            ("frame", self.frame),
            ("hidden", self.hidden),
            ("embeddings.width", width),
            ("embeddings.label", label),
        ];
        match sizes.into_iter().find(|(_, size)| *size == 0) {
            None => Ok(()),
            Some((argument, _)) => Err(Error::shape(argument, "at least 1", 0)),
        }
    }
}

/// The parameters of a [`JointWeightFn`] as CPU tensors.
///
/// All are `f32` or all are `f64`.
#[derive(Debug, Clone)]
pub struct JointWeights {
    config: JointConfig,
    names: Vec<String>,
    tensors: Vec<Tensor>,
}

impl JointWeights {
    /// Gets the parameters from a builder, with the initial values of LAST.
    ///
    /// Names are `weight_fn.project_frame.kernel` and so on (`weight_fn.weight_fn.` with a
    /// normalizer). Matrices are normal with variance 1 / inputs, tables with 1 / width; biases are
    /// 0. LAST also truncates its normal distributions at two deviations and uses orthogonal
    /// recurrent kernels, which builders do not support.
    ///
    /// # Errors
    /// A size of 0; errors of the builder, such as a missing parameter or another shape.
    pub fn new(config: JointConfig, vb: &VarBuilder) -> Result<Self> {
        config.check()?;
        let (mut names, mut tensors) = (Vec::new(), Vec::new());
        for (name, shape, initial_values) in config.parameters() {
            let init = match initial_values {
                InitialValues::Zero => Init::Const(0.0),
                InitialValues::Normal(variance) => Init::Randn { mean: 0.0, stdev: variance.sqrt() },
            };
            tensors.push(vb.get_with_hints(shape, &name.replace('/', "."), init)?);
            names.push(name);
        }
        Ok(Self { config, names, tensors })
    }

    /// The sizes.
    pub fn config(&self) -> &JointConfig {
        &self.config
    }

    /// Iterates over the parameters by their LAST names, with slashes.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.tensors)
    }

    /// Returns the parameters as contiguous tensors of a dtype.
    pub(super) fn contiguous(&self, dtype: DType) -> Result<Vec<Tensor>> {
        let to_contiguous = |(name, tensor): (&str, &Tensor)| {
            expect_cpu(name, tensor)?;
            if tensor.dtype() != dtype {
                let expected = format!("{}, the dtype of the frames", dtype.as_str());
                return Err(Error::shape(name, expected, tensor.dtype().as_str()));
            }
            Ok(tensor.contiguous()?)
        };
        self.iter().map(to_contiguous).collect()
    }

    /// Writes the parameters to a safetensors file with LAST names.
    ///
    /// An example of a name is `weight_fn/project_frame/kernel`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let named: HashMap<&str, Tensor> = self.iter().map(|(name, tensor)| (name, tensor.clone())).collect();
        Ok(candle_core::safetensors::save(&named, path)?)
    }
}

/// Reads LAST parameters from a safetensors file, for [`VarBuilder::from_tensors`].
///
/// Slashes in names become dots, and a leading `params/` is removed.
///
/// # Errors
/// A file that cannot be read.
pub fn load(path: &Path) -> Result<HashMap<String, Tensor>> {
    let named = candle_core::safetensors::load(path, &Device::Cpu)?;
    let rename = |name: String| name.strip_prefix("params/").unwrap_or(&name).replace('/', ".");
    Ok(named.into_iter().map(|(name, tensor)| (rename(name), tensor)).collect())
}
