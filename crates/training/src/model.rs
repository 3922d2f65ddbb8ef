//! The whole transducer: encoder, predictor, joint, and an optional CTC head on the encoder.
use candle_core::{Tensor, Var};
use rnnt_loss::Targets;

use crate::encoder::Encoder;
use crate::init::Init;
use crate::predictor::Predictor;
use crate::recipe::{LossConfig, Recipe};
use crate::{Parameters, Result, linear};

/// A transducer and its parameters.
///
/// | class | what |
/// |---|---|
/// | 0 .. L | labels, by their number in the tokenizer |
/// | L | the blank |
/// | L + 1 .. | big blanks, in the order of the recipe |
///
/// | parameters of some kinds of loss only | shape |
/// |---|---|
/// | `joint.durations`, `joint.durations.bias`: the duration head | `[D, H]`, `[D]` |
/// | `simple.encoder`, `simple.predictor` and their biases: the trivial joiner, for training alone | `[C, W]`, `[C, P]`, `[C]` |
#[derive(Debug, Clone)]
pub struct Model {
    pub(crate) recipe: Recipe,
    parameters: Parameters,
    pub(crate) encoder: Encoder,
    pub(crate) predictor: Predictor,
    /// Projections to the joint width: `[W, H]`, `[H]` and `[P, H]`, `[H]`.
    pub(crate) joint_encoder: (Var, Var),
    pub(crate) joint_predictor: (Var, Var),
    /// `[C, H]`, `[C]`
    pub(crate) head: (Var, Var),
    /// `[D, H]`, `[D]`
    pub(crate) duration_head: Option<(Var, Var)>,
    pub(crate) trivial: Option<Trivial>,
    pub(crate) ctc: Option<(Var, Var)>,
    labels: usize,
}

/// Weights and biases of the trivial joiner: `[C, W]`, `[C]` and `[C, P]`, `[C]`.
#[derive(Debug, Clone)]
pub(crate) struct Trivial {
    pub am: (Var, Var),
    pub lm: (Var, Var),
}

/// What the loss of a batch is computed from.
#[derive(Debug, Clone)]
pub struct JointRows {
    /// Projected frames `[B, T, H]`.
    pub frames: Tensor,
    /// Projected label rows `[B, U+1, H]`.
    pub labels: Tensor,
    /// The head's weight `[C, H]`.
    pub weight: Tensor,
    /// The head's bias `[C]`.
    pub bias: Tensor,
    /// Weight `[D, H]` and bias `[D]` of the duration head, if the model has one.
    pub durations: Option<(Tensor, Tensor)>,
    /// Blanks, lengths and labels.
    pub targets: Targets,
}

