//! Parameters of a joint network as tensors, by the names of LAST.
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
    /// C
    pub states: usize,
    /// V
    pub vocabulary: usize,
    /// F
    pub frame: usize,
    /// H
    pub hidden: usize,
    /// Where context embeddings come from.
    pub embeddings: EmbeddingConfig,
    /// How the weights of the arcs from each state become log-probabilities; none for weights that are normalised over whole paths.
    pub normalize: Option<Normalize>,
}

/// Sizes of [`Embeddings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingConfig {
    /// A table, `context_embeddings`.
    Table {
        /// E
        width: usize,
    },
    /// An LSTM over the labels of an n-gram.
    Rnn {
        /// n
        order: usize,
        /// R
        width: usize,
        /// RE, of a label's embedding.
        label: usize,
    },
}

/// What a parameter starts as.
#[derive(Clone, Copy)]
enum InitialValues {
    Zero,
    /// Normal with this variance.
    Normal(f64),
}

impl JointConfig {
    /// Names, shapes and first values of the parameters, in the order that [`Self::joint`] takes them in.
    fn parameters(&self) -> Vec<(String, Vec<usize>, InitialValues)> {
        let Self { states, vocabulary, frame, hidden, embeddings, normalize } = *self;
        let mut all = Vec::new();
        let width = match embeddings {
            EmbeddingConfig::Table { width } => {
                let name = "weight_fn_cacher/context_embeddings".to_owned();
                all.push((name, vec![states, width], InitialValues::Normal(1.0 / width as f64)));
                width
            }
            EmbeddingConfig::Rnn { width, label, .. } => {
                let of_cell = |from: char, what: &str, shape: &[usize], first: InitialValues| {
                    let name = move |gate| format!("weight_fn_cacher/rnn_cell/{from}{gate}/{what}");
                    ['i', 'f', 'g', 'o'].map(|gate| (name(gate), shape.to_vec(), first))
                };
                let name = "weight_fn_cacher/Embed_0/embedding".to_owned();
                all.push((name, vec![vocabulary + 1, label], InitialValues::Normal(1.0 / label as f64)));
                all.extend(of_cell(
                    'i',
                    "kernel",
                    &[label, width],
                    InitialValues::Normal(1.0 / label as f64),
                ));
                all.extend(of_cell(
                    'h',
                    "kernel",
                    &[width, width],
                    InitialValues::Normal(1.0 / width as f64),
                ));
                all.extend(of_cell('h', "bias", &[width], InitialValues::Zero));
                width
            }
        };
        let inputs = |inputs: usize| InitialValues::Normal(1.0 / inputs as f64);
        let of_joint: [(&str, Vec<usize>, InitialValues); 7] = [
            ("project_context_embeddings/kernel", vec![width, hidden], inputs(width)),
            ("project_frame/kernel", vec![frame, hidden], inputs(frame)),
            ("joint_bias", vec![hidden], InitialValues::Zero),
            ("Dense_0/kernel", vec![hidden, 1], inputs(hidden)),
            ("Dense_0/bias", vec![1], InitialValues::Zero),
            ("Dense_1/kernel", vec![hidden, vocabulary], inputs(hidden)),
            ("Dense_1/bias", vec![vocabulary], InitialValues::Zero),
        ];
        // A normaliser is a weight function around another.
        let inner = if normalize.is_some() { "weight_fn/weight_fn" } else { "weight_fn" };
        all.extend(of_joint.map(|(name, shape, first)| (format!("{inner}/{name}"), shape, first)));
        all
    }

    /// The weight function of values in the order of [`Self::parameters`].
    pub(super) fn joint<'a, F>(&self, values: &[&'a [F]]) -> JointWeightFn<'a, F> {
        let Self { states, vocabulary, embeddings, .. } = *self;
        let (of_embeddings, of_joint) = values.split_at(values.len() - 7);
        let four = |from: usize| [0, 1, 2, 3].map(|gate| of_embeddings[from + gate]);
        let embeddings = match embeddings {
            EmbeddingConfig::Table { .. } => Embeddings::Table(of_embeddings[0]),
            EmbeddingConfig::Rnn { order, .. } => Embeddings::Rnn(SharedRnn {
                vocabulary,
                order,
                embedding: of_embeddings[0],
                input: four(1),
                recurrent: four(5),
                bias: four(9),
            }),
        };
        JointWeightFn {
            embeddings,
            states,
            vocabulary,
            project_context: of_joint[0],
            project_frame: of_joint[1],
            joint_bias: of_joint[2],
            blank: of_joint[3],
            blank_bias: of_joint[4],
            lexical: of_joint[5],
            lexical_bias: of_joint[6],
        }
    }

    /// What a plan needs to know about the parameters.
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

/// The parameters of a [`JointWeightFn`] as tensors, all `f32` or all `f64`, on the CPU.
#[derive(Debug, Clone)]
pub struct JointWeights {
    config: JointConfig,
    names: Vec<String>,
    tensors: Vec<Tensor>,
}

impl JointWeights {
    /// Asks a builder for the parameters, `weight_fn.project_frame.kernel` and so on (`weight_fn.weight_fn.` with a normaliser). Their first values are those of LAST: matrices
    /// normal with the variance 1 / inputs, tables with 1 / width, biases 0 (its normal distributions are cut off at two deviations,
    /// and the recurrent kernels of its LSTM are orthogonal, for which builders have no name).
    ///
    /// # Errors
    /// A size of 0; those of the builder, such as a missing parameter or another shape.
    pub fn new(config: JointConfig, vb: &VarBuilder) -> Result<Self> {
        config.check()?;
        let (mut names, mut tensors) = (Vec::new(), Vec::new());
        for (name, shape, first) in config.parameters() {
            let init = match first {
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

    /// Names of LAST, with slashes, and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.tensors)
    }

    /// The tensors, contiguous, of a type.
    pub(super) fn of(&self, dtype: DType) -> Result<Vec<Tensor>> {
        let checked = |(name, tensor): (&str, &Tensor)| {
            expect_cpu(name, tensor)?;
            if tensor.dtype() != dtype {
                let expected = format!("{}, as the frames are", dtype.as_str());
                return Err(Error::shape(name, expected, tensor.dtype().as_str()));
            }
            Ok(tensor.contiguous()?)
        };
        self.iter().map(checked).collect()
    }

    /// Writes the parameters into a safetensors file with the names of LAST, such as `weight_fn/project_frame/kernel`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let named: HashMap<&str, Tensor> = self.iter().map(|(name, tensor)| (name, tensor.clone())).collect();
        Ok(candle_core::safetensors::save(&named, path)?)
    }
}

/// Reads the parameters of LAST from a safetensors file for a builder ([`VarBuilder::from_tensors`]): slashes become points, and a
/// leading `params/` is left out.
///
/// # Errors
/// A file that cannot be read.
pub fn load(path: &Path) -> Result<HashMap<String, Tensor>> {
    let named = candle_core::safetensors::load(path, &Device::Cpu)?;
    let ours = |name: String| name.strip_prefix("params/").unwrap_or(&name).replace('/', ".");
    Ok(named.into_iter().map(|(name, tensor)| (ours(name), tensor)).collect())
}
