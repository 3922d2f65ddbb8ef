//! Inputs of transducer and CTC losses, and their output: losses and gradients.
//!
//! Axes: B utterances, T frames, U+1 label positions, C classes, H joint width.
use ::pruned::{Heads as SimpleHeads, HeadsGradient, LinearGradient, Matrices, MatrixGradient, Ranges};
use panda_core::Head;

use crate::{Dropout, Layout, SkippedSites};

/// Inputs of a loss; each kind converts into this type.
#[derive(Debug, Clone, Copy)]
pub enum Inputs<'a, F> {
    /// Projected rows, which a joint network adds.
    Joint(JointInputs<'a, F>),
    /// Hidden rows.
    Hidden(HiddenInputs<'a, F>),
    /// Scores (logits).
    Scores(ScoreInputs<'a, F>),
    /// Projected rows, which a joint network adds at retained sites.
    Pruned(PrunedInputs<'a, F>),
}

/// Projected encoder and predictor rows, and the head.
///
/// Sites are `h(t,u) = dropout(act(encoded[t] + predicted[u]))` with scores `z = h Wᵀ + b`; *N x H*
/// is never stored.
#[derive(Debug, Clone, Copy)]
pub struct JointInputs<'a, F> {
    /// Projected encoder rows, *rows x H* ([`Layout::Padded`]: *B x T x H*).
    pub encoded: &'a [F],
    /// Projected predictor rows, *rows x H* ([`Layout::Padded`]: *B x (U+1) x H*).
    pub predicted: &'a [F],
    /// The head of the tokens.
    pub head: Head<'a, F>,
    /// The head of the durations, only for [`Loss::Tdt`](crate::Loss::Tdt).
    pub durations: Option<Head<'a, F>>,
    /// Dropout after the activation, for this call.
    pub dropout: Option<Dropout>,
    /// Memory layout of the rows.
    pub layout: Layout,
}

/// Hidden rows of the sites; for [`Loss::Ctc`](crate::Loss::Ctc) of the frames.
#[derive(Debug, Clone, Copy)]
pub struct HiddenInputs<'a, F> {
    /// Hidden rows, *rows x H* ([`Layout::Padded`]: *B x T x (U+1) x H*; CTC: *B x T x H*).
    pub hidden: &'a [F],
    /// The head of the tokens.
    pub head: Head<'a, F>,
    /// The head of the durations, only for [`Loss::Tdt`](crate::Loss::Tdt).
    pub durations: Option<Head<'a, F>>,
    /// Memory layout of the rows; CTC ignores label positions.
    pub layout: Layout,
}

/// Scores (logits), the inputs of losses in other toolkits.
#[derive(Debug, Clone, Copy)]
pub struct ScoreInputs<'a, F> {
    /// Scores, *rows x C* ([`Layout::Padded`]: *B x T x (U+1) x C*; CTC: *B x T x C*).
    ///
    /// With durations, a row has C + D scores, tokens first.
    pub scores: &'a [F],
    /// Number of classes C, without durations.
    pub classes: usize,
    /// Memory layout of the rows.
    pub layout: Layout,
}

/// Inputs of pruned training: a simple joiner, and a joint network.
#[derive(Debug, Clone, Copy)]
pub struct PrunedInputs<'a, F> {
    /// Inputs of the simple joiner, in the layout of the joint.
    pub simple: SimpleInputs<'a, F>,
    /// Inputs of the second pass.
    pub joint: JointInputs<'a, F>,
    /// Factors of the simple loss and the pruned loss, for this call.
    pub scales: PassScales,
}

/// Inputs of the simple joiner, whose scores are `am[t] + lm[u]`.
///
/// `am` are scores of frames (acoustic), `lm` those of label positions, both per class.
#[derive(Debug, Clone, Copy)]
pub enum SimpleInputs<'a, F> {
    /// Matrices `am` and `lm`.
    Matrices(Matrices<'a, F>),
    /// Linear layers, evaluated a tile of classes at a time.
    Heads(SimpleHeads<'a, F>),
}

/// Factors of the simple loss and the pruned loss in their sum.
///
/// The simple loss is that of the first pass, the pruned loss that of the second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassScales {
    /// Factor of the simple joiner's loss.
    pub simple: f64,
    /// Factor of the joint network's loss.
    pub pruned: f64,
}