impl Model {
    /// A new model with first weights from the recipe's seed.
    ///
    /// `labels` is the number of labels without the blank; rows of the input have `mels · stack` values.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn new(recipe: &Recipe, labels: usize) -> Result<Self> {
        // What the predictor and CTC know: big blanks say nothing that the blank does not.
        let tokens = labels + 1;
        let classes = tokens + recipe.loss.big_blanks().len();
        let width = recipe.joint.width;
        let mut parameters = Parameters::new(recipe.seed);
        let p = &mut parameters;
        let encoder = Encoder::new(&recipe.encoder, recipe.features.mels * recipe.encoder.stack, p)?;
        let predictor = Predictor::new(&recipe.predictor, tokens, labels as u32, p)?;
        let mut projection = |name: &str, inputs: usize, outputs: usize| -> Result<(Var, Var)> {
            let weight = p.create(name, &[inputs, outputs], Init::linear(inputs))?;
            Ok((weight, p.create(&format!("{name}.bias"), &[outputs], Init::Zero)?))
        };
        let joint_encoder = projection("joint.encoder", encoder.width(), width)?;
        let joint_predictor = projection("joint.predictor", predictor.width(), width)?;
        // Heads have a row for each class.
        let mut head = |name: &str, classes: usize, inputs: usize| -> Result<(Var, Var)> {
            let weight = p.create(name, &[classes, inputs], Init::linear(inputs))?;
            Ok((weight, p.create(&format!("{name}.bias"), &[classes], Init::Zero)?))
        };
        let ctc = match recipe.training.has_ctc() {
            true => Some(head("ctc", tokens, encoder.width())?),
            false => None,
        };
        let joint_head = head("joint.head", classes, width)?;
        let duration_head = match recipe.loss.durations() {
            [] => None,
            durations => Some(head("joint.durations", durations.len(), width)?),
        };
        let trivial = match recipe.loss {
            LossConfig::Pruned { .. } => Some(Trivial {
                am: head("simple.encoder", classes, encoder.width())?,
                lm: head("simple.predictor", classes, predictor.width())?,
            }),
            _ => None,
        };
        Ok(Model {
            recipe: recipe.clone(),
            parameters,
            encoder,
            predictor,
            joint_encoder,
            joint_predictor,
            head: joint_head,
            duration_head,
            trivial,
            ctc,
            labels,
        })
    }

    /// The weights.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Number of classes C, blanks included.
    pub fn classes(&self) -> usize {
        self.labels + 1 + self.recipe.loss.big_blanks().len()
    }

    /// Class id of the blank.
    pub fn blank(&self) -> u32 {
        self.labels as u32
    }

    /// Class ids of the big blanks, and how many encoder frames each moves on.
    pub fn big_blanks(&self) -> Vec<(u32, usize)> {
        (self.blank() + 1..).zip(self.recipe.loss.big_blanks().iter().copied()).collect()
    }

    /// Encoder frames that the duration head chooses from.
    pub fn durations(&self) -> &[usize] {
        self.recipe.loss.durations()
    }

    /// Joint width H.
    pub fn width(&self) -> usize {
        self.recipe.joint.width
    }

    /// Blanks, lengths and labels for the loss.
    pub(crate) fn targets(&self, lengths: Vec<usize>, labels: &[Vec<u32>]) -> Result<Targets> {
        let big_blanks = self.big_blanks().into_iter().map(|(class, _)| class).collect();
        let targets = Targets::new(self.blank(), lengths, labels.to_vec())?;
        Ok(targets.with_big_blanks(big_blanks)?)
    }

    /// Projected frames and their lengths, for decoding.
    ///
    /// # Shapes
    /// `x [B, T, D]`, D = mels · stack; `lengths` has B entries of at most T. Returns `[B, T', H]`, T' = T but for a time reduction,
    /// and B lengths.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the input does not fit.
    pub fn encode(&self, x: &Tensor, lengths: &[usize]) -> Result<(Tensor, Vec<usize>)> {
        let (encoded, lengths) = self.encoder.forward(x, lengths, None)?;
        Ok((linear(&encoded, &self.joint_encoder.0, &self.joint_encoder.1)?, lengths))
    }

    /// What the joint adds, and the head, on a padded batch of utterances, for a look at the loss from outside.
    ///
    /// # Shapes
    /// `x [B, T, D]`, D = mels · stack; `lengths` has B entries of at most T; `labels` has B sequences.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] or [`crate::Error::Loss`] if the input does not fit.
    pub fn joint_rows(&self, x: &Tensor, lengths: &[usize], labels: &[Vec<u32>]) -> Result<JointRows> {
        let (frames, lengths) = self.encode(x, lengths)?;
        let predicted = self.predictor.forward(labels, None)?;
        Ok(JointRows {
            frames,
            labels: linear(&predicted, &self.joint_predictor.0, &self.joint_predictor.1)?,
            weight: self.head.0.as_tensor().clone(),
            bias: self.head.1.as_tensor().clone(),
            durations: self
                .duration_head
                .as_ref()
                .map(|(w, b)| (w.as_tensor().clone(), b.as_tensor().clone())),
            targets: self.targets(lengths, labels)?,
        })
    }
}
