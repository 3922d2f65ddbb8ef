//! The whole transducer: encoder, predictor, joint, and an optional CTC head on the encoder.
use candle_core::{Tensor, Var};
use rnnt_loss::{Options, Precision, Targets, Topology};

use crate::dropout::Masks;
use crate::encoder::Encoder;
use crate::init::Init;
use crate::predictor::Predictor;
use crate::recipe::Recipe;
use crate::{Parameters, Result, linear};

/// A transducer and its parameters; the blank is the last class.
#[derive(Debug, Clone)]
pub struct Model {
    parameters: Parameters,
    pub(crate) encoder: Encoder,
    pub(crate) predictor: Predictor,
    joint_dropout: f32,
    /// Projections to the joint width: `[W, H]`, `[H]` and `[P, H]`, `[H]`.
    pub(crate) joint_encoder: (Var, Var),
    pub(crate) joint_predictor: (Var, Var),
    /// `[C, H]`, `[C]`
    pub(crate) head: (Var, Var),
    ctc: Option<(Var, Var)>,
    topology: Topology,
    precision: Precision,
    classes: usize,
    width: usize,
}

/// Losses of a batch, one value an utterance, still part of the graph.
#[derive(Debug)]
pub struct Losses {
    /// Transducer loss `[B]`.
    pub transducer: Tensor,
    /// CTC loss of the encoder `[B]`, if the model has that head.
    pub ctc: Option<Tensor>,
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
    /// Blank, lengths and labels.
    pub targets: Targets,
}

impl Model {
    /// A new model with first weights from the recipe's seed.
    ///
    /// `labels` is the number of labels without the blank, which becomes class `labels`; rows of the input have
    /// `mels · stack` values.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn new(recipe: &Recipe, labels: usize) -> Result<Self> {
        let classes = labels + 1;
        let blank = labels as u32;
        let width = recipe.joint.width;
        let mut parameters = Parameters::new(recipe.seed);
        let p = &mut parameters;
        let encoder = Encoder::new(&recipe.encoder, recipe.features.mels * recipe.encoder.stack, p)?;
        let predictor = Predictor::new(&recipe.predictor, classes, blank, p)?;
        let mut projection = |name: &str, inputs: usize, outputs: usize| -> Result<(Var, Var)> {
            let weight = p.create(name, &[inputs, outputs], Init::linear(inputs))?;
            Ok((weight, p.create(&format!("{name}.bias"), &[outputs], Init::Zero)?))
        };
        let joint_encoder = projection("joint.encoder", encoder.width(), width)?;
        let joint_predictor = projection("joint.predictor", predictor.width(), width)?;
        let ctc = match recipe.training.has_ctc() {
            true => Some(projection("ctc", encoder.width(), classes)?),
            false => None,
        };
        let head = (
            p.create("joint.head", &[classes, width], Init::linear(width))?,
            p.create("joint.head.bias", &[classes], Init::Zero)?,
        );
        let joint_dropout = recipe.joint.dropout;
        Ok(Model {
            parameters,
            encoder,
            predictor,
            joint_dropout,
            joint_encoder,
            joint_predictor,
            head,
            ctc,
            topology: recipe.training.topology.topology(),
            precision: recipe.training.precision.precision(),
            classes,
            width,
        })
    }

    /// The weights.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Number of classes C, blank included.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Class id of the blank.
    pub fn blank(&self) -> u32 {
        self.classes as u32 - 1
    }

    /// Joint width H.
    pub fn width(&self) -> usize {
        self.width
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
            targets: Targets::new(self.blank(), lengths, labels.to_vec())?,
        })
    }

    /// Losses of a padded batch of utterances with these lengths and labels. With masks, dropout is on.
    ///
    /// # Shapes
    /// `x [B, T, D]`, D = mels · stack; `lengths` has B entries of at most T; `labels` has B sequences. Returns `[B]` each.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] or [`crate::Error::Loss`] if the input does not fit.
    pub fn losses(
        &self,
        x: &Tensor,
        lengths: &[usize],
        labels: &[Vec<u32>],
        fastemit: f64,
        mut masks: Option<&mut Masks>,
    ) -> Result<Losses> {
        let (encoded, lengths) = self.encoder.forward(x, lengths, masks.as_deref_mut())?;
        let predicted = self.predictor.forward(labels, masks.as_deref_mut())?;
        let mut frames = linear(&encoded, &self.joint_encoder.0, &self.joint_encoder.1)?;
        let mut rows = linear(&predicted, &self.joint_predictor.0, &self.joint_predictor.1)?;
        if let Some(masks) = masks {
            frames = masks.apply(&frames, self.joint_dropout)?;
            rows = masks.apply(&rows, self.joint_dropout)?;
        }
        let targets = Targets::new(self.blank(), lengths, labels.to_vec())?;
        let (topology, precision) = (self.topology.clone(), self.precision);
        let options = Options { fastemit, topology, precision, ..Options::default() };
        let transducer = rnnt_loss::candle::transducer_loss(
            &frames,
            &rows,
            &self.head.0,
            &self.head.1,
            &targets,
            &options,
        )?;
        let ctc = match &self.ctc {
            Some((weight, bias)) => {
                Some(rnnt_loss::candle::ctc_loss(&linear(&encoded, weight, bias)?, &targets)?)
            }
            None => None,
        };
        Ok(Losses { transducer, ctc })
    }
}
