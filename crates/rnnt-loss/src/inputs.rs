//! Inputs of a call, and its outputs under the same names.
use ::pruned::{Heads as TrivialHeads, HeadsGradient, LinearGradient, Matrices, MatrixGradient, Ranges};
use panda_core::Head;

use crate::{Dropout, Layout, SkippedSites};

/// Inputs of a call; each kind converts into it.
#[derive(Debug, Clone, Copy)]
pub enum Inputs<'a, F> {
    /// Rows that a joint network adds.
    Joint(JointInputs<'a, F>),
    /// Hidden rows that exist already.
    Hidden(HiddenInputs<'a, F>),
    /// Ready-made scores.
    Scores(ScoreInputs<'a, F>),
    /// Rows that a joint network adds where a trivial joiner says so.
    Pruned(PrunedInputs<'a, F>),
}

/// Sites `h(t,u) = drop(act(encoded[t] + predicted[u]))`, `z = h Wᵀ + b`, none of them ever kept as *N x H*.
#[derive(Debug, Clone, Copy)]
pub struct JointInputs<'a, F> {
    /// Projected encodings, frame rows *rows x H* ([`Layout::Padded`]: *B x T x H*).
    pub encoded: &'a [F],
    /// Projected predictions, label rows *rows x H* ([`Layout::Padded`]: *B x (U+1) x H*).
    pub predicted: &'a [F],
    /// The head of the tokens.
    pub head: Head<'a, F>,
    /// That of the durations, for [`Loss::Tdt`](crate::Loss::Tdt) alone.
    pub durations: Option<Head<'a, F>>,
    /// Dropout after the activation, for this call.
    pub dropout: Option<Dropout>,
    /// Where the rows of an utterance lie.
    pub layout: Layout,
}

/// Hidden rows, one a site; for [`Loss::Ctc`](crate::Loss::Ctc) one a frame.
#[derive(Debug, Clone, Copy)]
pub struct HiddenInputs<'a, F> {
    /// *rows x H* ([`Layout::Padded`]: *B x T x (U+1) x H*; for CTC *B x T x H*).
    pub hidden: &'a [F],
    /// The head of the tokens.
    pub head: Head<'a, F>,
    /// That of the durations, for [`Loss::Tdt`](crate::Loss::Tdt) alone.
    pub durations: Option<Head<'a, F>>,
    /// Where the rows of an utterance lie; for CTC, label positions do not matter.
    pub layout: Layout,
}

/// Scores (logits), as other toolkits' losses take them.
#[derive(Debug, Clone, Copy)]
pub struct ScoreInputs<'a, F> {
    /// *rows x C* ([`Layout::Padded`]: *B x T x (U+1) x C*; for CTC *B x T x C*). Those of D durations follow those of the
    /// tokens in each row, which then has C + D.
    pub scores: &'a [F],
    /// C, durations not counted.
    pub classes: usize,
    /// Where the rows of an utterance lie.
    pub layout: Layout,
}

/// A trivial joiner that chooses the sites, and what a joint network sees there.
#[derive(Debug, Clone, Copy)]
pub struct PrunedInputs<'a, F> {
    /// Where the scores of the trivial joiner come from, rows as in the joint's layout.
    pub simple: SimpleInputs<'a, F>,
    /// The second pass.
    pub joint: JointInputs<'a, F>,
    /// Factors of both losses in the sum, for this call.
    pub scales: PassScales,
}

/// Scores of the trivial joiner, `am[t] + lm[u]`.
#[derive(Debug, Clone, Copy)]
pub enum SimpleInputs<'a, F> {
    /// As matrices.
    Matrices(Matrices<'a, F>),
    /// From linear layers, a tile of classes at a time.
    Heads(TrivialHeads<'a, F>),
}

/// Factors of the losses of both passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassScales {
    /// Of the trivial joiner's.
    pub simple: f64,
    /// Of the joint network's.
    pub pruned: f64,
}

/// Half of the simple loss: what k2's recipes end with.
impl Default for PassScales {
    fn default() -> Self {
        Self { simple: 0.5, pruned: 1.0 }
    }
}

impl PassScales {
    /// Scales for a step of training, when bands do not yet mean much: from 1 and 0.1 to those of `self`, in a straight
    /// line over `steps` (k2's recipes).
    pub fn warm_up(self, step: usize, steps: usize) -> Self {
        let progress = if step < steps { step as f64 / steps as f64 } else { 1.0 };
        let between = |from: f64, to: f64| from + progress * (to - from);
        Self { simple: between(1.0, self.simple), pruned: between(0.1 * self.pruned, self.pruned) }
    }
}

/// InputValues of a call under the names of its inputs, as [`Gradients`](crate::Gradients); empty where there is no such input.
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
    pub fn none() -> Self {
        let (head, durations, simple) = (None, None, None);
        Self { encoded: &[], predicted: &[], hidden: &[], scores: &[], head, durations, simple }
    }
}