/// Half of the simple loss, the final scales of k2's recipes.
impl Default for PassScales {
    fn default() -> Self {
        Self { simple: 0.5, pruned: 1.0 }
    }
}

impl PassScales {
    /// Returns the scales of a training step during warm-up.
    ///
    /// They change linearly over `steps` steps from 1 (simple) and a tenth (pruned) to `self`, as
    /// in k2's recipes: the bands of an untrained simple joiner are not meaningful.
    pub fn warm_up(self, step: usize, steps: usize) -> Self {
        let progress = if step < steps { step as f64 / steps as f64 } else { 1.0 };
        let interpolate = |initial: f64, last: f64| initial + progress * (last - initial);
        Self { simple: interpolate(1.0, self.simple), pruned: interpolate(0.1 * self.pruned, self.pruned) }
    }
}

/// Values of the inputs by name, like [`Gradients`](crate::Gradients); empty if absent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InputValues<'a, F> {
    pub encoded: &'a [F],
    pub predicted: &'a [F],
    pub hidden: &'a [F],
    pub scores: &'a [F],
    pub head: Option<Head<'a, F>>,
    pub durations: Option<Head<'a, F>>,
    pub simple: Option<SimpleInputs<'a, F>>,
}

impl<F> InputValues<'_, F> {
    pub(crate) fn none() -> Self {
        let (head, durations, simple) = (None, None, None);
        Self { encoded: &[], predicted: &[], hidden: &[], scores: &[], head, durations, simple }
    }
}

impl<'a, F: Copy> Inputs<'a, F> {
    pub(crate) fn values(&self) -> InputValues<'a, F> {
        let joint_values = |joint: JointInputs<'a, F>| {
            let JointInputs { encoded, predicted, head, durations, .. } = joint;
            InputValues { encoded, predicted, head: Some(head), durations, ..InputValues::none() }
        };
        match *self {
            Self::Joint(inputs) => joint_values(inputs),
            Self::Hidden(HiddenInputs { hidden, head, durations, .. }) => {
                InputValues { hidden, head: Some(head), durations, ..InputValues::none() }
            }
            Self::Scores(ScoreInputs { scores, .. }) => InputValues { scores, ..InputValues::none() },
            Self::Pruned(inputs) => InputValues { simple: Some(inputs.simple), ..joint_values(inputs.joint) },
        }
    }
}

impl<'a, F> JointInputs<'a, F> {
    /// Takes packed rows and one head, without dropout.
    pub fn new(encoded: &'a [F], predicted: &'a [F], head: Head<'a, F>) -> Self {
        Self { encoded, predicted, head, durations: None, dropout: None, layout: Layout::Packed }
    }

    /// Sets the memory layout of the rows.
    pub fn with_layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// Sets the head of the durations.
    pub fn with_durations(self, durations: Head<'a, F>) -> Self {
        Self { durations: Some(durations), ..self }
    }

    /// Sets dropout after the activation.
    pub fn with_dropout(self, dropout: Dropout) -> Self {
        Self { dropout: Some(dropout), ..self }
    }
}

impl<'a, F> HiddenInputs<'a, F> {
    /// Takes packed rows and one head.
    pub fn new(hidden: &'a [F], head: Head<'a, F>) -> Self {
        Self { hidden, head, durations: None, layout: Layout::Packed }
    }

    /// Sets the memory layout of the rows.
    pub fn with_layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }
}

impl<'a, F> From<JointInputs<'a, F>> for Inputs<'a, F> {
    fn from(joint: JointInputs<'a, F>) -> Self {
        Self::Joint(joint)
    }
}

impl<'a, F> From<HiddenInputs<'a, F>> for Inputs<'a, F> {
    fn from(rows: HiddenInputs<'a, F>) -> Self {
        Self::Hidden(rows)
    }
}

impl<'a, F> From<ScoreInputs<'a, F>> for Inputs<'a, F> {
    fn from(scores: ScoreInputs<'a, F>) -> Self {
        Self::Scores(scores)
    }
}

impl<'a, F> From<PrunedInputs<'a, F>> for Inputs<'a, F> {
    fn from(pruned: PrunedInputs<'a, F>) -> Self {
        Self::Pruned(pruned)
    }
}

