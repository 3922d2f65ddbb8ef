//! `Model`: encoder, predictor and joint network or a CTC head, and an auxiliary CTC head.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use rnnt_loss::Targets;

use crate::config::ModelConfig;
use crate::encoders::Encoder;
use crate::encoders::packed::PackedEncoder;
use crate::frozen::FrozenParameters;
use crate::output;
use crate::output::{JointLayers, OutputModel, TransducerNetwork};
use crate::parameters::Shapes;
use crate::predictors::Predictor;
use crate::{Error, Linear, Parameters, Result};

/// Bytes that encoding needs in addition, for any shape: stacks and blocks of threads.
const CONSTANT_ENCODING_BYTES: usize = 4 << 20;

/// A model and its parameters.
///
/// L is the number of labels, C that of classes, W the width of encoder rows, P that of predictor
/// rows, H that of the joint network, D the number of durations.
///
/// | class | contents |
/// |---|---|
/// | 0 .. L | labels, in the order of the tokenizer |
/// | L | the blank |
/// | L + 1 .. | big blanks, in the order of the recipe |
///
/// | parameters | weight; each has a bias as well |
/// |---|---|
/// | `encoder.*`, `predictor.*` | see [`LstmEncoder`](crate::encoders::LstmEncoder), [`LstmPredictor`](crate::predictors::LstmPredictor) |
/// | `joint.encoder.weight`, `joint.predictor.weight`: projections to the joint width | `[H, W]`, `[H, P]` |
/// | `joint.head.weight` | `[C, H]` |
/// | `joint.durations.weight`: the duration head of a token-and-duration transducer | `[D, H]` |
/// | `ctc.weight`: the head of a CTC model or of the auxiliary loss | `[L + 1, W]` |
/// | `simple.encoder.weight`, `simple.predictor.weight`: the simple joiner of pruned training | `[C, W]`, `[C, P]` |
///
/// A CTC model has only `encoder.*` and `ctc.*`. A recognition lattice has `encoder.*`, `ctc.*`
/// and, instead of predictor and joint network, the parameters of a
/// [`Gnat`](lattice::candle::Gnat) under `lattice.*`, such as
/// `lattice.weight_fn.project_frame.kernel` `[W, H]`.
#[derive(Clone)]
pub struct Model {
    config: ModelConfig,
    parameters: Parameters,
    pub(crate) encoder: Arc<dyn Encoder>,
    pub(crate) output: OutputModel,
    /// The head of the auxiliary loss.
    auxiliary_ctc: Option<Linear>,
    pub(crate) labels: usize,
    /// True if the caller supplied the encoder.
    pub(crate) has_custom_encoder: bool,
    /// The encoder, if its weights are packed for inference.
    pub(crate) packed: Option<Arc<PackedEncoder>>,
}

/// The network of a model: encoder, output, and optional auxiliary CTC head.
pub(crate) struct Network {
    encoder: Arc<dyn Encoder>,
    pub output: OutputModel,
    auxiliary_ctc: Option<Linear>,
}

impl Network {
    /// Creates the network of a configuration.
    pub(crate) fn new(config: &ModelConfig, labels: usize, vb: &VarBuilder) -> Result<Self> {
        let (input_width, encoder_vb) = (config.input.width(), vb.pp("encoder"));
        let encoder = match &config.adapter {
            Some(adapter) => config.encoder.build_with_adapter(input_width, adapter, &encoder_vb)?,
            None => config.encoder.build(input_width, &encoder_vb)?,
        };
        Self::with_encoder(config, labels, encoder, vb)
    }

    /// Adds the other parts of a configuration to an encoder.
    pub(crate) fn with_encoder(
        config: &ModelConfig,
        labels: usize,
        encoder: Arc<dyn Encoder>,
        vb: &VarBuilder,
    ) -> Result<Self> {
        if let Some(gnat) = config.loss.kind.gnat() {
            let output = output::build_lattice(gnat, config, labels, encoder.width(), &vb.pp("lattice"))?;
            return Self::with_output(config, labels, encoder, output, vb);
        }
        if config.loss.kind.is_ctc() {
            let output = OutputModel::Ctc(new_ctc_head(labels, encoder.width(), vb)?);
            return Self::with_output(config, labels, encoder, output, vb);
        }
        let predictor = config.predictor.as_ref().ok_or_else(|| Error::RecipeValue {
            key: "predictor".into(),
            expected: "a table, with a kind".into(),
            found: "none".into(),
        })?;
        let predictor = predictor.build(labels + 1, labels as u32, &vb.pp("predictor"))?;
        Self::transducer(config, labels, encoder, predictor, vb)
    }

