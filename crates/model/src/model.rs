//! The whole transducer: encoder, predictor, joint, and an optional CTC head on the encoder.
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::VarBuilder;
use rnnt_loss::Targets;

use crate::config::ModelConfig;
use crate::encoders::Encoder;
use crate::heads;
use crate::heads::{JointLayers, OutputModel, TransducerNetwork};
use crate::parameters::Shapes;
use crate::predictors::Predictor;
use crate::{Error, Linear, Parameters, Result};

/// Bytes that encoding takes whatever the shape: stacks and blocks of threads.
const CONSTANT_BYTES: usize = 4 << 20;

/// A transducer and its parameters.
///
/// | class | what |
/// |---|---|
/// | 0 .. L | labels, by their number in the tokenizer |
/// | L | the blank |
/// | L + 1 .. | big blanks, in the order of the recipe |
///
/// | parameters | weight; each has a bias beside it |
/// |---|---|
/// | `encoder.*`, `predictor.*` | see [`LstmEncoder`](crate::encoders::LstmEncoder), [`LstmPredictor`](crate::predictors::LstmPredictor) |
/// | `joint.encoder.weight`, `joint.predictor.weight`: projections to the joint width | `[H, W]`, `[H, P]` |
/// | `joint.head.weight` | `[C, H]` |
/// | `joint.durations.weight`: the duration head of a token-and-duration transducer | `[D, H]` |
/// | `ctc.weight`: the head of the auxiliary loss | `[L + 1, W]` |
/// | `simple.encoder.weight`, `simple.predictor.weight`: the trivial joiner of pruned training | `[C, W]`, `[C, P]` |
///
/// A recognition lattice has `encoder.*`, `ctc.*` and, in place of predictor and joint, the
/// parameters of a [`Gnat`](lattice::candle::Gnat) under `lattice.*`, such as
/// `lattice.weight_fn.project_frame.kernel` `[W, H]`.
#[derive(Clone)]
pub struct Model {
    config: ModelConfig,
    parameters: Parameters,
    pub(crate) encoder: Arc<dyn Encoder>,
    pub(crate) output: OutputModel,
    pub(crate) ctc: Option<Linear>,
    labels: usize,
}

/// The network in parts.
pub(crate) struct Network {
    encoder: Arc<dyn Encoder>,
    pub output: OutputModel,
    ctc: Option<Linear>,
}

impl Network {
    /// What the configuration says.
    pub fn new(config: &ModelConfig, labels: usize, vb: &VarBuilder) -> Result<Self> {
        let encoder = config.encoder.build(config.input.width(), &vb.pp("encoder"))?;
        if let Some(gnat) = config.loss.kind.gnat() {
            let output = heads::lattice(gnat, config, labels, encoder.width(), &vb.pp("lattice"))?;
            return Self::with_parts(config, labels, encoder, output, vb);
        }
        let predictor = config.predictor.as_ref().ok_or_else(|| Error::RecipeValue {
            key: "predictor".into(),
            expected: "a table, with a kind".into(),
            found: "none".into(),
        })?;
        let predictor = predictor.build(labels + 1, labels as u32, &vb.pp("predictor"))?;
        Self::around(config, labels, (encoder, predictor), vb)
    }

    /// A transducer around an encoder and a predictor.
    fn around(
        config: &ModelConfig,
        labels: usize,
        (encoder, predictor): (Arc<dyn Encoder>, Arc<dyn Predictor>),
        vb: &VarBuilder,
    ) -> Result<Self> {
        let heads = JointLayers::new(config, labels, (encoder.width(), predictor.width()), vb)?;
        Self::with_parts(
            config,
            labels,
            encoder,
            OutputModel::TransducerNetwork(TransducerNetwork { predictor, heads }),
            vb,
        )
    }