/// Losses, and all gradients of their weighted sum.
#[derive(Debug, Clone, PartialEq)]
pub struct LossOutput<F> {
    /// Loss of each utterance, *B*; +inf without a path.
    ///
    /// With pruning it is the loss of the joint network over the retained sites.
    pub losses: Vec<f64>,
    /// Output of the simple joiner, only with pruning.
    pub first_pass: Option<PruningOutput>,
    /// Gradients, each shaped like its input; 0 in padding.
    pub gradients: Gradients<F>,
    /// Sites that [`Options::skip`](crate::Options::skip) excluded from the gradients.
    pub skipped: SkippedSites,
}

impl<F> LossOutput<F> {
    /// Bytes of its vectors.
    pub fn bytes(&self) -> usize {
        let Self { losses, first_pass, gradients, .. } = self;
        let Gradients { encoded, predicted, hidden, scores, head, durations, simple } = gradients;
        let row_len: usize = [encoded, predicted, hidden, scores].map(Vec::len).iter().sum();
        let head_len: usize = [head, durations].map(|head| head.weight.len() + head.bias.len()).iter().sum();
        let layer_len = |layer: &LinearGradient<F>| layer.rows.len() + layer.weight.len() + layer.bias.len();
        let simple_len = match simple {
            None => 0,
            Some(SimpleGradient::Matrices(MatrixGradient { am, lm })) => am.len() + lm.len(),
            Some(SimpleGradient::Heads(HeadsGradient { am, lm })) => layer_len(am) + layer_len(lm),
        };
        let first_pass_bytes = first_pass.as_ref().map_or(0, PruningOutput::bytes);
        let gradient_bytes = size_of::<F>() * (row_len + head_len + simple_len);
        size_of::<f64>() * losses.len() + gradient_bytes + first_pass_bytes
    }
}

/// Output of the first pass of pruned training.
#[derive(Debug, Clone, PartialEq)]
pub struct PruningOutput {
    /// Loss of each utterance under the simple joiner, *B*.
    pub losses: Vec<f64>,
    /// Label positions that are retained at each frame.
    pub ranges: Ranges,
}

impl PruningOutput {
    /// Bytes of its vectors.
    fn bytes(&self) -> usize {
        let batch = self.ranges.batch();
        let frames: usize = (0..batch).map(|b| self.ranges.starts(b).len()).sum();
        // A start for each frame, a width and an offset for each utterance, and the last offset.
        let range_bytes = size_of::<usize>() * (frames + 2 * batch + 1);
        size_of::<f64>() * self.losses.len() + range_bytes
    }
}

/// Gradients by the names of the inputs; empty for absent inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<F> {
    /// Gradient of [`JointInputs::encoded`](crate::JointInputs::encoded).
    pub encoded: Vec<F>,
    /// Gradient of [`JointInputs::predicted`](crate::JointInputs::predicted).
    pub predicted: Vec<F>,
    /// Gradient of [`HiddenInputs::hidden`](crate::HiddenInputs::hidden).
    pub hidden: Vec<F>,
    /// Gradient of [`ScoreInputs::scores`](crate::ScoreInputs::scores).
    pub scores: Vec<F>,
    /// Gradient of the head of the tokens.
    pub head: HeadGradient<F>,
    /// Gradient of the head of the durations.
    pub durations: HeadGradient<F>,
    /// Gradient of the simple joiner.
    pub simple: Option<SimpleGradient<F>>,
}

/// Gradient of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadGradient<F> {
    /// Gradient of the weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the bias, *C*; also present for a head without bias.
    pub bias: Vec<F>,
}

/// Gradient of [`SimpleInputs`](crate::SimpleInputs), of the same kind.
#[derive(Debug, Clone, PartialEq)]
pub enum SimpleGradient<F> {
    /// Gradient of matrices.
    Matrices(MatrixGradient<F>),
    /// Gradient of linear layers.
    Heads(HeadsGradient<F>),
}

impl<F> Default for HeadGradient<F> {
    fn default() -> Self {
        Self { weight: Vec::new(), bias: Vec::new() }
    }
}

impl<F> Default for Gradients<F> {
    fn default() -> Self {
        Self {
            encoded: Vec::new(),
            predicted: Vec::new(),
            hidden: Vec::new(),
            scores: Vec::new(),
            head: HeadGradient::default(),
            durations: HeadGradient::default(),
            simple: None,
        }
    }
}