    /// Creates a transducer from an encoder and a predictor.
    fn transducer(
        config: &ModelConfig,
        labels: usize,
        encoder: Arc<dyn Encoder>,
        predictor: Arc<dyn Predictor>,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let layers = JointLayers::new(config, labels, encoder.width(), predictor.width(), vb)?;
        let output = OutputModel::Transducer(TransducerNetwork { predictor, layers });
        Self::with_output(config, labels, encoder, output, vb)
    }

    /// Adds the optional head of the auxiliary CTC loss.
    fn with_output(
        config: &ModelConfig,
        labels: usize,
        encoder: Arc<dyn Encoder>,
        output: OutputModel,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let has_ctc = config.terms.has_ctc();
        let auxiliary_ctc = has_ctc.then(|| new_ctc_head(labels, encoder.width(), vb)).transpose()?;
        Ok(Self { encoder, output, auxiliary_ctc })
    }
}

/// Creates a CTC head.
///
/// It is that of a CTC model or of the auxiliary loss. It needs no big blanks: several blanks are
/// equivalent.
fn new_ctc_head(labels: usize, encoder_width: usize, vb: &VarBuilder) -> Result<Linear> {
    Ok(Linear::new(encoder_width, labels + 1, &vb.pp("ctc"))?)
}

/// The inputs of the loss of a batch.
///
/// B: utterances; T: encoder frames, U: labels of the longest one; other letters are those of
/// [`Model`].
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
    /// Weight `[D, H]` and bias `[D]` of the duration head.
    pub durations: Option<(Tensor, Tensor)>,
    /// Blanks, lengths and labels.
    pub targets: Targets,
}

impl Model {
    /// Creates a model with random weights from the configuration's seed.
    ///
    /// `labels` is the number of labels without the blank; input rows have `mels · stack` values.
    ///
    /// # Errors
    /// Those of [`ModelConfig::check`]; [`Error::Memory`](crate::Error::Memory) if the parameters
    /// do not fit into memory; errors of candle.
    pub fn new(config: &ModelConfig, labels: usize) -> Result<Self> {
        config.check()?;
        Self::check_memory(config, &Self::shapes(config, labels)?, 1, 1)?;
        Self::build(config, labels, |vb| Network::new(config, labels, &vb))
    }