    fn with(
        config: &ModelConfig,
        labels: usize,
        encoder: Arc<dyn Encoder>,
        output: OutputModel,
        vb: &VarBuilder,
    ) -> Result<Self> {
        // CTC knows no big blanks: they say nothing that the blank does not.
        let ctc = config.terms.has_ctc();
        let ctc = ctc.then(|| Linear::new(encoder.width(), labels + 1, &vb.pp("ctc"))).transpose()?;
        Ok(Self { encoder, output, ctc })
    }
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
    /// A new model with first weights from the configuration's seed.
    ///
    /// `labels` is the number of labels without the blank; rows of the input have `mels · stack`
    /// values.
    ///
    /// # Errors
    /// Those of [`ModelConfig::check`]; [`Error::Memory`](crate::Error::Memory) if the machine has
    /// not enough for its parameters; candle's own errors.
    pub fn new(config: &ModelConfig, labels: usize) -> Result<Self> {
        config.check()?;
        Self::fits(config, &Self::shapes(config, labels)?, 1)?;
        Self::build(config, labels, |vb| Network::new(config, labels, &vb))
    }

    /// Names and shapes of the parameters that [`Self::new`] makes, without making them.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn shapes(config: &ModelConfig, labels: usize) -> Result<Shapes> {
        let (shapes, _) = Parameters::plan(|vb| Network::new(config, labels, &vb))?;
        Ok(shapes)
    }

    /// Fails if the machine has no memory for so many numbers a parameter.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory).
    pub fn check_memory(config: &ModelConfig, shapes: &Shapes, each: usize) -> Result<()> {
        let size = |shape: &Vec<usize>| shape.iter().fold(size_of::<f32>(), |p, &n| p.saturating_mul(n));
        let bytes = shapes.values().map(size).fold(0, usize::saturating_add).saturating_mul(each);
        let what = || {
            let largest = shapes.iter().max_by_key(|(_, shape)| size(shape));
            let (name, shape) = largest.map_or(("none", &[][..]), |(name, shape)| (name, shape));
            let (count, width) = (shapes.len(), config.joint.width);
            let output = match config.loss.kind.gnat() {
                Some(gnat) => format!("loss.context = {}", gnat.context),
                None => "[predictor]".into(),
            };
            format!(
                "the recipe's [encoder], {output} and joint.width = {width}: {count} parameters, the largest of them {name} \
                 {shape:?}"
            )
        };
        Error::expect_memory(what, bytes)
    }

    /// A new model around an encoder and a predictor of one's own, which `parts` makes with a
    /// builder for each; the rest is as the configuration says.
    ///
    /// The loss is that of a transducer. Labels are 0 .. `labels`, and the blank is `labels`; the
    /// encoder is given rows of `mels · stack` values.
    ///
    /// # Errors
    /// Whatever `parts` says; candle's own errors.
    pub fn with_parts(
        config: &ModelConfig,
        labels: usize,
        parts: impl FnOnce(VarBuilder, VarBuilder) -> Result<(Arc<dyn Encoder>, Arc<dyn Predictor>)>,
    ) -> Result<Self> {
        Self::build(config, labels, |vb| {
            Network::around(config, labels, parts(vb.pp("encoder"), vb.pp("predictor"))?, &vb)
        })
    }

    fn build(
        config: &ModelConfig,
        labels: usize,
        parts: impl FnOnce(VarBuilder<'static>) -> Result<Network>,
    ) -> Result<Self> {
        let (parameters, parts) = Parameters::build(config.seed, parts)?;
        let Network { encoder, output, ctc } = parts;
        parameters.initialize(&config.init, config.seed)?;
        Ok(Model { config: config.clone(), parameters, encoder, output, ctc, labels })
    }

    /// What it was made from.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The encoder.
    pub fn encoder(&self) -> &dyn Encoder {
        &*self.encoder
    }

    /// The predictor; none of a recognition lattice.
    pub fn predictor(&self) -> Option<&dyn Predictor> {
        self.output.transducer().ok().map(|transducer| &*transducer.predictor)
    }

    /// The weights.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Number of classes C, blanks included.
    pub fn classes(&self) -> usize {
        self.config.classes(self.labels)
    }

    /// Class id of the blank.
    pub fn blank(&self) -> u32 {
        self.labels as u32
    }

    /// Class ids of the big blanks, and how many encoder frames each moves on.
    pub fn big_blanks(&self) -> Vec<(u32, usize)> {
        (self.blank() + 1..).zip(self.config.loss.kind.big_blanks().iter().copied()).collect()
    }

    /// Encoder frames that the duration head chooses from.
    pub fn durations(&self) -> &[usize] {
        self.config.loss.kind.durations()
    }

    /// Joint width H.
    pub fn width(&self) -> usize {
        self.config.joint.width
    }

    /// Blanks, lengths and labels for the loss.
    pub(crate) fn targets(&self, lengths: Vec<usize>, labels: &[Vec<u32>]) -> Result<Targets> {
        let big_blanks = self.big_blanks().into_iter().map(|(class, _)| class).collect();
        let targets = Targets::new(self.blank(), lengths, labels.to_vec())?;
        Ok(targets.with_big_blanks(big_blanks)?)
    }

    /// The recognition lattice, if the model has one.
    pub fn lattice(&self) -> Option<&lattice::candle::Gnat> {
        self.output.lattice()
    }

    /// Frames and their lengths, for decoding: projected to the joint width, but for a recognition
    /// lattice, which takes them as they are.
    ///
    /// # Shapes
    /// `x [B, T, D]`, D = mels · stack; `lengths` has B entries of at most T. Returns `[B, T', H]`,
    /// T' = T but for a time reduction, and B lengths.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] if the input does not fit.
    pub fn encode(&self, x: &Tensor, lengths: &[usize]) -> Result<(Tensor, Vec<usize>)> {
        let (encoded, lengths) = self.encoder.forward(x, lengths, None)?;
        Ok((self.project_frames(encoded)?, lengths))
    }

    /// [`Self::encode`] of encoder rows `[B, T', W]`.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn project_frames(&self, encoded: Tensor) -> Result<Tensor> {
        Ok(match &self.output {
            OutputModel::TransducerNetwork(TransducerNetwork { heads, .. }) => {
                heads.encoder.apply(&encoded)?
            }
            OutputModel::Lattice(_) => encoded,
        })
    }

    /// Whether the model has the head of the auxiliary CTC loss.
    pub fn has_ctc_head(&self) -> bool {
        self.ctc.is_some()
    }

    /// Log-probabilities `[B, T', L + 1]` of the CTC head from encoder rows `[B, T', W]`; none
    /// without that head. The blank is class L.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn ctc_logits(&self, encoded: &Tensor) -> Result<Option<Tensor>> {
        let Some(head) = &self.ctc else { return Ok(None) };
        Ok(Some(candle_nn::ops::log_softmax(&head.apply(encoded)?, 2)?))
    }

    /// What the joint adds, and the head, on a padded batch of utterances, for a look at the loss
    /// from outside.
    ///
    /// # Shapes
    /// `x [B, T, D]`, D = mels · stack; `lengths` has B entries of at most T; `labels` has B
    /// sequences.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] or [`crate::Error::Loss`] if the input does not fit, or the model is
    /// a recognition lattice.
    pub fn joint_rows(&self, x: &Tensor, lengths: &[usize], labels: &[Vec<u32>]) -> Result<JointRows> {
        let TransducerNetwork { predictor: network, heads } = self.output.transducer()?;
        let (frames, lengths) = self.encode(x, lengths)?;
        let JointLayers { predictor, head, durations, .. } = heads;
        Ok(JointRows {
            frames,
            labels: predictor.apply(&network.forward(labels, None)?)?,
            weight: head.weight().clone(),
            bias: head.bias().clone(),
            durations: durations.as_ref().map(|head| (head.weight().clone(), head.bias().clone())),
            targets: self.targets(lengths, labels)?,
        })
    }

    /// Upper bound of the bytes that encoding a padded batch takes, from its input rows to its
    /// projected rows.
    ///
    /// `None` if the encoder does not report what it takes.
    pub fn encoding_bytes(&self, utterances: usize, rows: usize) -> Option<usize> {
        let config = self.config();
        let width = config.input.width();
        let encoder = self.encoder().bytes(utterances, rows, width)?;
        let frames = rows.div_ceil(config.encoder.reduction());
        // Rows before and behind the projection, in tensors and in vectors, and the input.
        let values = 2 * frames * (self.encoder().width() + self.width()) + 2 * rows * width;
        Some(
            encoder
                .saturating_add(size_of::<f32>().saturating_mul(utterances).saturating_mul(values))
                .saturating_add(CONSTANT_BYTES),
        )
    }
}