impl<'a, F: Copy> Inputs<'a, F> {
    pub(crate) fn values(&self) -> InputValues<'a, F> {
        let joint = |joint: JointInputs<'a, F>| {
            let JointInputs { encoded, predicted, head, durations, .. } = joint;
            InputValues { encoded, predicted, head: Some(head), durations, ..InputValues::none() }
        };
        match *self {
            Self::Joint(inputs) => joint(inputs),
            Self::Hidden(HiddenInputs { hidden, head, durations, .. }) => {
                InputValues { hidden, head: Some(head), durations, ..InputValues::none() }
            }
            Self::Scores(ScoreInputs { scores, .. }) => InputValues { scores, ..InputValues::none() },
            Self::Pruned(inputs) => InputValues { simple: Some(inputs.simple), ..joint(inputs.joint) },
        }
    }
}

impl<'a, F> JointInputs<'a, F> {
    /// Packed rows under one head, without dropout.
    pub fn new(encoded: &'a [F], predicted: &'a [F], head: Head<'a, F>) -> Self {
        Self { encoded, predicted, head, durations: None, dropout: None, layout: Layout::Packed }
    }

    /// The same rows in another layout.
    pub fn with_layout(self, layout: Layout) -> Self {
        Self { layout, ..self }
    }

    /// The same with a head of durations.
    pub fn with_durations(self, durations: Head<'a, F>) -> Self {
        Self { durations: Some(durations), ..self }
    }

    /// The same with dropout after the activation.
    pub fn with_dropout(self, dropout: Dropout) -> Self {
        Self { dropout: Some(dropout), ..self }
    }
}

impl<'a, F> HiddenInputs<'a, F> {
    /// Packed rows under one head.
    pub fn new(hidden: &'a [F], head: Head<'a, F>) -> Self {
        Self { hidden, head, durations: None, layout: Layout::Packed }
    }

    /// The same rows in another layout.
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

/// Losses and all gradients of a weighted sum of them.
#[derive(Debug, Clone, PartialEq)]
pub struct LossOutput<F> {
    /// Loss of each utterance, *B*; +inf without a path. With pruning that of the joint network over the retained sites.
    pub losses: Vec<f64>,
    /// What the trivial joiner found, with pruning alone.
    pub first_pass: Option<PruningOutput>,
    /// Gradients, each shaped like its input; 0 in padding.
    pub gradients: Gradients<F>,
    /// What [`Options::skip`](crate::Options::skip) left out of them.
    pub skipped: SkippedSites,
}

impl<F> LossOutput<F> {
    /// Bytes of its lists.
    pub fn bytes(&self) -> usize {
        let Self { losses, first_pass, gradients, .. } = self;
        let Gradients { encoded, predicted, hidden, scores, head, durations, simple } = gradients;
        let rows: usize = [encoded, predicted, hidden, scores].map(Vec::len).iter().sum();
        let heads: usize = [head, durations].map(|head| head.weight.len() + head.bias.len()).iter().sum();
        let layer = |layer: &LinearGradient<F>| layer.rows.len() + layer.weight.len() + layer.bias.len();
        let simple = match simple {
            None => 0,
            Some(SimpleGradient::Matrices(MatrixGradient { am, lm })) => am.len() + lm.len(),
            Some(SimpleGradient::Heads(HeadsGradient { am, lm })) => layer(am) + layer(lm),
        };
        let found = first_pass.as_ref().map_or(0, PruningOutput::bytes);
        8 * losses.len() + size_of::<F>() * (rows + heads + simple) + found
    }
}

/// What the trivial joiner found.
#[derive(Debug, Clone, PartialEq)]
pub struct PruningOutput {
    /// `-log P` of each utterance under the trivial joiner, *B*.
    pub losses: Vec<f64>,
    /// The bands that were retained.
    pub ranges: Ranges,
}

impl PruningOutput {
    /// Bytes of its lists.
    fn bytes(&self) -> usize {
        let frames: usize = (0..self.ranges.batch()).map(|b| self.ranges.starts(b).len()).sum();
        8 * (self.losses.len() + frames + 2 * self.ranges.batch() + 1)
    }
}

/// Gradients under the names of the inputs; empty where there is no such input.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<F> {
    /// Of [`JointInputs::encoded`](crate::JointInputs::encoded).
    pub encoded: Vec<F>,
    /// Of [`JointInputs::predicted`](crate::JointInputs::predicted).
    pub predicted: Vec<F>,
    /// Of [`HiddenInputs::hidden`](crate::HiddenInputs::hidden).
    pub hidden: Vec<F>,
    /// Of [`ScoreInputs::scores`](crate::ScoreInputs::scores).
    pub scores: Vec<F>,
    /// Of the head of the tokens.
    pub head: HeadGradient<F>,
    /// Of the head of the durations.
    pub durations: HeadGradient<F>,
    /// Of the trivial joiner.
    pub simple: Option<SimpleGradient<F>>,
}

/// Gradient of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadGradient<F> {
    /// Of the weight, *C x H*.
    pub weight: Vec<F>,
    /// Of the bias, *C*; also there for a head without one.
    pub bias: Vec<F>,
}

/// Gradient of [`SimpleInputs`](crate::SimpleInputs), of the same kind.
#[derive(Debug, Clone, PartialEq)]
pub enum SimpleGradient<F> {
    /// Of matrices.
    Matrices(MatrixGradient<F>),
    /// Of linear layers.
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