    /// Returns names and shapes of a model's parameters without allocating them.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn shapes(config: &ModelConfig, labels: usize) -> Result<Shapes> {
        let (shapes, _) = Parameters::plan(|vb| Network::new(config, labels, &vb))?;
        Ok(shapes)
    }

    /// Checks that `copies` numbers for each trained parameter fit into memory.
    ///
    /// Parameters that training does not change have `frozen_copies`.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory).
    pub fn check_memory(
        config: &ModelConfig,
        shapes: &Shapes,
        copies: usize,
        frozen_copies: usize,
    ) -> Result<()> {
        let frozen = FrozenParameters::from_config(config);
        let parameter_bytes = |shape: &Vec<usize>| {
            shape.iter().fold(size_of::<f32>(), |bytes, &axis| bytes.saturating_mul(axis))
        };
        let bytes = shapes.iter().fold(0usize, |bytes, (name, shape)| {
            let copies = if frozen.contains(name) { frozen_copies } else { copies };
            bytes.saturating_add(parameter_bytes(shape).saturating_mul(copies))
        });
        let describe = || {
            let largest = shapes.iter().max_by_key(|(_, shape)| parameter_bytes(shape));
            let (name, shape) = largest.map_or(("none", &[][..]), |(name, shape)| (name, shape));
            let count = shapes.len();
            let output = match (config.loss.kind.gnat(), &config.joint) {
                (_, None) => " and the number of labels".into(),
                (Some(gnat), Some(joint)) => {
                    format!(", loss.context = {} and joint.width = {}", gnat.context, joint.width)
                }
                (None, Some(joint)) => format!(", [predictor] and joint.width = {}", joint.width),
            };
            format!("the recipe's [encoder]{output}: {count} parameters, the largest is {name} {shape:?}")
        };
        Error::expect_memory(describe, bytes)
    }

    /// Creates a model with a custom encoder and predictor.
    ///
    /// `parts` creates them with a builder for each; the configuration determines the rest. The
    /// loss is that of a transducer. Labels are 0 .. `labels`, and the blank is `labels`; the
    /// encoder receives rows of `mels · stack` values. The encoder is not packed for inference: it
    /// computes in `f32`.
    ///
    /// # Errors
    /// Those of `parts`; errors of candle.
    pub fn with_parts(
        config: &ModelConfig,
        labels: usize,
        parts: impl FnOnce(VarBuilder, VarBuilder) -> Result<(Arc<dyn Encoder>, Arc<dyn Predictor>)>,
    ) -> Result<Self> {
        let model = Self::build(config, labels, |vb| {
            let (encoder, predictor) = parts(vb.pp("encoder"), vb.pp("predictor"))?;
            Network::transducer(config, labels, encoder, predictor, &vb)
        })?;
        Ok(Self { has_custom_encoder: true, ..model })
    }

    /// Creates a model with a custom encoder, of any kind of loss.
    ///
    /// `encoder` creates it with a builder; the configuration determines the rest. Labels, input
    /// rows and inference are those of [`Self::with_parts`].
    ///
    /// # Errors
    /// Those of `encoder` and of [`ModelConfig::check`]; errors of candle.
    pub fn with_encoder(
        config: &ModelConfig,
        labels: usize,
        encoder: impl FnOnce(VarBuilder) -> Result<Arc<dyn Encoder>>,
    ) -> Result<Self> {
        config.check()?;
        let model = Self::build(config, labels, |vb| {
            let encoder = encoder(vb.pp("encoder"))?;
            Network::with_encoder(config, labels, encoder, &vb)
        })?;
        Ok(Self { has_custom_encoder: true, ..model })
    }

    /// Creates a model and its parameters, and initializes them.
    fn build(
        config: &ModelConfig,
        labels: usize,
        make_network: impl FnOnce(VarBuilder<'static>) -> Result<Network>,
    ) -> Result<Self> {
        let frozen = FrozenParameters::from_config(config);
        let (parameters, network) = Parameters::build_frozen(config.seed, &frozen, make_network)?;
        parameters.initialize(&config.init, config.seed)?;
        Ok(Self::from_network(config, labels, parameters, network))
    }

    /// Creates a model from its network and parameters.
    pub(crate) fn from_network(
        config: &ModelConfig,
        labels: usize,
        parameters: Parameters,
        network: Network,
    ) -> Self {
        let Network { encoder, output, auxiliary_ctc } = network;
        Model {
            config: config.clone(),
            parameters,
            encoder,
            output,
            auxiliary_ctc,
            labels,
            has_custom_encoder: false,
            packed: None,
        }
    }

    /// Replaces the encoder by one with packed weights, if there is one.
    pub(crate) fn with_packed(mut self, packed: Option<Arc<PackedEncoder>>) -> Self {
        if let Some(packed) = packed {
            self.encoder = packed.clone();
            self.packed = Some(packed);
        }
        self
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the encoder.
    pub fn encoder(&self) -> &dyn Encoder {
        &*self.encoder
    }

    /// Returns the predictor; none for a CTC model or a recognition lattice.
    pub fn predictor(&self) -> Option<&dyn Predictor> {
        self.output.transducer().ok().map(|transducer| &*transducer.predictor)
    }

    /// Returns the weights.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Returns the number of classes C, blanks included.
    pub fn classes(&self) -> usize {
        self.config.classes(self.labels)
    }

    /// Returns the class id of the blank.
    pub fn blank(&self) -> u32 {
        self.labels as u32
    }

    /// Returns class ids and numbers of frames of the big blanks.
    pub(crate) fn big_blanks(&self) -> Vec<(u32, usize)> {
        (self.blank() + 1..).zip(self.config.loss.kind.big_blanks().iter().copied()).collect()
    }

    /// Returns the durations of the duration head.
    pub fn durations(&self) -> &[usize] {
        self.config.loss.kind.durations()
    }

    /// Returns the joint width H; in a CTC model the number of classes.
    pub fn width(&self) -> usize {
        self.config.joint.as_ref().map_or(self.classes(), |joint| joint.width)
    }

    /// Returns blanks, lengths and labels for the loss.
    pub(crate) fn targets(&self, lengths: Vec<usize>, labels: &[Vec<u32>]) -> Result<Targets> {
        let big_blanks = self.big_blanks().into_iter().map(|(class, _)| class).collect();
        let targets = Targets::new(self.blank(), lengths, labels.to_vec())?;
        Ok(targets.with_big_blanks(big_blanks)?)
    }

    /// Returns the recognition lattice, if the model has one.
    pub fn lattice(&self) -> Option<&lattice::candle::Gnat> {
        self.output.lattice()
    }

    /// Returns encoder frames for decoding, and their lengths.
    ///
    /// Frames are those of [`Self::project_frames`].
    ///
    /// # Shapes
    /// `x [B, T, D]`, D = mels · stack; `lengths` has B entries of at most T. Returns `[B, T', H]`,
    /// with T' < T only for a time reduction, and B lengths.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the input does not match the model.
    pub fn encode(&self, x: &Tensor, lengths: &[usize]) -> Result<(Tensor, Vec<usize>)> {
        let (encoded, lengths) = self.encoder.forward(x, lengths, None)?;
        Ok((self.project_frames(encoded)?, lengths))
    }

    /// Projects encoder rows `[B, T', W]` to the rows that searches take.
    ///
    /// | model | rows |
    /// |---|---|
    /// | transducer | projected to the joint width, `[B, T', H]` |
    /// | CTC model | logits of the head, `[B, T', L + 1]` |
    /// | recognition lattice | unchanged |
    ///
    /// # Errors
    /// Errors of candle.
    pub fn project_frames(&self, encoded: Tensor) -> Result<Tensor> {
        Ok(match &self.output {
            OutputModel::Transducer(TransducerNetwork { layers, .. }) => layers.encoder.apply(&encoded)?,
            OutputModel::Ctc(head) => head.apply(&encoded)?,
            OutputModel::Lattice(_) => encoded,
        })
    }

    /// Returns true for a CTC model (`loss.kind = "ctc"`).
    pub fn is_ctc(&self) -> bool {
        self.output.ctc_head().is_some()
    }

    /// Returns the head of a CTC model or of the auxiliary loss.
    pub(crate) fn ctc_head(&self) -> Option<&Linear> {
        self.output.ctc_head().or(self.auxiliary_ctc.as_ref())
    }

    /// Returns true if the model has a CTC head: its own, or that of an auxiliary loss.
    pub fn has_ctc_head(&self) -> bool {
        self.ctc_head().is_some()
    }

    /// Computes the logits `[B, T', L + 1]` of the CTC head.
    ///
    /// None if the model has no such head.
    ///
    /// `encoded` has encoder rows `[B, T', W]`; the blank is class L.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn ctc_logits(&self, encoded: &Tensor) -> Result<Option<Tensor>> {
        Ok(self.ctc_head().map(|head| head.apply(encoded)).transpose()?)
    }

    /// Computes the log-probabilities `[B, T', L + 1]` of the CTC head.
    ///
    /// None if the model has no such head.
    ///
    /// `encoded` has encoder rows `[B, T', W]`; the blank is class L.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn ctc_log_probabilities(&self, encoded: &Tensor) -> Result<Option<Tensor>> {
        let Some(logits) = self.ctc_logits(encoded)? else { return Ok(None) };
        Ok(Some(candle_nn::ops::log_softmax(&logits, 2)?))
    }

    /// Computes the inputs of the loss, for external losses.
    ///
    /// # Shapes
    /// `x [B, T, D]`, D = mels · stack; `lengths` has B entries of at most T; `labels` has B
    /// sequences.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] or [`crate::Error::Loss`] if the input does not match the model, or
    /// the model is no transducer.
    pub fn joint_rows(&self, x: &Tensor, lengths: &[usize], labels: &[Vec<u32>]) -> Result<JointRows> {
        let TransducerNetwork { predictor, layers } = self.output.transducer()?;
        let (frames, lengths) = self.encode(x, lengths)?;
        let JointLayers { head, durations, .. } = layers;
        Ok(JointRows {
            frames,
            labels: layers.predictor.apply(&predictor.forward(labels, None)?)?,
            weight: head.weight().clone(),
            bias: head.bias().clone(),
            durations: durations.as_ref().map(|head| (head.weight().clone(), head.bias().clone())),
            targets: self.targets(lengths, labels)?,
        })
    }

    /// Returns an upper bound of the bytes for encoding a padded batch.
    ///
    /// None if the encoder does not report its memory.
    pub fn encoding_bytes(&self, utterances: usize, rows: usize) -> Option<usize> {
        let config = self.config();
        let width = config.input.width();
        let encoder = self.encoder().bytes(utterances, rows, width)?;
        let frames = config.encoder.output_rows(rows);
        // Rows before and after the projection, in tensors and in vectors, and the input.
        let values = 2 * frames * (self.encoder().width() + self.width()) + 2 * rows * width;
        Some(
            encoder
                .saturating_add(size_of::<f32>().saturating_mul(utterances).saturating_mul(values))
                .saturating_add(CONSTANT_ENCODING_BYTES),
        )
    }
}
